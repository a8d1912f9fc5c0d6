//! The storage service: capabilities of every wrong kind, and what only services and operators may ask.

use super::lab::*;
use glowfs_net::{Bulk, Conn, Request};
use glowfs_rt::{Buf, Duration};
use glowfs_types::capability::{CapabilityKey, rights};
use glowfs_types::checksum::piece_checksums;
use glowfs_types::wire::data::{
    Read, ReadOp, ReadResult, RemoveData, UPDATE_FULL, UPDATE_SYNC, Update, UpdateHead, update,
};
use glowfs_types::wire::meta::SetAttr;
use glowfs_types::wire::{Empty, encode, method};
use glowfs_types::*;
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

const DEADLINE: Duration = Duration::from_secs(20);
const BLOT: &[u8] = b"what Mallory wrote";

/// A connection, and where the first chunk of a file is.
struct Hand {
    lab: Rc<Lab>,
    conn: Rc<Conn>,
    client: ClientId,
    head: UpdateHead,
}

impl Hand {
    /// At the only storage node, as the client of `token` that it says it is.
    async fn new(lab: &Rc<Lab>, token: &str, client: ClientId, secret: &Secret) -> Self {
        let conn = lab.conn(&lab.storage, token, client).await.expect("a user");
        let routing = secret.client.routing();
        let chain = routing.chains.values().next().expect("a chain");
        let chunk = ChunkId { volume: VolumeId(1), data: secret.file.data(), index: 0 };
        let head = UpdateHead {
            kind: update::WRITE,
            capability: secret.capability,
            chunk: chunk.into(),
            chain: chain.id.0.into(),
            chain_version: chain.version.0.into(),
            target: chain.members[0].target.0.into(),
            len: (BLOT.len() as u32).into(),
            client: client.0.into(),
            channel: 77.into(),
            seq: 1.into(),
            chunk_bytes: secret.file.layout().chunk_bytes.into(),
            ..UpdateHead::default()
        };
        Self { lab: lab.clone(), conn, client, head }
    }
    fn with(&self, capability: Capability) -> UpdateHead {
        UpdateHead { capability, ..self.head }
    }
    async fn send(&self, head: &UpdateHead, method: u16) -> Result<()> {
        let payload =
            if head.kind == update::WRITE || head.kind == update::REPLACE { BLOT } else { b"" };
        let mut crcs = Vec::new();
        piece_checksums(head.offset.get(), payload, &mut crcs);
        let bulk = match payload {
            b"" => Bulk::None,
            p => Bulk::Send(vec![Buf::from_vec(p.to_vec())]),
        };
        let body = Update::encode(head, &crcs);
        let request = Request { method, body, bulk, tenant: TenantId(0), deadline: DEADLINE };
        self.conn.call(request).await.map(|_| ())
    }
    async fn write(&self, capability: Capability) -> Result<()> {
        self.send(&self.with(capability), method::WRITE).await
    }
    async fn read(&self, capability: Capability, chunk: ChunkId) -> Result<Vec<u8>> {
        let op = ReadOp {
            chunk: chunk.into(),
            chain: self.head.chain,
            chain_version: self.head.chain_version,
            target: self.head.target,
            len: (SECRET.len() as u32).into(),
            ..ReadOp::default()
        };
        let request = Request {
            method: method::READ,
            body: Read::encode(&capability, &[op]),
            bulk: Bulk::Recv(self.lab.rt.alloc(SECRET.len())),
            tenant: TenantId(0),
            deadline: DEADLINE,
        };
        let response = self.conn.call(request).await?;
        let result = ReadResult::read_from_bytes(&response.body).expect("one result");
        match Status::from_code(result.status.get()) {
            Status::Ok => Ok(response.bulk.expect("a buffer").to_vec()),
            status => Err(status.into()),
        }
    }
    fn chunk(&self) -> ChunkId {
        self.head.chunk.into()
    }
    async fn remove(&self, capability: Capability) -> Result<()> {
        let ask = RemoveData {
            from: self.chunk(),
            chain: ChainId(self.head.chain.get()),
            chain_version: ChainVersion(self.head.chain_version.get()),
            limit: 10,
            capability: capability.as_bytes().to_vec(),
        };
        call(&self.conn, method::REMOVE_DATA, &ask).await.map(|_| ())
    }
    /// Neither reads, writes, cuts nor removes with it.
    async fn has_no_use_of(&self, capability: Capability, why: &str) {
        println!("{why}");
        refused(self.read(capability, self.chunk()).await, Status::BadCapability);
        refused(self.write(capability).await, Status::BadCapability);
        let cut = UpdateHead { kind: update::TRUNCATE, len: 0.into(), ..self.with(capability) };
        refused(self.send(&cut, method::WRITE).await, Status::BadCapability);
        let remove = UpdateHead { kind: update::REMOVE, ..cut };
        refused(self.send(&remove, method::TRIM).await, Status::BadCapability);
        refused(self.remove(capability).await, Status::BadCapability);
    }
}

