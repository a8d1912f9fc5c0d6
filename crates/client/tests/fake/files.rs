//! The files there are, opened by a client, and their bytes.

use super::CHUNK;
use glowfs_client::{Client, FileAccess, OpenFile};
use glowfs_rt::Rt;
use glowfs_types::wire::meta::*;
use glowfs_types::*;
use std::rc::Rc;

/// What [`open_other`] opens,
pub(super) const OTHER: InodeId = InodeId(6);
/// and what its chunks are stored under.
pub const OTHER_DATA: DataId = DataId(1000);

/// The file there is, open for all.
pub async fn open(client: &Rc<Client>) -> Rc<OpenFile> {
    open_inode(client, InodeId(5)).await
}

/// Another file, which nobody cuts.
pub async fn open_other(client: &Rc<Client>) -> Rc<OpenFile> {
    open_inode(client, OTHER).await
}

async fn open_inode(client: &Rc<Client>, inode: InodeId) -> Rc<OpenFile> {
    let flags = OpenFlags {
        read: true,
        write: true,
        truncate: false,
        session: client.new_session(),
        append: false,
        inline: false,
        exec: false,
    };
    let query = Open { caller: Caller::default(), request: RequestId(0), inode, flags };
    let reply = client.open(query).await.expect("open");
    let access = FileAccess { caller: Caller::default(), read: true, write: true, exec: false };
    client.open_file(&reply, access).expect("file")
}

/// Data lies on chains of its own, as that of files does.
pub fn layout(data: DataId) -> Layout {
    Layout {
        table: ChainTableId(1),
        table_version: 1,
        chunk_bytes: CHUNK as u32,
        stripe: 3,
        start: (data.0 - 7) as u32 % 3,
        redundancy: Redundancy::Replicated,
        durability: Durability::Written,
        inline_bytes: 0,
    }
}

/// Bytes that differ by place and seed.
pub fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// Reads so much: how many came, and the buffer.
pub async fn read(rt: &Rt, file: &OpenFile, offset: u64, len: usize) -> Result<(usize, Vec<u8>)> {
    let (result, buf) = file.read(offset, rt.alloc(len)).await;
    assert_eq!(buf.len(), len, "the buffer keeps its length");
    result.map(|n| (n, buf.to_vec()))
}
