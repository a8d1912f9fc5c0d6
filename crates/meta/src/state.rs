//! What all parts of the service share.

use crate::append::AskedBack;
use crate::callbacks::Peers;
use crate::config::MetaConfig;
use crate::cuts_ended::CutsEnded;
use crate::cuts_under_way::CutsUnderWay;
use crate::fair::Fair;
use crate::finishing::Finishing;
use crate::fought::Fought;
use crate::held::Held;
use crate::ids::Ids;
use crate::leases::Leases;
use crate::locks::LockWaits;
use crate::metrics::Metrics;
use crate::orphans::Orphans;
use crate::pace::Pace;
use crate::reopen::Listed;
use crate::spills::Spills;
use crate::telling::Telling;
use crate::together::Together;
use crate::users::Users;
use glowfs_agent::Agent;
use glowfs_client::ChunkIo;
use glowfs_kv::{Engine, RunOptions, Sent, Transaction, run_transaction_telling};
use glowfs_namespace::{Env, Opened};
use glowfs_net::{Conn, Identity};
use glowfs_rt::sync::Shares;
use glowfs_rt::{Duration, Instant, Rt};
use glowfs_types::capability::rights;
use glowfs_types::layout::start_of;
use glowfs_types::wire::meta::{Attr, OpenReply, StatFsReply, Time};
use glowfs_types::{
    Capability, ClientId, DataId, Error, InodeId, Layout, NodeId, Result, SessionId, Status,
    TruncateEpoch, UserId, VolumeId,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use zerocopy::IntoBytes;

/// The first volume; the only one so far.
pub const VOLUME: VolumeId = VolumeId(1);

/// The service's state, shared by its tasks.
pub struct Service {
    /// Itself, for work that outlives the call that began it.
    pub own: Weak<Service>,
    pub rt: Rt,
    pub config: MetaConfig,
    pub engine: Rc<dyn Engine>,
    pub agent: Agent,
    pub chunks: ChunkIo,
    pub inode_ids: Rc<Ids>,
    pub data_ids: Rc<Ids>,
    pub users: Users,
    pub metrics: Metrics,
    /// The root directory and the first ids are there.
    pub ready: Cell<bool>,
    /// Why the service cannot go on, if so.
    pub fatal: RefCell<Option<Error>>,
    pub stopping: Cell<bool>,
    /// Calls in work, by who has asked for them.
    pub inflight: Shares<Asker>,
    /// The thread's time for them.
    pub fair: Fair,
    /// The search for chunks that nobody owns.
    pub orphans: Orphans,
    /// Chunks that were collected as garbage so far.
    pub gc_pace: Pace,
    /// Who may have cached what.
    pub leases: RefCell<Leases<Rc<Conn>>>,
    /// Who is being told of changes.
    pub telling: Telling,
    /// Changes of names whose own clients may still show what was before.
    pub finishing: Finishing<Rc<Conn>>,
    /// Where names are not leased for a while.
    pub fought: RefCell<Fought>,
    /// Who waits for locks, or to append.
    pub lock_waits: LockWaits,
    /// Rights to append that are being asked back.
    pub asked_back: AskedBack,
    /// Changes of one inode at once; none where the engine is in this process.
    pub together: Option<Together>,
    /// Contents on their way into chunks.
    pub spills: Spills,
    /// Truncates that are being finished.
    pub cuts: CutsUnderWay,
    /// Those whose end is not on disk yet.
    pub cuts_ended: CutsEnded,
    /// The clients that mgmtd listed a moment ago.
    pub listed: Listed,
    /// What the engine holds.
    pub held: Held,
    /// When this life of the service began.
    pub started: Instant,
    /// Connections that peers opened to us; set when the service listens.
    pub peers: RefCell<Option<Peers>>,
    pub space: RefCell<StatFsReply>,
    /// Capacity and free bytes that each storage node said last.
    pub space_of: RefCell<BTreeMap<NodeId, (u64, u64)>>,
}

/// Whose calls are counted together: all of a user who has a token of his own, with however many clients; of a client that speaks for many users its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Asker {
    /// One user.
    User(UserId),
    /// One client with a token that stands for all users, or a service.
    Client(ClientId),
}

