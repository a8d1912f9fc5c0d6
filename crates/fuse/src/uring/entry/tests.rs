use super::*;
use crate::Op;
use glowfs_rt::real;
use proptest::prelude::*;
use std::io::IoSlice;

const BYTES: usize = 128 << 10;

/// What the kernel does with an entry, but without the kernel.
fn fill(e: &Entry, h: &abi::InHeader, op_in: &[u8], payload: &[u8], payload_sz: u32) {
    // SAFETY: nothing else refers to the headers.
    let headers = unsafe { &mut *e.headers.get() };
    headers.in_out[..IN_HEADER_BYTES].copy_from_slice(h.as_bytes());
    headers.op_in[..op_in.len()].copy_from_slice(op_in);
    headers.about.payload_sz = payload_sz;
    headers.about.commit_id = h.unique;
    e.window.put(std::iter::once(payload));
}

fn header(opcode: u32, len: usize) -> abi::InHeader {
    abi::InHeader { len: len as u32, opcode, unique: 77, nodeid: 1, ..Default::default() }
}

fn answered(e: &Entry) -> (abi::OutHeader, u32) {
    use zerocopy::FromBytes;
    // SAFETY: nothing else refers to the headers.
    let headers = unsafe { &*e.headers.get() };
    let out = abi::OutHeader::read_from_prefix(&headers.in_out).expect("long enough").0;
    (out, headers.about.payload_sz)
}

fn with(test: impl FnOnce(&Rt, &Entry) + 'static) {
    real::run(|rt| async move {
        let window = Window::on_pool(rt.pool(), BYTES).expect("room");
        test(&rt, &Entry::new(0, 0, State::Here, window));
    });
}

#[test]
fn requests_are_put_together() {
    with(|rt, e| {
        let scratch = &mut Vec::new();
        fill(e, &header(opcode::LOOKUP, 40 + 5), &[], b"name\0", 5);
        let (r, payload) = e.request(rt, scratch).expect("well formed");
        assert_eq!((r.op, payload.is_none()), (Op::Lookup { name: b"name".to_vec() }, true));
        assert_eq!((r.header.unique, e.commit_id.get()), (77, 77));

        let mkdir = abi::MkdirIn { mode: 0o755, umask: 0o22 };
        fill(e, &header(opcode::MKDIR, 40 + 8 + 2), mkdir.as_bytes(), b"d\0", 2);
        let (r, _) = e.request(rt, scratch).expect("well formed");
        assert_eq!(r.op, Op::Mkdir { name: b"d".to_vec(), mode: 0o755, umask: 0o22 });

        let write = abi::WriteIn { fh: 3, offset: 4096, size: 6, ..Default::default() };
        fill(e, &header(opcode::WRITE, 80 + 6), write.as_bytes(), b"abcdef", 6);
        let (r, payload) = e.request(rt, scratch).expect("well formed");
        let payload = payload.expect("a WRITE has one");
        assert_eq!((r.op, &*payload), (Op::Write(write), &b"abcdef"[..]));
        assert!(
            payload.is_aligned() && payload.region().is_some(),
            "peers can read it where it is"
        );
    });
}

#[test]
fn answers_are_where_they_belong() {
    with(|rt, e| {
        let pool = rt.pool();
        let parts = [IoSlice::new(b"ab"), IoSlice::new(b"c")];
        assert!(!e.answer(pool, 9, 0, Body::Parts(&parts)).expect("fits"));
        assert_eq!(answered(e), (abi::OutHeader { len: 19, error: 0, unique: 9 }, 3));

        // What was read into the entry is not copied, and what was read elsewhere is.
        let mut own = e.lend(4096).expect("free");
        own.fill(1);
        let elsewhere = rt.alloc(4096);
        assert!(e.lend(1).is_none());
        assert!(!e.answer(pool, 9, 0, Body::Data(own.freeze())).expect("fits"));
        assert_eq!(answered(e).1, 4096);
        assert!(!e.answer(pool, 9, 0, Body::Data(elsewhere.freeze())).expect("fits"));

        // A payload that somebody keeps stays his.
        let mut late = e.lend(4096).expect("free again");
        late.fill(5);
        let late = late.freeze();
        assert!(e.answer(pool, 9, 0, Body::Data(late.clone())).expect("moved"));
        let mut seen = Vec::new();
        e.window.copy_out(4096, &mut seen);
        assert_eq!(seen, &*late, "the answer moved with the window");
        assert!(!e.answer(pool, 9, 0, Body::Parts(&[IoSlice::new(&[6; 4096])])).expect("fits"));
        assert!(late.iter().all(|b| *b == 5));

        // An answer that is too long is an error, not an overrun.
        let long = vec![0; BYTES + 1];
        assert!(!e.answer(pool, 9, 0, Body::Parts(&[IoSlice::new(&long)])).expect("answered"));
        assert_eq!(answered(e), (abi::OutHeader { len: 16, error: -libc::EIO, unique: 9 }, 0));
    });
}

#[test]
fn lengths_that_contradict_each_other_are_refused() {
    with(|rt, e| {
        let scratch = &mut Vec::new();
        let write = abi::WriteIn { size: 100, ..Default::default() };
        for (opcode, len, payload_sz) in [
            (opcode::LOOKUP, 40 + 5, 6),
            (opcode::LOOKUP, 3, 5),
            (opcode::LOOKUP, 40 + 129 + 5, 5),
            (opcode::LOOKUP, usize::MAX, u32::MAX),
            (opcode::LOOKUP, 40 + BYTES + 1, BYTES as u32 + 1),
            (opcode::WRITE, 80 + 100, 99),
            (opcode::WRITE, 80 + 100, 101),
            (opcode::WRITE, 80 + 99, 99),
        ] {
            fill(e, &header(opcode, len), write.as_bytes(), b"name\0", payload_sz);
            let bad = e.request(rt, scratch).expect_err("nonsense");
            assert_eq!(bad.unique, 77, "{opcode} {len} {payload_sz}: it can be answered");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_bytes_of_the_kernel_panic(
        all in prop::collection::vec((0u32..60, 0u32..400, 0u32..300, any::<[u8; 32]>()), 1..40)
    ) {
        with(move |rt, e| {
            for (opcode, len, payload_sz, noise) in all {
                let mut h = header(opcode, len as usize);
                h.total_extlen = u16::from(noise[0] & 3);
                fill(e, &h, &noise, &noise, payload_sz);
                let _ = e.request(rt, &mut Vec::new());
                let _ = e.answer(rt.pool(), 1, 0, Body::Parts(&[]));
            }
        });
    }
}
