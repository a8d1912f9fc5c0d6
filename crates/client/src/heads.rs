//! Calls to the heads of chains, and the chains of a layout.

use crate::core::Core;
use crate::retry::again_write;
use crate::routes::{self, Site};
use crate::vain;
use glowfs_net::{Bulk, Request};
use glowfs_rt::sync::join_all;
use glowfs_types::routing::RoutingInfo;
use glowfs_types::wire::decode;
use glowfs_types::{ChainId, ChainVersion, Error, Layout, Result, Status};
use std::rc::Rc;

/// How many chains one call works on at a time.
const CHAINS_AT_ONCE: usize = 64;

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

/// Calls the head of a chain with a control message until there is an answer or the bound is reached. Only for methods that
/// may be repeated.
pub(crate) async fn head_call(
    core: &Rc<Core>,
    chain: ChainId,
    method: u16,
    what: &str,
    body: impl Fn(&RoutingInfo, ChainVersion) -> Vec<u8>,
) -> Result<Vec<u8>> {
    head_call_by(core, chain, method, what, async |info, version| Ok((body(info, version), ())))
        .await
}

/// The same; what comes with the body of an attempt is held until that has ended.
pub(crate) async fn head_call_by<H>(
    core: &Rc<Core>,
    chain: ChainId,
    method: u16,
    what: &str,
    body: impl AsyncFn(&RoutingInfo, ChainVersion) -> Result<(Vec<u8>, H)>,
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
            let (body, _held) = body(&info, head.version).await?;
            let time = retry.attempt_time(core.rt.now()).ok_or_else(late)?;
            let request = Request {
                method,
                body,
                bulk: Bulk::None,
                tenant: core.config.tenant,
                deadline: time,
            };
            // It stands behind what is written there.
            let most = retry.late_time(core.rt.now(), core.config.late_attempt);
            let outcome = async {
                core.conn(&info, head.node, time).await?.call_patiently(request, most).await
            };
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