impl Asker {
    /// Whose calls come by this connection.
    pub fn of(conn: &Conn) -> Self {
        let peer = conn.peer();
        match peer.identity {
            Identity { root: false, service: false, user, .. } => Self::User(user),
            _ => Self::Client(peer.client),
        }
    }
}

impl Service {
    /// Itself, to be kept.
    pub fn own(&self) -> Result<Rc<Service>> {
        self.own.upgrade().ok_or_else(|| Error::from(Status::ShuttingDown))
    }

    /// Fetches ids before they run out.
    pub fn keep_ids(&self) {
        self.inode_ids.keep_filled(&self.rt, &self.engine, VOLUME);
        self.data_ids.keep_filled(&self.rt, &self.engine, VOLUME);
    }

    /// Runs a transaction. `once`: its request id makes a repetition harmless.
    pub async fn run<T>(
        &self,
        durable: bool,
        once: bool,
        work: impl AsyncFn(&Transaction) -> Result<T>,
    ) -> Result<T> {
        self.run_with(self.options(durable, once), work).await
    }

    /// How [`Service::run`] runs one.
    pub fn options(&self, durable: bool, once: bool) -> RunOptions {
        let flush = self.config.tuning.commit == crate::CommitMode::Flush;
        RunOptions { durable: durable || flush, idempotent: once, ..RunOptions::default() }
    }

    /// The same, run in another way.
    pub async fn run_with<T>(
        &self,
        options: RunOptions,
        work: impl AsyncFn(&Transaction) -> Result<T>,
    ) -> Result<T> {
        self.run_telling(options, work, |_| {}).await
    }

    /// The same, and `tell` hears of each attempt's commit.
    pub async fn run_telling<T>(
        &self,
        options: RunOptions,
        work: impl AsyncFn(&Transaction) -> Result<T>,
        tell: impl Fn(Sent),
    ) -> Result<T> {
        let first = Cell::new(true);
        let counted = async |tx: &Transaction| {
            let metrics = &self.metrics;
            let count = if first.replace(false) {
                &metrics.transactions
            } else {
                &metrics.transactions_again
            };
            count.inc();
            work(tx).await
        };
        run_transaction_telling(&self.rt, &self.engine, options, counted, tell).await
    }

    /// The same for reading.
    pub async fn look<T>(&self, work: impl AsyncFn(&Transaction) -> Result<T>) -> Result<T> {
        self.run_with(RunOptions { idempotent: true, ..RunOptions::default() }, work).await
    }

    /// A capability for the chunks of a file. `holder` is the client that gets it; 0: this service uses it itself.
    pub fn capability(
        &self,
        attr: &Attr,
        (holder, session): (ClientId, SessionId),
        rights: u32,
    ) -> Result<Capability> {
        let ends = self.capability_end();
        let (inode, epoch) = (attr.inode, attr.epoch);
        let cap = Capability::new(VOLUME, inode, attr.data, session, epoch, ends, rights);
        self.sign(cap.bound_to(holder))
    }

    /// A capability for data without an inode.
    pub fn removal(&self, data: DataId) -> Result<Capability> {
        let (inode, session, epoch) = (InodeId(0), SessionId(0), TruncateEpoch(0));
        let ends = self.capability_end();
        self.sign(Capability::new(VOLUME, inode, data, session, epoch, ends, rights::REMOVE))
    }

    fn capability_end(&self) -> u64 {
        self.agent.cluster_ns().saturating_add(self.config.tuning.capability_ms * 1_000_000)
    }

    fn sign(&self, capability: Capability) -> Result<Capability> {
        let (key_id, key) = self.agent.signing_key().ok_or_else(|| {
            Error::new(Status::NoLease, "no key to sign capabilities yet; mgmtd has not answered")
        })?;
        Ok(capability.sign(key_id, &key))
    }

