//! [`Remote`]: an engine that another process hosts.

use crate::{Engine, Key, RangePage, Value, Version};
use glowfs_net::{Conn, Connector, Target};
use glowfs_rt::{BoxFuture, Duration, Rt};
use glowfs_types::wire::kv::{
    BeginReply, Commit, CommitReply, Get, GetRange, GetRangeReply, GetReply, Keep,
};
use glowfs_types::wire::{Empty, method};
use glowfs_types::{Error, Result, Status};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Lives of the host that are remembered, for transactions that began in one of them.
const LIVES_MAX: usize = 8;

/// How long one call may take.
const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// An engine over RPC, served with [`crate::serve::KvService`]. Cloning it gives another handle.
#[derive(Clone)]
pub struct Remote {
    rt: Rt,
    connector: Rc<Connector>,
    target: Rc<Target>,
    /// The first versions of the host's lives, ascending.
    lives: Rc<RefCell<VecDeque<Version>>>,
}

impl Remote {
    /// The engine at one of `addresses`. Connects with the first call.
    pub fn new(rt: &Rt, connector: Rc<Connector>, addresses: Vec<String>) -> Self {
        let target = Target { addresses, ..Target::default() };
        let lives = Rc::default();
        Self { rt: rt.clone(), connector, target: Rc::new(target), lives }
    }

    /// An answer to KV_BEGIN. It may come after one of a later life.
    fn began(lives: &RefCell<VecDeque<Version>>, reply: &BeginReply) {
        let mut lives = lives.borrow_mut();
        let place = lives.partition_point(|l| *l < reply.life);
        if reply.life != 0 && lives.get(place) != Some(&reply.life) {
            lives.insert(place, reply.life);
            if lives.len() > LIVES_MAX {
                lives.pop_front();
            }
        }
    }

    async fn conn(&self) -> Result<Rc<Conn>> {
        match self.rt.timeout(CALL_DEADLINE, self.connector.connect_to(&self.target)).await {
            Ok(conn) => conn.map_err(|e| Error::new(Status::Disconnected, self.place(&e.message))),
            Err(_) => Err(Error::new(Status::Disconnected, self.place("no connection in time"))),
        }
    }

    fn place(&self, what: &str) -> String {
        format!("metadata engine at {}: {what}", self.target.addresses.join(", "))
    }

    fn ask<Q, R, T>(
        &self,
        method: u16,
        q: Q,
        take: impl FnOnce(R) -> T + 'static,
    ) -> BoxFuture<Result<T>>
    where
        Q: minicbor::Encode<()> + 'static,
        R: for<'b> minicbor::Decode<'b, ()> + 'static,
        T: 'static,
    {
        let this = self.clone();
        Box::pin(async move {
            let conn = this.conn().await?;
            conn.call_msg::<Q, R>(method, &q, CALL_DEADLINE).await.map(take)
        })
    }
}

impl Engine for Remote {
    fn begin(&self) -> BoxFuture<Result<Version>> {
        let lives = self.lives.clone();
        self.ask(method::KV_BEGIN, Empty {}, move |r: BeginReply| {
            Self::began(&lives, &r);
            r.version
        })
    }

    fn life(&self, version: Version) -> u64 {
        let lives = self.lives.borrow();
        let place = lives.partition_point(|l| *l <= version);
        place.checked_sub(1).map_or(0, |at| lives[at])
    }

    fn get(&self, version: Version, keys: Vec<Key>) -> BoxFuture<Result<Vec<Option<Value>>>> {
        let (this, mut values) = (self.clone(), Vec::with_capacity(keys.len()));
        let mut left = vec![Get { version, keys: keys.into_iter().map(Into::into).collect() }];
        Box::pin(async move {
            // As many in a call as its answer can hold.
            while let Some(mut get) = left.pop() {
                let conn = this.conn().await?;
                match conn.call_msg::<_, GetReply>(method::KV_GET, &get, CALL_DEADLINE).await {
                    Ok(r) => values.extend(r.values.into_iter().map(|v| v.map(Into::into))),
                    Err(e) if e.status == Status::TooLarge && get.keys.len() > 1 => {
                        let keys = get.keys.split_off(get.keys.len() / 2);
                        left.extend([Get { version, keys }, get]);
                    }
                    Err(e) => return Err(e),
                }
            }
            Ok(values)
        })
    }

    fn get_range(
        &self,
        version: Version,
        begin: Key,
        end: Key,
        limit: u32,
        reverse: bool,
    ) -> BoxFuture<Result<RangePage>> {
        let get = GetRange { version, begin, end, limit, reverse };
        self.ask(method::KV_GET_RANGE, get, |r: GetRangeReply| RangePage {
            entries: r.entries.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
            more: r.more,
        })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<Result<Version>> {
        let read_only = commit.mutations.is_empty() && commit.write_conflicts.is_empty();
        if read_only && !commit.durable {
            // The host gives out settled versions only.
            return Box::pin(std::future::ready(Ok(commit.read_version)));
        }
        let this = self.clone();
        Box::pin(async move {
            // Not sent yet: a failure here is no unknown outcome.
            let conn = this.conn().await?;
            // The host knows by itself what was there.
            let commit = Commit { present: None, ..commit };
            let reply = conn.call_msg::<_, CommitReply>(method::KV_COMMIT, &commit, CALL_DEADLINE);
            match reply.await {
                Ok(r) => Ok(r.version),
                Err(e) if matches!(e.status, Status::TimedOut | Status::Disconnected) => {
                    Err(Error::new(Status::CommitUnknown, this.place(&e.message)))
                }
                Err(e) => Err(e),
            }
        })
    }

    fn keep(&self, version: Version) -> BoxFuture<Result<()>> {
        let asked = self.ask(method::KV_KEEP, Keep { version }, |_: Empty| ());
        Box::pin(async move {
            match asked.await {
                // A host of an older release keeps what it keeps.
                Err(e) if e.status == Status::UnknownMethod => Ok(()),
                other => other,
            }
        })
    }

    fn flush_barrier(&self) -> BoxFuture<Result<()>> {
        let commit = Commit { durable: true, ..Commit::default() };
        self.ask(method::KV_COMMIT, commit, |_: CommitReply| ())
    }
}
