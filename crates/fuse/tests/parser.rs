//! The parser against well-formed requests, mutated ones and noise: it must understand the first and never panic.

use glowfs_fuse::abi::{self, opcode};
use glowfs_fuse::request::{Op, parse};
use proptest::prelude::*;
use zerocopy::IntoBytes;

fn request(code: u32, body: &[u8]) -> Vec<u8> {
    let header = abi::InHeader {
        len: (size_of::<abi::InHeader>() + body.len()) as u32,
        opcode: code,
        unique: 7,
        nodeid: 9,
        uid: 1,
        gid: 2,
        pid: 3,
        ..Default::default()
    };
    [header.as_bytes(), body].concat()
}

fn op(code: u32, body: &[u8]) -> Op {
    let r = parse(&request(code, body)).expect("well formed");
    assert_eq!((r.header.unique, r.header.node, r.header.pid), (7, 9, 3));
    r.op
}

#[test]
fn names() {
    assert_eq!(op(opcode::LOOKUP, b"a\0"), Op::Lookup { name: b"a".to_vec() });
    let body =
        [abi::Rename2In { newdir: 5, flags: 2, padding: 0 }.as_bytes(), b"old\0new\0"].concat();
    let want =
        Op::Rename { name: b"old".to_vec(), new_parent: 5, new_name: b"new".to_vec(), flags: 2 };
    assert_eq!(op(opcode::RENAME2, &body), want);
    assert_eq!(
        op(opcode::SYMLINK, b"name\0target/x\0"),
        Op::Symlink { name: b"name".to_vec(), target: b"target/x".to_vec() }
    );
    for bad in [&b""[..], b"a", b"\0", b"a/b\0"] {
        assert!(parse(&request(opcode::LOOKUP, bad)).is_err(), "{bad:?}");
    }
    let long = |n: usize| request(opcode::LOOKUP, &[&vec![b'n'; n][..], &[0]].concat());
    assert!(parse(&long(4095)).is_ok(), "kernels pass such names on");
    assert!(parse(&long(4096)).is_err());
}

#[test]
fn forgets() {
    let one = |n, c| abi::ForgetOne { nodeid: n, nlookup: c };
    let head = abi::BatchForgetIn { count: 2, dummy: 0 };
    let body = [head.as_bytes(), one(1, 2).as_bytes(), one(3, 4).as_bytes()].concat();
    assert_eq!(op(opcode::BATCH_FORGET, &body), Op::Forget(vec![(1, 2), (3, 4)]));
    let lie = abi::BatchForgetIn { count: u32::MAX, dummy: 0 };
    assert!(parse(&request(opcode::BATCH_FORGET, &[lie.as_bytes(), &[0; 64]].concat())).is_err());
}

#[test]
fn writes_end_before_their_payload() {
    let head = abi::WriteIn { fh: 1, offset: 4096, size: 100, ..Default::default() };
    let mut bytes = request(opcode::WRITE, head.as_bytes());
    assert!(parse(&bytes).is_err(), "the stated length lacks the payload");
    bytes[..4].copy_from_slice(&180u32.to_ne_bytes());
    assert_eq!(parse(&bytes).expect("ok").op, Op::Write(head));
}

#[test]
fn init_in_both_forms() {
    let old = abi::InitIn { major: 7, minor: 31, max_readahead: 1, flags: 1 };
    let want = Op::Init { major: 7, minor: 31, max_readahead: 1, flags: 1 };
    assert_eq!(op(opcode::INIT, old.as_bytes()), want);
    let new =
        abi::InitIn { major: 7, minor: 45, max_readahead: 1, flags: abi::init::INIT_EXT as u32 };
    let ext = abi::InitInExt { flags2: 4, ..Default::default() };
    let Op::Init { flags, .. } = op(opcode::INIT, &[new.as_bytes(), ext.as_bytes()].concat())
    else {
        panic!("not INIT")
    };
    assert_eq!(flags, abi::init::INIT_EXT | abi::init::CREATE_SUPP_GROUP);
}

#[test]
fn groups_ride_along() {
    let mut bytes =
        request(opcode::MKDIR, &[abi::MkdirIn::default().as_bytes(), b"d\0\0\0\0\0\0\0"].concat());
    let ext = [16u32, abi::EXT_GROUPS, 1, 4242];
    bytes.extend_from_slice(ext.as_bytes());
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    bytes[36..38].copy_from_slice(&2u16.to_ne_bytes());
    assert_eq!(parse(&bytes).expect("ok").groups, [4242]);
    let at = bytes.len() - 8;
    bytes[at..at + 4].copy_from_slice(&9u32.to_ne_bytes());
    assert!(parse(&bytes).is_err(), "more groups than there are");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn noise_behind_a_good_header_never_panics(
        code in 0u32..60,
        body in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..300),
        ext in 0u16..40,
        lie in prop::option::of(any::<u32>()),
    ) {
        let mut bytes = request(code, &body);
        bytes[36..38].copy_from_slice(&ext.to_ne_bytes());
        if let Some(len) = lie {
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
        }
        if let Ok(r) = parse(&bytes) {
            prop_assert!(lie.is_none() || lie == Some(bytes.len() as u32) || code == opcode::WRITE);
            prop_assert!(r.groups.len() * 4 <= bytes.len());
        }
    }
}
