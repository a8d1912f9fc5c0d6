//! The life of one ring: taking submissions by the rules of its depth, sleeping when there is nothing to do.

use super::perform::perform;
use super::session::{Ring, Session};
use crate::daemon::Context;
use crate::filesystem::FileSystem;
use glowfs_rt::sync::{Either, select};
use glowfs_rt::{Duration, Instant};
use glowfs_usrbio::Completion;
use std::future::poll_fn;
use std::os::fd::AsFd;
use std::rc::Rc;

/// Serves a ring until it ends.
pub(super) async fn serve<S: FileSystem>(
    context: Context<S>,
    session: Rc<Session>,
    ring: Rc<Ring>,
) {
    let rt = context.rt.clone();
    // Since when fewer than a full batch wait.
    let mut partial: Option<Instant> = None;
    while !ring.ended.get() {
        // Once for all that was completed meanwhile: each wake costs a system call, after which the kernel likes to let the application
        // run first, with a single completion to deal with.
        ring.consumer.tell();
        let there = match ring.consumer.available() {
            Ok(there) => there,
            Err(broken) => {
                tracing::warn!(%broken, pid = context.header.pid, "a ring is given up");
                break;
            }
        };
        let patience = Duration::from_millis(ring.timeout_ms.into());
        let waited = ring.timeout_ms > 0 && partial.is_some_and(|p| rt.now().since(p) >= patience);
        let working = ring.consumer.working() as usize;
        let now = ring.depth.begins(there as usize, working, waited);
        if now > 0 {
            partial = None;
            for _ in 0..now {
                begin(&context, &session, &ring);
            }
            // Let what has begun get on its way, and others have their turn.
            rt.yield_now().await;
            continue;
        }
        if there > 0 && partial.is_none() {
            partial = Some(rt.now());
        }
        let wake_at =
            partial.filter(|_| ring.timeout_ms > 0 && ring.depth.is_exact()).map(|p| p + patience);
        // The order matters: what moves after this line wakes the wait below.
        let moved = ring.moved.wait();
        ring.consumer.sleeps(true);
        if !matches!(ring.consumer.available(), Ok(n) if n == there) {
            ring.consumer.sleeps(false);
            continue;
        }
        sleep(&rt, &ring, moved, wake_at).await;
        ring.consumer.sleeps(false);
    }
    rt.forget_readable(ring.bell.as_fd());
}

async fn sleep(
    rt: &glowfs_rt::Rt,
    ring: &Ring,
    moved: impl Future<Output = ()>,
    wake_at: Option<Instant>,
) {
    let rung = async {
        // An error means that it cannot be waited for at all; the ring's own end comes by `moved`.
        let _ = poll_fn(|cx| rt.poll_readable(ring.bell.as_fd(), cx)).await;
        ring.bell.take();
    };
    let either = select(Box::pin(rung), Box::pin(moved));
    match wake_at {
        None => {
            either.await;
        }
        Some(at) => match select(Box::pin(either), rt.sleep_until(at)).await {
            Either::Left(_) | Either::Right(()) => {}
        },
    }
}

/// Takes one submission and carries it out beside this.
fn begin<S: FileSystem>(context: &Context<S>, session: &Rc<Session>, ring: &Rc<Ring>) {
    let submission = ring.consumer.take();
    let (context, session, ring) = (context.clone(), session.clone(), ring.clone());
    let rt = context.rt.clone();
    rt.spawn_detached(async move {
        let work = context.daemon.work();
        let result = perform(&context, &session, &ring, &submission).await;
        ring.consumer.put(Completion { user: submission.user, result });
        // `serve` tells the application; a ring that is over has told it so.
        ring.moved.notify_all();
        drop(work);
    });
}
