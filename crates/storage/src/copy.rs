//! COPY_CHUNK: a write whose bytes come from another chunk, here or on another node, instead of from the client.
//!
//! From where the bytes are there on it is a write like any other: the same identity, so a repetition takes effect once, and the same way down the chain.
//! Must never: read what the client itself could not read.

use crate::admission::Admitted;
use crate::node::Node;
use crate::target::{Asked, Payload, Target, Waiting};
use crate::update::core_update;
use glowfs_craq::Event;
use glowfs_net::{Bulk, Incoming, Request};
use glowfs_rt::{Buf, BufMut, Duration, Instant};
use glowfs_types::capability::rights;
use glowfs_types::checksum::{crc32c, piece_checksums};
use glowfs_types::wire::copy::CopyChunk;
use glowfs_types::wire::data::{Read, ReadOp, ReadResult};
use glowfs_types::wire::method;
use glowfs_types::{Capability, ChunkId, Error, Result, Status, TenantId};
use std::rc::Rc;
use zerocopy::FromBytes;

/// How long another node has to send the bytes.
const READ_DEADLINE: Duration = Duration::from_secs(5);
/// The greatest piece, in bytes.
const PIECE_MAX: u32 = 8 << 20;

impl Node {
    /// A COPY_CHUNK. Nothing of it waits here; the work is spawned.
    pub(crate) fn copy(self: &Rc<Self>, incoming: Incoming) {
        let node = self.clone();
        self.rt.spawn_detached(async move {
            let began = node.rt.now();
            match node.copied(&incoming).await {
                Ok((target, payload, admitted)) => {
                    let head = payload.head;
                    let incoming = Box::new(incoming);
                    // How long the other node takes for the bytes says nothing of this one.
                    let (class, _admitted) = (None, Some(admitted));
                    let waiting = Waiting::Peer { incoming, client: true, began, class, _admitted };
                    node.metrics.copies.inc();
                    node.metrics.write_bytes.add(payload.bytes.len() as u64);
                    target.ask(Asked { waiting, payload: Rc::new(payload) }, |ticket| {
                        let chunk = ChunkId::from(head.chunk);
                        let chain_version = head.chain_version.get().into();
                        Event::Update { ticket, chain_version, chunk, update: core_update(&head) }
                    });
                }
                Err(e) => incoming.reply(Err(e)),
            }
        });
    }

    /// Checks, and fetches the bytes.
    async fn copied(
        self: &Rc<Self>,
        incoming: &Incoming,
    ) -> Result<(Rc<Target>, Payload, Admitted)> {
        self.check_lease()?;
        let ask: CopyChunk = incoming.msg()?;
        let head = ask.head()?;
        let len = head.len.get();
        if len > PIECE_MAX {
            return Err(Error::new(Status::BadMessage, format!("a copy of {len} bytes at once")));
        }
        self.check_writer(incoming, &head)?;
        let capability = Capability::read_from_bytes(&ask.capability)
            .map_err(|_| Error::new(Status::BadCapability, "the capability has a wrong size"))?;
        let what = (ask.from.volume, ask.from.data);
        self.check_capability(incoming, &capability, what, rights::READ)?;
        let target = self.target(head.target.get().into())?;
        if target.store.failure().is_some() {
            return Err(target.refusal(Status::NotServing));
        }
        // While it reads from an own disk it waits for that one, however long that takes; after that, or for another node, for its own.
        let here = ask.node == self.config.node();
        let from = if here { self.target(ask.target)? } else { target.clone() };
        let reading = from.share.admit(u64::from(len))?;
        let bytes = self.source(&ask, &capability, len).await?;
        let admitted = if here {
            drop(reading);
            target.share.admit(u64::from(len))?
        } else {
            reading
        };
        let mut crcs = Vec::new();
        piece_checksums(head.offset.get(), &bytes, &mut crcs);
        self.check_answer()?;
        // Its rights hold at the moment when it begins, however long the bytes took: nothing older comes to the core.
        self.check_writer(incoming, &head)?;
        Ok((target, Payload { head, crcs, bytes }, admitted))
    }

    /// The bytes to write; what does not exist of them is zeros.
    async fn source(
        self: &Rc<Self>,
        ask: &CopyChunk,
        capability: &Capability,
        len: u32,
    ) -> Result<Buf> {
        let op = ReadOp {
            chunk: ask.from.into(),
            target: ask.target.0.into(),
            chain_version: ask.chain_version.0.into(),
            offset: ask.from_offset.into(),
            len: len.into(),
            ..ReadOp::default()
        };
        let buf = self.rt.alloc(len as usize);
        if ask.node == self.config.node() {
            let (result, piece) = self.read_op(op, buf, Instant::NEVER).await;
            check(&result, &piece)?;
            return Ok(piece.freeze());
        }
        let work = async {
            let conn = self.connect(ask.node).await?;
            conn.call(Request {
                method: method::READ,
                body: Read::encode(capability, &[op]),
                bulk: Bulk::Recv(buf),
                tenant: TenantId::default(),
                deadline: READ_DEADLINE,
            })
            .await
        };
        let late = |_| {
            Error::new(Status::TimedOut, format!("storage node {} did not send a piece", ask.node))
        };
        let response = self.rt.timeout(READ_DEADLINE, work).await.map_err(late)??;
        let (result, _) = ReadResult::read_from_prefix(&response.body)
            .map_err(|_| Error::new(Status::BadMessage, "the answer to a read is too short"))?;
        let piece = response.bulk.filter(|_| response.bulk_len == len as usize);
        let mut piece = piece
            .ok_or_else(|| Error::new(Status::BadMessage, "a read came with another length"))?;
        piece.truncate(len as usize);
        check(&result, &piece)?;
        Ok(piece.freeze())
    }
}

/// Whether a piece was read, and is what was read.
fn check(result: &ReadResult, piece: &BufMut) -> Result<()> {
    let status = Status::from_code(result.status.get());
    if status != Status::Ok {
        return Err(Error::new(status, "the chunk that is copied cannot be read there"));
    }
    if result.version.get() > 0 && crc32c(piece) != result.crc.get() {
        return Err(Error::new(Status::Corrupt, "a copied piece changed on its way"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::wire::data::{UpdateHead, update};
    use glowfs_types::{ChainVersion, DataId, NodeId, TargetId, VolumeId};

    fn ask(head: &UpdateHead) -> CopyChunk {
        CopyChunk {
            write: CopyChunk::pack(head),
            from: ChunkId { volume: VolumeId(1), data: DataId(2), index: 3 },
            from_offset: 5,
            target: TargetId(6),
            chain_version: ChainVersion(7),
            node: NodeId(8),
            capability: Vec::new(),
        }
    }

    #[test]
    fn only_a_whole_write_of_some_bytes_is_taken() {
        let good = UpdateHead {
            kind: update::WRITE,
            offset: 4000.into(),
            len: 5000.into(),
            chunk_bytes: 65536.into(),
            ..UpdateHead::default()
        };
        assert_eq!(ask(&good).head().map(|h| h.len.get()), Ok(5000));
        let refused = |head: UpdateHead| assert!(ask(&head).head().is_err(), "{head:?}");
        refused(UpdateHead { kind: update::REPLACE, ..good });
        refused(UpdateHead { len: 0.into(), ..good });
        refused(UpdateHead { len: u32::MAX.into(), ..good });
        refused(UpdateHead { offset: 65536.into(), ..good });
        refused(UpdateHead { chunk_bytes: 65535.into(), ..good });
        assert!(CopyChunk { write: vec![1, 2], ..ask(&good) }.head().is_err());
    }
}