#[test]
fn forged_capabilities_are_of_no_use() {
    siege(|lab| async move {
        let secret = lab.secret("secret").await;
        let hand = Hand::new(&lab, &lab.mallory_token, ClientId(0xBAD), &secret).await;
        let good = secret.capability;
        let mine = Capability { client: 0xBADu128.into(), ..good };
        hand.has_no_use_of(Capability::default(), "nothing").await;
        hand.has_no_use_of(mine, "another holder").await;
        hand.has_no_use_of(Capability { client: 0.into(), ..good }, "no holder").await;
        for key in [CapabilityKey([0; 32]), CapabilityKey([0xff; 32])] {
            let id = good.key_id.get();
            hand.has_no_use_of(mine.sign(id, &key), "a key of his own").await;
            hand.has_no_use_of(mine.sign(id + 1, &key), "a key that nobody has").await;
        }
        secret.is_untouched(&lab).await;
        // Alice herself: more than she was given.
        let id = secret.client.id();
        let alice = Hand::new(&lab, &lab.alice_token, id, &secret).await;
        assert_eq!(alice.read(good, alice.chunk()).await.expect("hers"), SECRET);
        let all = rights::READ | rights::WRITE | rights::REMOVE;
        for forged in [
            Capability { rights: all.into(), ..good },
            Capability { expiry_ns: u64::MAX.into(), ..good },
            Capability { epoch: 9.into(), ..good },
            Capability { data: (good.data.get() + 1).into(), ..good },
        ] {
            alice.has_no_use_of(forged, "a field changed").await;
        }
        let chunk = alice.chunk();
        for other in [
            ChunkId { data: DataId(chunk.data.0 + 1), ..chunk },
            ChunkId { volume: VolumeId(2), ..chunk },
        ] {
            refused(alice.read(good, other).await, Status::BadCapability);
            let head = UpdateHead { chunk: other.into(), ..alice.head };
            refused(alice.send(&head, method::WRITE).await, Status::BadCapability);
        }
        // Removing is for garbage collection.
        let remove = UpdateHead { kind: update::REMOVE, len: 0.into(), ..alice.head };
        refused(alice.send(&remove, method::TRIM).await, Status::BadCapability);
        refused(alice.remove(good).await, Status::BadCapability);
        secret.is_untouched(&lab).await;
    });
}

#[test]
fn borrowed_capabilities_are_of_no_use() {
    siege(|lab| async move {
        let secret = lab.secret("secret").await;
        let good = secret.capability;
        let mallory = Hand::new(&lab, &lab.mallory_token, ClientId(0xBAD), &secret).await;
        mallory.has_no_use_of(good, "by another user").await;
        let nobody = Hand::new(&lab, &lab.mallory_token, ClientId(0), &secret).await;
        refused(nobody.read(good, nobody.chunk()).await, Status::BadCapability);
        refused(nobody.write(good).await, Status::AccessDenied);
        // Another client of the same user has to open the file itself.
        let second = lab.client(&lab.alice_token).await;
        let hand = Hand::new(&lab, &lab.alice_token, second.id(), &secret).await;
        hand.has_no_use_of(good, "by another client of hers").await;
        // An update in her client's name: its channels remember what was done.
        let name = secret.client.id().0;
        for hand in [&mallory, &nobody, &hand] {
            let head = UpdateHead { client: name.into(), ..hand.head };
            refused(hand.send(&head, method::WRITE).await, Status::AccessDenied);
            let head = UpdateHead { client: 0.into(), ..hand.head };
            refused(hand.send(&head, method::WRITE).await, Status::AccessDenied);
        }
        secret.is_untouched(&lab).await;
    });
}

#[test]
fn expired_capabilities_are_of_no_use() {
    siege(|lab| async move {
        let secret = lab.secret("secret").await;
        let id = secret.client.id();
        let alice = Hand::new(&lab, &lab.alice_token, id, &secret).await;
        assert_eq!(alice.read(secret.capability, alice.chunk()).await.expect("hers"), SECRET);
        lab.rt.sleep(Duration::from_secs(31)).await;
        alice.has_no_use_of(secret.capability, "expired").await;
        secret.is_untouched(&lab).await;
    });
}

