//! WRITE and FORWARD: from the connection to the core.

use crate::behind::{Class, Kind};
use crate::node::Node;
use crate::target::{Asked, Payload, Waiting};
use glowfs_craq::{Event, Forwarded, Origin, Update as Core};
use glowfs_net::Incoming;
use glowfs_rt::Buf;
use glowfs_types::capability::rights;
use glowfs_types::checksum::verify_pieces;
use glowfs_types::wire::data::{
    UPDATE_FLUSH, UPDATE_FULL, UPDATE_SYNC, UPDATE_VOUCHES, Update, UpdateHead, update,
};
use glowfs_types::{Capability, ChunkId, ClientId, DataId, Error, Result, Status, VolumeId};
use std::rc::Rc;

impl Node {
    /// An update of a client (`forward` false) or of the predecessor.
    pub(crate) fn update(self: &Rc<Self>, mut incoming: Incoming, forward: bool) {
        match self.take_update(&mut incoming, forward) {
            Ok((target, payload, admitted)) => {
                let own = payload.clone();
                let head = &own.head;
                let began = self.rt.now();
                let incoming = Box::new(incoming);
                let kind = if forward { Kind::Forward } else { Kind::Update };
                let of_client = head.flags & UPDATE_SYNC == 0;
                let class = of_client.then(|| Class::new(kind, payload.bytes.len() as u64));
                let _admitted = Some(admitted);
                let waiting = Waiting::Peer { incoming, client: !forward, began, class, _admitted };
                if !forward {
                    self.metrics.write_bytes.add(payload.bytes.len() as u64);
                }
                target.ask(Asked { waiting, payload }, |ticket| {
                    let (chunk, chain_version) =
                        (ChunkId::from(head.chunk), head.chain_version.get().into());
                    let update = core_update(head);
                    if !forward {
                        return Event::Update { ticket, chain_version, chunk, update };
                    }
                    Event::Forward(
                        ticket,
                        Forwarded {
                            chain_version,
                            chunk,
                            version: head.version.get().into(),
                            base: head.base.get().into(),
                            generation: head.generation.get(),
                            full: head.flags & UPDATE_FULL != 0,
                            sync: head.flags & UPDATE_SYNC != 0,
                            update,
                        },
                    )
                });
                if forward && head.flags & (UPDATE_VOUCHES | UPDATE_SYNC) == UPDATE_VOUCHES {
                    target.ask_soon(self);
                }
            }
            Err(e) => {
                if e.status == Status::Overloaded {
                    self.metrics.overloaded.inc();
                }
                incoming.reply(Err(e));
            }
        }
    }

    fn take_update(
        &self,
        incoming: &mut Incoming,
        forward: bool,
    ) -> Result<(Rc<crate::target::Target>, Rc<Payload>, crate::admission::Admitted)> {
        self.check_lease()?;
        let parsed = Update::parse(incoming.body())?;
        let (head, crcs) = (*parsed.head, parsed.crcs.iter().map(|c| c.get()).collect());
        let target = self.target(head.target.get().into())?;
        if forward {
            self.require_service(incoming)?;
            // Its head let it in; here it is only noted.
            let _ = self.fences.pass(&head.capability, self.cluster_ns());
        } else {
            self.check_writer(incoming, &head)?;
        }
        let has_payload = matches!(head.kind, update::WRITE | update::REPLACE);
        let want = if has_payload { head.len.get() as usize } else { 0 };
        if incoming.bulk_len() != want {
            return Err(Error::new(
                Status::BadMessage,
                format!("an update of {want} bytes came with {}", incoming.bulk_len()),
            ));
        }
        let share = &target.share;
        let admitted = if forward {
            share.admit_forward(want as u64, target.view().map_or(0, |v| v.rank))
        } else {
            share.admit(want as u64)
        }?;
        let bytes = if want > 0 { incoming.take_bulk()? } else { Buf::from_vec(Vec::new()) };
        if bytes.len() != want {
            return Err(Error::new(
                Status::BadMessage,
                "the bulk has another length than announced",
            ));
        }
        let mut payload = Payload { head, crcs, bytes };
        if !forward {
            self.check_payload(incoming, &mut payload)?;
        }
        Ok((target, Rc::new(payload), admitted))
    }

