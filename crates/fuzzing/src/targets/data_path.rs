//! Reads, updates, capabilities: fixed structures. The first byte chooses.

use glowfs_types::capability::CapabilityKey;
use glowfs_types::checksum::{block_count, blocks};
use glowfs_types::wire::copy::CopyChunk;
use glowfs_types::wire::data::{Read, ReadOp, Update, UpdateHead};
use glowfs_types::{Capability, ChainVersion, ChunkId, DataId, NodeId, TargetId, VolumeId};
use zerocopy::{FromBytes, IntoBytes};

fn copy(write: Vec<u8>) -> CopyChunk {
    CopyChunk {
        write,
        from: ChunkId::default(),
        from_offset: 0,
        target: TargetId(1),
        chain_version: ChainVersion(1),
        node: NodeId(1),
        capability: Vec::new(),
    }
}

pub fn run(input: &[u8]) {
    let Some((which, bytes)) = input.split_first() else { return };
    match which % 3 {
        0 => {
            // The head of a write that is a copy: it is asked for without its bytes.
            if let Ok(head) = copy(bytes.to_vec()).head() {
                let packed = CopyChunk::pack(&head);
                let again = copy(packed.clone()).head().expect("what we wrote");
                assert_eq!(CopyChunk::pack(&again), packed, "it changes by being written");
            }
            if let Ok(update) = Update::parse(bytes) {
                let crcs: Vec<u32> = update.crcs.iter().map(|c| c.get()).collect();
                let written = Update::encode(update.head, &crcs);
                let again = Update::parse(&written).expect("what we wrote");
                assert_eq!(again.crcs.len(), update.crcs.len());
                let (offset, len) = (update.head.offset.get(), update.head.len.get());
                let covered: u64 = blocks(offset, len).map(|(_, _, n)| u64::from(n)).sum();
                assert!(covered >= u64::from(len) || len == 0, "blocks cover the piece");
                assert!(block_count(offset, len) <= (len as usize / 4096) + 2);
            }
        }
        1 => {
            let Some((room, bytes)) = bytes.split_first_chunk::<4>() else { return };
            let room = u32::from_le_bytes(*room);
            if let Ok(read) = Read::parse(bytes, room) {
                let within = |op: &ReadOp| {
                    u64::from(op.at.get()) + u64::from(op.len.get()) <= u64::from(room)
                };
                assert!(read.ops.iter().all(within), "a piece reaches past the room");
                let written = Read::encode(&read.head.capability, read.ops);
                Read::parse(&written, room).expect("what we wrote");
            }
        }
        _ => {
            if let Ok((cap, _)) = Capability::read_from_prefix(bytes) {
                let key = CapabilityKey([7; 32]);
                let (volume, data) = (VolumeId(cap.volume.get()), DataId(cap.data.get()));
                assert!(cap.check(&key, 0, volume, data, 0).is_err(), "a signature was guessed");
                let expires = cap.expiry_ns.get();
                let signed = cap.sign(1, &key);
                let fine = signed.check(&key, 0, volume, data, cap.rights.get()).is_ok();
                assert_eq!(fine, expires > 0, "a signed capability holds until it expires");
            }
        }
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let head = UpdateHead {
        kind: glowfs_types::wire::data::update::WRITE,
        len: 5000.into(),
        chunk_bytes: (1 << 20).into(),
        ..UpdateHead::default()
    };
    let ops = [ReadOp { len: 4096.into(), ..ReadOp::default() }; 2];
    let cap = Capability { expiry_ns: 5.into(), ..Capability::default() };
    vec![
        [&[0][..], &Update::encode(&head, &[1, 2])].concat(),
        [&[1, 0, 0, 1, 0][..], &Read::encode(&cap, &ops)].concat(),
        [&[2][..], cap.as_bytes()].concat(),
    ]
}