/// A client that answers a recall and writes on with what it had.
#[test]
fn capabilities_of_before_a_truncate_or_a_removal_write_nothing() {
    siege(|lab| async move {
        let secret = lab.secret("secret").await;
        let id = secret.client.id();
        let alice = Hand::new(&lab, &lab.alice_token, id, &secret).await;
        let old = secret.capability;
        let mut late = alice.head;
        late.offset = 100.into();
        alice.send(&late, method::WRITE).await.expect("it was good once");
        let cut = |len| SetAttr {
            caller: caller(id, ALICE),
            inode: secret.attr.inode,
            len: Some(len),
            ..SetAttr::default()
        };
        secret.client.setattr(cut(SECRET.len() as u64)).await.expect("cut");
        late.seq = 2.into();
        refused(alice.send(&late, method::WRITE).await, Status::BadCapability);
        let extended = 200;
        secret.client.setattr(cut(extended)).await.expect("longer");
        let (result, buf) = secret.file.read(0, lab.rt.alloc(extended as usize)).await;
        result.expect("readable");
        assert_eq!(&buf[..SECRET.len()], SECRET);
        assert!(buf[SECRET.len()..].iter().all(|b| *b == 0), "something came in late");
        // Now it is cut to nothing: its data go, and nothing comes after that.
        secret.client.setattr(cut(0)).await.expect("cut");
        lab.rt.sleep(Duration::from_secs(5)).await;
        late.seq = 3.into();
        refused(alice.send(&late, method::WRITE).await, Status::BadCapability);
        refused(alice.write(old).await, Status::BadCapability);
    });
}

#[test]
fn what_is_for_services_and_operators_is_not_for_users() {
    siege(|lab| async move {
        let secret = lab.secret("secret").await;
        let id = secret.client.id();
        let alice = Hand::new(&lab, &lab.alice_token, id, &secret).await;
        for m in [
            method::SYNC_LIST,
            method::SYNC_DONE,
            method::QUERY_EXTENT,
            method::FETCH_CHUNK,
            method::LIST_DATA,
            method::VOUCH,
        ] {
            refused(call(&alice.conn, m, &Empty {}).await, Status::AccessDenied);
        }
        for m in [
            method::QUERY_CHUNK,
            method::LIST_CHUNKS,
            method::STORAGE_INFO,
            method::DAMAGED,
            method::TAKE_DISK,
        ] {
            refused(call(&alice.conn, m, &Empty {}).await, Status::AccessDenied);
        }
        let forward = UpdateHead { version: 9.into(), ..alice.head };
        refused(alice.send(&forward, method::FORWARD).await, Status::AccessDenied);
        let replace = UpdateHead { kind: update::REPLACE, ..alice.head };
        refused(alice.send(&replace, method::WRITE).await, Status::BadMessage);
        for flags in [UPDATE_SYNC, UPDATE_FULL, 0x80] {
            let head = UpdateHead { flags, ..alice.head };
            refused(alice.send(&head, method::WRITE).await, Status::BadMessage);
        }
        for m in [method::LOOKUP, method::KV_GET, method::HEARTBEAT, method::RECALL, 9999] {
            refused(call(&alice.conn, m, &Empty {}).await, Status::UnknownMethod);
        }
        // A writer with a right of its own, on a target or a chain that is not what it says.
        let head = UpdateHead { target: 0xDEAD.into(), ..alice.head };
        refused(alice.send(&head, method::WRITE).await, Status::NoTarget);
        let version = alice.head.chain_version.get() + 1;
        let head = UpdateHead { chain_version: version.into(), ..alice.head };
        refused(alice.send(&head, method::WRITE).await, Status::WrongChainVersion);
        secret.is_untouched(&lab).await;
    });
}

#[test]
fn bodies_that_are_none_are_refused() {
    siege(|lab| async move {
        let secret = lab.secret("secret").await;
        let id = secret.client.id();
        let alice = Hand::new(&lab, &lab.alice_token, id, &secret).await;
        assert_eq!(alice.client, id);
        let write = Update::encode(&alice.head, &[1]);
        let op = ReadOp { chunk: alice.head.chunk, len: 10.into(), ..ReadOp::default() };
        let read = Read::encode(&secret.capability, &[op]);
        let flush = encode(&Empty {});
        for (m, good) in [
            (method::WRITE, &write),
            (method::TRIM, &write),
            (method::READ, &read),
            (method::REMOVE_DATA, &write),
            (method::FLUSH, &flush),
        ] {
            for body in bad_bodies(good) {
                refused(call_raw(&alice.conn, m, body).await, Status::BadMessage);
            }
        }
        // No room for what it asks for; more bytes than it brings; past the end of its chunk.
        refused(call_raw(&alice.conn, method::READ, read).await, Status::BadMessage);
        refused(call_raw(&alice.conn, method::WRITE, write).await, Status::BadMessage);
        let past = UpdateHead { offset: alice.head.chunk_bytes, ..alice.head };
        refused(alice.send(&past, method::WRITE).await, Status::BadMessage);
        secret.is_untouched(&lab).await;
    });
}
