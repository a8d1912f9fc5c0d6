//! A read that is asked of a second replica, since the first one is slow. When that is, and how often it may happen, [`crate::hedge`] says.

use super::{Outcome, request};
use crate::core::Core;
use crate::few::Few;
use crate::file::OpenFile;
use crate::routes::Place;
use glowfs_rt::sync::{Either, select};
use glowfs_rt::{BufMut, Duration, Instant};
use glowfs_types::NodeId;
use glowfs_types::layout::Extent;
use glowfs_types::routing::RoutingInfo;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// One request, and a second one to another node if the first is slow. The first good answer wins.
pub(super) async fn hedged(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    info: &Rc<RoutingInfo>,
    first: Few<(Extent, Place)>,
    second: Option<Few<(Extent, Place)>>,
    buf: BufMut,
    (time, late): (Duration, Duration),
) -> Outcome {
    let bytes = buf.len();
    let began = core.rt.turn_began();
    let slow = first.first().map(|(_, place)| place.node);
    let times = (time, late);
    let mut main = Box::pin(request(core.clone(), file.clone(), info.clone(), first, buf, times));
    let second = match second {
        Some(s) if core.config.hedge => s,
        _ => return timed(core, began, main.await),
    };
    let delay = core.hedger.borrow().delay().min(time);
    let sleep = core.rt.sleep_until(began + delay);
    if let Either::Left(outcome) = select(&mut main, sleep).await {
        return timed(core, began, outcome);
    }
    if !core.hedger.borrow_mut().spend() {
        return timed(core, began, main.await);
    }
    Box::pin(hedge(core, file, info, slow, main, second, bytes, (began, delay), times)).await
}

/// The second request beside the slow first one.
#[allow(clippy::too_many_arguments)] // the rest of one function, taken out of its future
async fn hedge(
    core: &Rc<Core>,
    file: &Rc<OpenFile>,
    info: &Rc<RoutingInfo>,
    slow: Option<NodeId>,
    mut main: Pin<Box<impl Future<Output = Outcome>>>,
    second: Few<(Extent, Place)>,
    bytes: usize,
    (began, delay): (Instant, Duration),
    times: (Duration, Duration),
) -> Outcome {
    let spare = core.rt.alloc(bytes);
    let left = |time: Duration| time.saturating_sub(delay).max(Duration::from_millis(1));
    let left = (left(times.0), left(times.1));
    let mut other =
        Box::pin(request(core.clone(), file.clone(), info.clone(), second, spare, left));
    let good = |o: &Outcome| o.pieces.as_ref().is_ok_and(|p| p.iter().all(Result::is_ok));
    match select(&mut main, &mut other).await {
        Either::Left(outcome) if good(&outcome) => timed(core, began, outcome),
        Either::Left(failed) => {
            let outcome = other.await;
            if good(&outcome) { outcome } else { failed }
        }
        Either::Right(outcome) if good(&outcome) => {
            // Others are asked first for a moment: hedges are few, and a node that has stopped would use them up.
            if let Some(node) = slow {
                core.suspect(node);
            }
            outcome
        }
        Either::Right(_) => timed(core, began, main.await),
    }
}

fn timed(core: &Core, began: Instant, outcome: Outcome) -> Outcome {
    if outcome.pieces.is_ok() {
        core.hedger.borrow_mut().took(core.rt.turn_began().since(began));
    }
    outcome
}
