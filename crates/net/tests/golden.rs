//! Bytes of the handshake and of region messages, as docs/formats/wire.md has them. They may never change.

use glowfs_types::routing::Role;
use glowfs_types::wire::hello::{Hello, HelloReply, RegisterRegion, UnregisterRegion};
use glowfs_types::wire::{decode, encode, method};
use glowfs_types::{ClientId, ClusterId, HostId, NodeId, UserId};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn hello() {
    let hello = Hello {
        cluster: ClusterId(1),
        token: "t".into(),
        role: Some(Role::Mount),
        node: NodeId(2),
        client: ClientId(3),
        host: HostId(4),
        features: 1,
        release: "0.1.0".into(),
    };
    let bytes = encode(&hello);
    assert_eq!(
        hex(&bytes),
        "88500100000000000000000000000000000061740302500300000000000000000000000000000050\
         04000000000000000000000000000000\
         0165302e312e30"
            .replace(' ', "")
    );
    assert_eq!(decode::<Hello>(&bytes).expect("decode"), hello);
}

#[test]
fn hello_reply() {
    let reply = HelloReply {
        cluster: ClusterId(1),
        role: Some(Role::Meta),
        node: NodeId(2),
        features: 1,
        release: "0.1.0".into(),
        user: UserId(7),
        root: true,
        mgmtd: vec!["tcp://127.0.0.1:1".into()],
    };
    let bytes = encode(&reply);
    assert_eq!(
        hex(&bytes),
        "885001000000000000000000000000000000010201\
         65302e312e3007f581717463703a2f2f3132372e302e302e313a31"
            .replace(' ', "")
    );
    assert_eq!(decode::<HelloReply>(&bytes).expect("decode"), reply);
}

#[test]
fn regions() {
    assert_eq!(hex(&encode(&RegisterRegion { key: 1, len: 65_536 })), "82011a00010000");
    assert_eq!(hex(&encode(&UnregisterRegion { key: 1 })), "8101");
    assert_eq!(
        (method::HELLO, method::ECHO, method::REGISTER_REGION, method::UNREGISTER_REGION),
        (1, 2, 4, 5)
    );
}

#[test]
fn a_newer_hello_is_understood() {
    // A ninth field, and a shorter one of an older build.
    let mut newer = encode(&Hello::default());
    newer[0] = 0x89;
    newer.push(0x01);
    assert_eq!(decode::<Hello>(&newer).expect("newer"), Hello::default());
}
