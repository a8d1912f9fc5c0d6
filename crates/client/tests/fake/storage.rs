//! A node as a storage: chunks that all nodes share, and the channels that they were written through.

use super::files::layout;
use super::node::Node;
use glowfs_net::{Incoming, Reply};
use glowfs_types::checksum::crc32c;
use glowfs_types::wire::copy::CopyChunk;
use glowfs_types::wire::data::*;
use glowfs_types::wire::sparse::*;
use glowfs_types::*;
use zerocopy::{FromBytes, IntoBytes};

impl Node {
    fn check_target(&self, chain: u64, version: u64, target: u64) -> Result<()> {
        let info = self.state.routing.borrow();
        let c = info.chains.get(&ChainId(chain)).ok_or(Status::NoTarget)?;
        if c.version.0 != version {
            return Err(Status::WrongChainVersion.into());
        }
        let ok = c.serving().any(|m| m.target.0 == target && m.node == self.id);
        if ok { Ok(()) } else { Err(Status::NotServing.into()) }
    }

    pub(super) fn read(&self, incoming: &mut Incoming, flip: bool) -> Result<Reply> {
        let body = incoming.body().to_vec();
        let room = incoming.reply_room() as u32;
        let mut buf = incoming.reply_buffer()?;
        let read = Read::parse(&body, room)?;
        let chunks = self.state.chunks.borrow();
        let mut results = Vec::new();
        for op in read.ops {
            let mut result = ReadResult::default();
            match self.check_target(op.chain.get(), op.chain_version.get(), op.target.get()) {
                Err(e) => result.status = e.status.code().into(),
                Ok(()) => {
                    let (at, len) = (op.at.get() as usize, op.len.get() as usize);
                    let out = &mut buf[at..at + len];
                    out.fill(0);
                    let id = ChunkId::from(op.chunk);
                    let here = Self::of_chain(&id, ChainId(op.chain.get()));
                    let chunk = chunks.get(&id).filter(|_| here);
                    let chunk = chunk.map(Vec::as_slice).unwrap_or_default();
                    let have = chunk.get(op.offset.get() as usize..).unwrap_or_default();
                    let n = have.len().min(len);
                    out[..n].copy_from_slice(&have[..n]);
                    result.len = (n as u32).into();
                    result.crc = crc32c(out).into();
                    if flip {
                        out[0] ^= 1;
                    }
                }
            }
            results.push(result);
        }
        Ok(Reply { body: results.as_bytes().to_vec(), bulk: Some(buf) })
    }

    pub(super) fn write(&self, incoming: &mut Incoming) -> Result<Reply> {
        let body = incoming.body().to_vec();
        let payload = incoming.take_bulk()?;
        let u = Update::parse(&body)?;
        if u.head.client.get() != incoming.conn().peer().client.0 {
            return Err(Error::new(Status::AccessDenied, "of another client than the connection"));
        }
        if u.head.kind == update::WRITE {
            let crcs = u.crcs.iter().map(|c| c.get());
            if !checksum::verify_pieces(u.head.offset.get(), &payload, crcs) {
                return Err(Status::Corrupt.into());
            }
        }
        self.update(*u.head, &payload)
    }

    pub(super) fn copy(&self, incoming: &Incoming) -> Result<Reply> {
        let q: CopyChunk = incoming.msg()?;
        let head = q.head()?;
        if self.state.dumb.borrow().contains(&q.node) {
            return Err(Error::new(Status::Disconnected, "that node does not send it"));
        }
        let bytes = {
            let chunks = self.state.chunks.borrow();
            let from = chunks.get(&q.from).map(Vec::as_slice).unwrap_or_default();
            let at = |i| from.get(q.from_offset as usize + i).copied().unwrap_or(0);
            (0..head.len.get() as usize).map(at).collect::<Vec<u8>>()
        };
        self.update(head, &bytes)
    }

