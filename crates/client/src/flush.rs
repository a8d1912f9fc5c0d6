//! Calls to the head of a chain, and flush barriers. Flushes of one chain that are asked for while one runs share the next one.

use crate::core::Core;
use crate::retry::again_write;
use crate::routes::{self, Site};
use crate::vain;
use glowfs_net::{Bulk, Request};
use glowfs_rt::sync::{Notify, join_all};
use glowfs_types::routing::RoutingInfo;
use glowfs_types::wire::data::Flush;
use glowfs_types::wire::{decode, encode, method};
use glowfs_types::{ChainId, ChainVersion, Error, Layout, Result, Status};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// How many chains one call works on at a time.
const CHAINS_AT_ONCE: usize = 64;

/// One barrier that some callers wait for.
#[derive(Default)]
struct Barrier {
    result: RefCell<Option<Result<()>>>,
    done: Notify,
}

struct Lane {
    running: Rc<Barrier>,
    next: Option<Rc<Barrier>>,
}

/// The flushes of a client, by chain.
#[derive(Default)]
pub(crate) struct Flushes(RefCell<BTreeMap<ChainId, Lane>>);

/// Flushes every chain that can hold data of a layout.
pub(crate) async fn flush(core: &Rc<Core>, layout: &Layout) -> Result<()> {
    let chains = layout_chains(core, layout).await?;
    on_chains(&chains, |chain| barrier(core, chain)).await.map(|_| ())
}

/// The chains of a layout, waiting for routing info that has its table.
pub(crate) async fn layout_chains(core: &Rc<Core>, layout: &Layout) -> Result<Vec<ChainId>> {
    let mut retry = core.retry(core.write_policy());
    loop {
        let info = core.routing(core.config.data_total).await?;
        match routes::chains_of(&info, layout) {
            Ok(chains) => return Ok(chains),
            Err(e) => {
                let again = again_write(e.status);
                let site = Site { info: Some(info), ..Site::default() };
                let what = || "looking for the chains of a file".to_owned();
                core.wait_or_give_up(&mut retry, &what, &site, e, again).await?;
            }
        }
    }
}

/// Runs something on every chain, some at a time; the first error wins.
pub(crate) async fn on_chains<T, F: Future<Output = Result<T>>>(
    chains: &[ChainId],
    f: impl Fn(ChainId) -> F,
) -> Result<Vec<T>> {
    let mut out = Vec::with_capacity(chains.len());
    for some in chains.chunks(CHAINS_AT_ONCE) {
        for result in join_all(some.iter().map(|c| f(*c))).await {
            out.push(result?);
        }
    }
    Ok(out)
}

/// Waits for a flush of `chain` that began after this call.
async fn barrier(core: &Rc<Core>, chain: ChainId) -> Result<()> {
    let mine = {
        let mut lanes = core.flushes.0.borrow_mut();
        match lanes.get_mut(&chain) {
            // The running one may have passed what was written since it began.
            Some(lane) => lane.next.get_or_insert_with(Rc::default).clone(),
            None => {
                let first = Rc::<Barrier>::default();
                lanes.insert(chain, Lane { running: first.clone(), next: None });
                core.rt.spawn_detached(run(core.clone(), chain));
                first
            }
        }
    };
    loop {
        let news = mine.done.wait();
        if let Some(result) = mine.result.borrow().clone() {
            return result;
        }
        news.await;
    }
}

async fn run(core: Rc<Core>, chain: ChainId) {
    loop {
        let result = head_call(&core, chain, method::FLUSH, "flush", |_, version| {
            encode(&Flush { chain, chain_version: version })
        })
        .await
        .map(|_| ());
        let (done, last) = {
            let mut lanes = core.flushes.0.borrow_mut();
            let Some(lane) = lanes.get_mut(&chain) else { return };
            let done = lane.running.clone();
            let next = lane.next.take();
            let last = next.is_none();
            match next {
                Some(next) => lane.running = next,
                None => drop(lanes.remove(&chain)),
            }
            (done, last)
        };
        *done.result.borrow_mut() = Some(result);
        done.done.notify_all();
        if last {
            return;
        }
    }
}

/// Calls the head of a chain with a control message until there is an answer or the bound is reached. Only for methods that
/// may be repeated.
pub(crate) async fn head_call(
    core: &Rc<Core>,
    chain: ChainId,
    method: u16,
    what: &str,
    body: impl Fn(&RoutingInfo, ChainVersion) -> Vec<u8>,
) -> Result<Vec<u8>> {
    let mut retry = core.retry(core.write_policy());
    loop {
        let mut site = Site::default();
        let attempt = async {
            let late = || Error::new(Status::Disconnected, "the time for this call is up");
            let time = retry.attempt_time(core.rt.now()).ok_or_else(late)?;
            let info = core.routing(time).await?;
            site.info = Some(info.clone());
            let head = routes::head(&info, chain)?;
            site.place = Some(head);
            let time = retry.attempt_time(core.rt.now()).ok_or_else(late)?;
            let request = Request {
                method,
                body: body(&info, head.version),
                bulk: Bulk::None,
                tenant: core.config.tenant,
                deadline: time,
            };
            let outcome = async { core.conn(&info, head.node, time).await?.call(request).await };
            let outcome = core.unless(|now| vain::head_moved(now, &head), outcome);
            outcome.await.inspect_err(|e| core.blame(head.node, e))
        };
        match attempt.await {
            Ok(response) => return Ok(response.body),
            Err(e) => {
                let again = again_write(e.status) && e.status != Status::BadCapability;
                let what = || format!("{what} of chain {chain}");
                core.wait_or_give_up(&mut retry, &what, &site, e, again).await?;
            }
        }
    }
}

/// The same with a decoded answer.
pub(crate) async fn head_msg<R: for<'b> minicbor::Decode<'b, ()>>(
    core: &Rc<Core>,
    chain: ChainId,
    method: u16,
    what: &str,
    body: impl Fn(&RoutingInfo, ChainVersion) -> Vec<u8>,
) -> Result<R> {
    decode(&head_call(core, chain, method, what, body).await?)
}
