//! [`KvService`]: answers KV_* calls of other services over an engine of this process.

use crate::Engine;
use glowfs_net::{Incoming, Reply};
use glowfs_rt::Rt;
use glowfs_types::wire::kv::{
    BeginReply, Commit, CommitReply, Get, GetRange, GetRangeReply, GetReply, Keep,
};
use glowfs_types::wire::{Empty, method};
use glowfs_types::{Error, Result, Status};
use std::cell::Cell;
use std::rc::Rc;

/// Calls served at a time; more are refused with `Overloaded`.
const CALLS_MAX: usize = 4096;
/// Keys in one KV_GET.
const GET_KEYS_MAX: usize = 4096;
/// Bytes of values in the answer to one, about: it has to fit into a message. Who asks for more is told to ask for fewer keys.
const GET_BYTES_MAX: usize = 3 << 20;

/// A part of a service's handler: give it the calls that [`KvService::takes`].
pub struct KvService {
    rt: Rt,
    engine: Rc<dyn Engine>,
    running: Rc<Cell<usize>>,
}

impl KvService {
    /// Serves `engine`.
    pub fn new(rt: &Rt, engine: Rc<dyn Engine>) -> Self {
        Self { rt: rt.clone(), engine, running: Rc::default() }
    }

    /// Whether a method is one of the engine's.
    pub fn takes(method: u16) -> bool {
        matches!(
            method,
            method::KV_BEGIN
                | method::KV_GET
                | method::KV_GET_RANGE
                | method::KV_COMMIT
                | method::KV_KEEP
        )
    }

    /// Answers a call. Only services of the cluster may make it: the engine holds everybody's metadata.
    pub fn handle(&self, incoming: Incoming) {
        if !incoming.conn().peer().identity.service {
            let e = Error::new(
                Status::AccessDenied,
                "the metadata engine answers services of the cluster only",
            );
            incoming.reply(Err(e));
            return;
        }
        if self.running.get() >= CALLS_MAX {
            incoming.reply(Err(Error::new(
                Status::Overloaded,
                "the metadata engine has too many calls waiting",
            )));
            return;
        }
        let running = self.running.clone();
        running.set(running.get() + 1);
        let engine = self.engine.clone();
        self.rt.spawn_detached(async move {
            let result = answer(&engine, incoming.method(), incoming.body()).await;
            running.set(running.get() - 1);
            incoming.reply(result.map(Reply::body));
        });
    }
}

/// The answer's body to a call. Apart from the connection, so that tests can do without one.
pub async fn answer(engine: &Rc<dyn Engine>, method: u16, body: &[u8]) -> Result<Vec<u8>> {
    use glowfs_types::wire::{decode, encode};
    match method {
        method::KV_BEGIN => {
            let version = engine.begin().await?;
            // The caller does not come back to settle what it only read: give out what is settled.
            engine.commit(settle(version)).await?;
            Ok(encode(&BeginReply { version, life: engine.life(version) }))
        }
        method::KV_GET => {
            let get: Get = decode(body)?;
            if get.keys.len() > GET_KEYS_MAX {
                return Err(Error::new(
                    Status::TooLarge,
                    format!("more than {GET_KEYS_MAX} keys in a call"),
                ));
            }
            let keys = get.keys.into_iter().map(Into::into).collect();
            let values = engine.get(get.version, keys).await?;
            if values.iter().flatten().map(Vec::len).sum::<usize>() > GET_BYTES_MAX {
                let e = format!("values of more than {GET_BYTES_MAX} bytes in an answer");
                return Err(Error::new(Status::TooLarge, e));
            }
            Ok(encode(&GetReply {
                values: values.into_iter().map(|v| v.map(Into::into)).collect(),
            }))
        }
        method::KV_GET_RANGE => {
            let get: GetRange = decode(body)?;
            let page =
                engine.get_range(get.version, get.begin, get.end, get.limit, get.reverse).await?;
            let entries = page.entries.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
            Ok(encode(&GetRangeReply { entries, more: page.more }))
        }
        method::KV_COMMIT => {
            let commit: Commit = decode(body)?;
            let version = engine.commit(commit).await?;
            Ok(encode(&CommitReply { version }))
        }
        method::KV_KEEP => {
            let keep: Keep = decode(body)?;
            engine.keep(keep.version).await?;
            Ok(encode(&Empty {}))
        }
        m => Err(Error::new(Status::UnknownMethod, format!("method {m} is not of the engine"))),
    }
}

fn settle(read_version: u64) -> Commit {
    Commit { read_version, ..Commit::default() }
}