    pub(super) fn list(&self, incoming: &Incoming) -> Result<Reply> {
        let q: ListExtents = incoming.msg()?;
        let chunks = self.state.chunks.borrow();
        let mine = chunks.iter().filter(|(id, _)| {
            id.data == q.from.data && id.index >= q.from.index && Self::of_chain(id, q.chain)
        });
        let chunks = mine.map(|(id, content)| {
            let blocks = (content.len() as u64).div_ceil(EXTENT_BLOCK_BYTES) as u32;
            ChunkExtents { index: id.index, runs: vec![(0, blocks)] }
        });
        Ok(Reply::msg(&ListExtentsReply { chunks: chunks.collect(), ..Default::default() }))
    }

    /// It says that there is more, and begins again with the first chunk.
    pub(super) fn list_in_circles(&self, incoming: &Incoming) -> Result<Reply> {
        let _: ListExtents = incoming.msg()?;
        let chunks = vec![ChunkExtents { index: 0, runs: vec![] }];
        Ok(Reply::msg(&ListExtentsReply { chunks, more: true, ..Default::default() }))
    }

    fn update(&self, head: UpdateHead, payload: &[u8]) -> Result<Reply> {
        self.check_target(head.chain.get(), head.chain_version.get(), head.target.get())?;
        {
            let info = self.state.routing.borrow();
            let c = info.chains.get(&ChainId(head.chain.get())).ok_or(Status::NoTarget)?;
            if c.head().map(|m| m.node) != Some(self.id) {
                return Err(Status::NotServing.into());
            }
        }
        let chunk: ChunkId = head.chunk.into();
        if !Self::of_chain(&chunk, ChainId(head.chain.get())) {
            return Err(Error::new(Status::InvalidArgument, "nobody looks for it on this chain"));
        }
        let data_now = self.state.data_now();
        if head.capability.data.get() != data_now && !self.state.uncollected.get() {
            return Err(Error::new(Status::BadCapability, "of an older epoch"));
        }
        let seq = head.seq.get();
        let mut channels = self.state.channels.borrow_mut();
        let known = channels.entry((head.client.get(), head.channel.get())).or_insert((0, 0));
        if seq < known.0 {
            return Err(Status::OldSequence.into());
        }
        if seq > known.0 {
            *known = (seq, 1);
            let mut chunks = self.state.chunks.borrow_mut();
            let content = chunks.entry(chunk).or_default();
            let end = (head.offset.get() + head.len.get()) as usize;
            if head.kind == update::TRUNCATE {
                content.resize(head.len.get() as usize, 0);
            } else {
                content.resize(content.len().max(end), 0);
                content[head.offset.get() as usize..end].copy_from_slice(payload);
            }
        }
        Ok(Reply::body(
            UpdateResult { version: 1.into(), ..Default::default() }.as_bytes().to_vec(),
        ))
    }

    fn of_chain(chunk: &ChunkId, chain: ChainId) -> bool {
        layout(chunk.data).position(chunk.index, 3) + 1 == chain.0 as u32
    }

    pub(super) fn extent(&self, incoming: &Incoming) -> Result<Reply> {
        let q: QueryExtent = incoming.msg()?;
        let chunks = self.state.chunks.borrow();
        let mine =
            chunks.iter().filter(|(id, _)| id.data == q.data.data && Self::of_chain(id, q.chain));
        let mut reply = QueryExtentReply::default();
        for (id, content) in mine {
            reply.last = Some((id.index, content.len() as u32));
            reply.chunks += 1;
            reply.bytes += content.len() as u64;
        }
        Ok(Reply::msg(&reply))
    }

    pub(super) fn remove(&self, incoming: &Incoming) -> Result<Reply> {
        let q: RemoveData = incoming.msg()?;
        Capability::read_from_bytes(&q.capability)
            .map_err(|_| Error::from(Status::BadCapability))?;
        let mut chunks = self.state.chunks.borrow_mut();
        let ids: Vec<ChunkId> = chunks
            .keys()
            .filter(|id| {
                id.data == q.from.data && id.index >= q.from.index && Self::of_chain(id, q.chain)
            })
            .copied()
            .collect();
        let removed = ids.len().min(q.limit as usize);
        for id in &ids[..removed] {
            chunks.remove(id);
        }
        Ok(Reply::msg(&RemoveDataReply { removed: removed as u32, more: ids.len() > removed }))
    }
}