    /// What a client sent, as all replicas will see it: out of memory in which it could change the bytes between the check of one replica and
    /// that of the next, and right. What one of them refuses and another one has taken ends a target. Who may do everything (a mount, a service)
    /// is believed, and its memory used in place.
    fn check_payload(&self, incoming: &Incoming, payload: &mut Payload) -> Result<()> {
        let identity = incoming.conn().peer().identity;
        if identity.service || identity.root || payload.bytes.is_empty() {
            return Ok(());
        }
        let Payload { head, crcs, bytes } = payload;
        if incoming.bulk_is_shared() {
            let mut own = self.rt.alloc(bytes.len());
            own.copy_from_slice(bytes);
            *bytes = own.freeze();
        }
        if !verify_pieces(head.offset.get(), bytes, crcs.iter().copied()) {
            let e = "the payload does not match its checksums; send it again";
            return Err(Error::new(
                Status::Corrupt,
                format!("chunk {}: {e}", ChunkId::from(head.chunk)),
            ));
        }
        Ok(())
    }

    /// Only services of the cluster may do what follows.
    pub(crate) fn require_service(&self, incoming: &Incoming) -> Result<()> {
        if incoming.conn().peer().identity.service {
            return Ok(());
        }
        Err(Error::new(Status::AccessDenied, "only services of the cluster may call this"))
    }

    /// Whether a client may have this update made.
    pub(crate) fn check_writer(&self, incoming: &Incoming, head: &UpdateHead) -> Result<()> {
        if !matches!(head.kind, update::WRITE | update::TRUNCATE | update::REMOVE) {
            return Err(Error::new(Status::BadMessage, "a client may not replace chunks"));
        }
        if head.flags & !UPDATE_FLUSH != 0 {
            return Err(Error::new(Status::BadMessage, "a client may not set these flags"));
        }
        let peer = incoming.conn().peer();
        let client = ClientId(head.client.get());
        if client == ClientId(0) || (client != peer.client && !peer.identity.service) {
            return Err(Error::new(
                Status::AccessDenied,
                "an update must name the client that the connection was opened by",
            ));
        }
        let chunk = ChunkId::from(head.chunk);
        let want = if head.kind == update::REMOVE { rights::REMOVE } else { rights::WRITE };
        self.check_capability(incoming, &head.capability, (chunk.volume, chunk.data), want)?;
        self.fences.pass(&head.capability, self.cluster_ns())
    }

    /// Checks a capability with the keys that mgmtd gave, and that it comes from the client that it was issued to.
    pub(crate) fn check_capability(
        &self,
        incoming: &Incoming,
        capability: &Capability,
        (volume, data): (VolumeId, DataId),
        rights: u32,
    ) -> Result<()> {
        let keys = self.agent().map(|a| a.capability_keys()).unwrap_or_default();
        self.verified.check(&keys, capability)?;
        capability.check_terms(self.cluster_ns(), volume, data, rights)?;
        let peer = incoming.conn().peer();
        if !peer.identity.service && !capability.is_for(peer.client) {
            return Err(Error::new(
                Status::BadCapability,
                "capability was issued to another client; open the file yourself",
            ));
        }
        Ok(())
    }
}

/// What the core needs to know of an update.
pub(crate) fn core_update(head: &UpdateHead) -> Core {
    let client = ClientId(head.client.get());
    let origin = (client != ClientId(0) && head.flags & UPDATE_SYNC == 0).then(|| Origin {
        client,
        channel: head.channel.get().into(),
        seq: head.seq.get().into(),
    });
    Core {
        origin,
        flush: head.flags & UPDATE_FLUSH != 0,
        needs_room: matches!(head.kind, update::WRITE | update::REPLACE),
        removes: head.kind == update::REMOVE,
        vouches: head.flags & UPDATE_VOUCHES != 0,
    }
}
