//! The life of one ring: taking submissions by the rules of its depth, sleeping when there is nothing to do.

use super::perform::perform;
use super::session::{Ring, Session};
use crate::daemon::Context;
use crate::filesystem::FileSystem;
use glowfs_rt::sync::{Either, Permit, select};
use glowfs_rt::{Duration, Instant};
use glowfs_usrbio::Completion;
use std::future::poll_fn;
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;

/// How often in a row a doorbell may ring though nothing was submitted; from then on it is listened to only after this pause. A bell need not fall silent: it may be a
/// semaphore with a great count, or be rung all the time.
const VAIN_MAX: u32 = 64;
const VAIN_PAUSE: Duration = Duration::from_millis(1);

/// Serves a ring until it ends.
pub(super) async fn serve<S: FileSystem>(
    context: Context<S>,
    session: Rc<Session>,
    ring: Rc<Ring>,
) {
    let rt = context.rt.clone();
    let served = Rc::new(Served { context, session, ring });
    let ring = &served.ring;
    // Operations that are to begin and were not taken yet.
    let mut due = 0;
    // Since when fewer than a full batch wait.
    let mut partial: Option<Instant> = None;
    // How many waited when the doorbell rang last, and how often it has rung since without any more coming.
    let (mut seen, mut vain) = (0, 0);
    while !ring.ended.get() {
        // Once for all that was completed meanwhile: each wake costs a system call, after which the kernel likes to let the application
        // run first, with a single completion to deal with.
        ring.consumer.tell();
        let there = match ring.consumer.available() {
            Ok(there) => there,
            Err(broken) => {
                tracing::warn!(%broken, pid = served.context.header.pid, "a ring is given up");
                break;
            }
        };
        if there != seen {
            (seen, vain) = (there, 0);
        }
        let patience = Duration::from_millis(ring.timeout_ms.into());
        let waited = ring.timeout_ms > 0 && partial.is_some_and(|p| rt.now().since(p) >= patience);
        let working = ring.consumer.working() as usize;
        if due == 0 {
            due = ring.depth.begins(there as usize, working, waited);
        }
        due = due.min(there as usize);
        if due > 0 {
            (partial, vain) = (None, 0);
            due -= begin(&served, due).await;
            // Let what has begun get on its way, and others have their turn.
            rt.yield_now().await;
            continue;
        }
        // None, too, if the application has taken its submissions back.
        partial = (there > 0).then(|| partial.unwrap_or_else(|| rt.now()));
        let wake_at =
            partial.filter(|_| ring.timeout_ms > 0 && ring.depth.is_exact()).map(|p| p + patience);
        // The order matters: what moves after this line wakes the wait below.
        let moved = ring.moved.wait();
        ring.consumer.sleeps(true);
        if !matches!(ring.consumer.available(), Ok(n) if n == there) {
            ring.consumer.sleeps(false);
            // An application that moves it all the time is not to keep all others waiting.
            rt.yield_now().await;
            continue;
        }
        vain += u32::from(sleep(&rt, ring, moved, wake_at).await);
        ring.consumer.sleeps(false);
        if vain > VAIN_MAX {
            vain = VAIN_MAX;
            rt.sleep(VAIN_PAUSE).await;
        }
    }
    rt.forget_readable(ring.bell.as_fd());
}

/// Waits until there may be something to do. Whether it was the doorbell.
async fn sleep(
    rt: &glowfs_rt::Rt,
    ring: &Ring,
    moved: impl Future<Output = ()>,
    wake_at: Option<Instant>,
) -> bool {
    let rung = async {
        // An error means that it cannot be waited for at all; the ring's own end comes by `moved`.
        let _ = poll_fn(|cx| rt.poll_readable(ring.bell.as_fd(), cx)).await;
        ring.bell.take();
    };
    let either = select(Box::pin(rung), Box::pin(moved));
    match wake_at {
        None => matches!(either.await, Either::Left(())),
        Some(at) => {
            let woken = select(Box::pin(either), rt.sleep_until(at)).await;
            matches!(woken, Either::Left(Either::Left(())))
        }
    }
}

/// A ring, with what its operations need.
struct Served<S: FileSystem> {
    context: Context<S>,
    session: Rc<Session>,
    ring: Rc<Ring>,
}

/// The right to have an operation taken: of the session, and of all.
type Permits = (Permit, Permit);

/// Begins up to `due` operations, as many as may be taken now; waits for the first if it must. How many began.
async fn begin<S: FileSystem>(served: &Rc<Served<S>>, due: usize) -> usize {
    let (of_session, of_all) = (&served.session.operations, &served.context.rings.operations);
    let now = || Some((of_session.try_acquire(1)?, of_all.try_acquire(1)?));
    let mut begun = 0;
    while begun < due {
        let permits = match now() {
            None if begun == 0 => permits(served).await,
            now => now,
        };
        let Some(permits) = permits else { break };
        begin_one(served, permits);
        begun += 1;
    }
    begun
}

/// Waits until an operation may be taken; tells the application of completions meanwhile. None: the ring ended.
async fn permits<S: FileSystem>(served: &Served<S>) -> Option<Permits> {
    let Served { context, session, ring } = served;
    let mut permits = pin!(async {
        // In this order: who waits for others does not keep what is of all.
        let of_session = session.operations.acquire(1).await;
        (of_session, context.rings.operations.acquire(1).await)
    });
    while !ring.ended.get() {
        let moved = ring.moved.wait();
        ring.consumer.tell();
        match select(permits.as_mut(), Box::pin(moved)).await {
            Either::Left(permits) => return Some(permits),
            Either::Right(()) => {}
        }
    }
    None
}

/// Takes one submission and carries it out beside this.
fn begin_one<S: FileSystem>(served: &Rc<Served<S>>, permits: Permits) {
    let submission = served.ring.consumer.take();
    let served = served.clone();
    let rt = served.context.rt.clone();
    rt.spawn_detached(async move {
        let Served { context, session, ring } = &*served;
        let work = context.daemon.work();
        let result = perform(context, session, ring, &submission).await;
        ring.consumer.put(Completion { user: submission.user, result });
        // `serve` tells the application; a ring that is over has told it so.
        ring.moved.notify_all();
        drop((permits, work));
    });
}