    /// The answer to an open.
    pub fn open_reply(&self, opened: Opened, holder: ClientId, lease_ms: u64) -> Result<OpenReply> {
        let mut bits = 0;
        // While the contents are with the metadata nobody touches chunks; who believes otherwise is refused by the storage nodes.
        let chunks = !opened.attr.inline;
        if opened.read && chunks {
            bits |= rights::READ;
        }
        if opened.write && chunks {
            bits |= rights::WRITE;
        }
        let capability = if opened.attr.kind == glowfs_types::wire::meta::InodeKind::File {
            let session = opened.session.unwrap_or_default();
            self.capability(&opened.attr, (holder, session), bits)?.as_bytes().to_vec()
        } else {
            Vec::new()
        };
        Ok(OpenReply {
            attr: opened.attr,
            session: opened.session,
            capability,
            capability_ms: self.config.tuning.capability_ms,
            lease_ms,
            content: opened.content.map(Into::into),
        })
    }
}

impl Env for Service {
    fn now(&self) -> Time {
        let ns = self.rt.unix_ns();
        Time { secs: (ns / 1_000_000_000) as i64, nanos: (ns % 1_000_000_000) as u32 }
    }
    fn memory_secs(&self) -> Option<i64> {
        Some((self.agent.cluster_ns() / 1_000_000_000) as i64)
    }
    fn new_id(&self) -> Result<u64> {
        let id = self.inode_ids.take();
        self.keep_ids();
        id
    }
    fn new_data(&self) -> Result<DataId> {
        let id = self.data_ids.take();
        self.keep_ids();
        id.map(DataId)
    }
    fn place(&self, inherited: &Layout, data: DataId) -> Result<Layout> {
        let routing = self.agent.routing();
        let table = routing.newest_table(inherited.table).filter(|t| !t.chains.is_empty());
        let table = table.ok_or_else(|| {
            Error::new(
                Status::ChainUnavailable,
                format!(
                    "chain table {} does not exist yet; create it with `glowfs admin create-table`",
                    inherited.table
                ),
            )
        })?;
        let len = table.chains.len() as u32;
        Ok(Layout { table_version: table.version, start: start_of(data, len), ..*inherited })
    }
    fn check_layout(&self, layout: &Layout, stripe: bool) -> Result<()> {
        let routing = self.agent.routing();
        let table = routing.newest_table(layout.table).filter(|t| !t.chains.is_empty());
        let bad = |what| Err(Error::new(Status::InvalidArgument, what));
        match table.map(|t| t.chains.len()) {
            None => bad(format!("there is no chain table {}", layout.table)),
            Some(n) if stripe && layout.stripe as usize > n => bad(format!(
                "stripe {}: chain table {} has {n} chains",
                layout.stripe, layout.table
            )),
            Some(_) => Ok(()),
        }
    }
    fn knows_layout(&self, layout: &Layout, directory: bool) -> bool {
        let routing = self.agent.routing();
        let table = if directory {
            routing.newest_table(layout.table)
        } else {
            routing.table(layout.table, layout.table_version)
        };
        // A cluster without any table yet has no files; its directories name the one that will be made.
        let none_yet = directory && routing.tables.is_empty();
        none_yet
            || table.is_some_and(|t| {
                let on_it = directory || (layout.start as usize) < t.chains.len();
                on_it && t.chains.iter().all(|c| routing.chains.contains_key(c))
            })
    }
    fn can_cut(&self, layout: &Layout) -> bool {
        !self.chunks.is_away(layout)
    }
    fn keeps_removed(&self) -> bool {
        true
    }
    fn room_for_contents(&self) -> bool {
        self.has_room_for_contents()
    }
    fn room_for_xattrs(&self) -> bool {
        self.has_room_for_xattrs()
    }
    fn usage_shard(&self) -> u8 {
        // Services are numbered one after the other; two of the same shard are only slower.
        self.config.node().0 as u8
    }
    fn request_keep_secs(&self) -> u64 {
        (self.config.tuning.request_keep_ms / 1000).max(1)
    }
}

/// A number of milliseconds as a duration.
pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
