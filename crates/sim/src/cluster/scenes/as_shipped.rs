//! What the machine of the metadata engine may take along when it loses its power, as the engine is shipped: changes are answered before they are flushed, and only what
//! was asked for with a flush, or has cut chunks already, must be there.

use crate::cluster::harness::{CHUNK_BYTES, Shape};
use crate::cluster::lab::{Lab, SHAPE};
use crate::cluster::workload::{caller, open, open_or_make, report};
use glowfs_client::Client;
use glowfs_rt::{Buf, Duration};
use glowfs_types::wire::meta::*;
use glowfs_types::*;
use std::cell::Cell;
use std::rc::Rc;

/// Losses of power of each kind: the simulated disk keeps a random part of what was not flushed.
pub const ROUNDS: u64 = 16;
/// Longer than the engine waits with a flush.
const FLUSHED_US: u64 = 60_000;
/// Calls of one client for a file that are in work at once.
const AT_ONCE: u64 = 3;
/// What a flushed SYNC tells; all others tell less, so that none of them, asked again, hides that it is gone.
const TOLD: u64 = 1 << 20;

fn some_us(lab: &Lab, below: u64) -> Duration {
    Duration::from_micros(lab.cluster.world.random(|r| r.below(below)))
}

/// A file that is open for writing.
type File = (InodeId, Option<SessionId>);

/// Tells a length, and no more.
async fn tell(c: &Client, (inode, session): File, len: u64, durable: bool) {
    let (caller, len_at_least) = (caller(c), Some(len));
    let said = Sync { caller, inode, session, len_at_least, durable, ..Sync::default() };
    c.sync(said).await.expect("told");
}

/// Two clients tell lengths of one file side by side, one with a flush and the other one without: what the flushed call was answered for is there. With three services two
/// have the engine elsewhere, and put calls together in one transaction.
///
/// Returns how many flushed calls were answered before the power went, of [`ROUNDS`].
pub fn flushed_lengths(seed: u64, metas: usize) -> u64 {
    let mut answered = 0;
    let lab = Lab::as_shipped(seed, Shape { metas, ..SHAPE });
    for round in 0..ROUNDS {
        let name = format!("f{round}");
        let of = |client: usize, name: String| {
            lab.run(client, |c| async move {
                let file = open_or_make(&c, &name).await.expect("open").0;
                (file.inode(), file.session())
            })
        };
        let (first, other) = (of(0, name.clone()), of(1, name.clone()));
        lab.cluster.run_for(Duration::from_millis(500));
        let (stop, told) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let idle = Rc::new(Cell::new(0));
        for turn in 1..=AT_ONCE {
            let (c, stop, idle) = (lab.clients[1].clone(), stop.clone(), idle.clone());
            lab.cluster.clients[1].rt().spawn_detached(async move {
                for len in 1.. {
                    tell(&c, other, len * AT_ONCE + turn, false).await;
                    if stop.get() {
                        break;
                    }
                }
                idle.set(idle.get() + 1);
            });
        }
        lab.cluster.run_for(some_us(&lab, FLUSHED_US));
        let (c, noted) = (lab.clients[0].clone(), told.clone());
        lab.cluster.clients[0].rt().spawn_detached(async move {
            tell(&c, first, TOLD, true).await;
            noted.set(true);
        });
        // Now and then the power goes before the answer.
        let patient = Duration::from_micros(if round % 4 == 3 { 3_000 } else { 10_000_000 });
        lab.cluster.run_until(patient, || told.get());
        lab.cluster.run_for(some_us(&lab, FLUSHED_US / 3));
        let promised = told.get();
        stop.set(true);
        lab.restart(true);
        let len = lab.run(1, move |c| async move {
            let of = OfInode { caller: caller(&c), inode: first.0 };
            c.getattr(of).await.expect("there").attr.len
        });
        answered += u64::from(promised);
        assert!(
            !promised || len >= TOLD,
            "a flushed length is gone: {metas} services, round {round}: {len} is left"
        );
        let both = || idle.get() == AT_ONCE && told.get();
        assert!(lab.cluster.run_until(Duration::from_secs(100), both), "all are answered");
    }
    answered
}

/// A truncate that goes with the power has cut nothing.
///
/// Returns how many were undone, of [`ROUNDS`].
pub fn undone_truncates(seed: u64) -> u64 {
    const LEN: u64 = 3 * CHUNK_BYTES as u64;
    let clients = 1 + ROUNDS as usize;
    let lab = Lab::as_shipped(seed, Shape { clients, storages: 2, chains: 2, stripe: 2, ..SHAPE });
    let mut undone = 0;
    for round in 1..=ROUNDS {
        let who = round as usize;
        let inode = lab.run(who, |c| async move {
            let (file, _) = open_or_make(&c, &format!("f{round}")).await.expect("made");
            file.write(0, Buf::from_vec(vec![7; LEN as usize])).await.expect("written");
            file.flush().await.expect("flushed");
            c.close_session(report(&c, &file, true)).await.expect("closed");
            file.inode()
        });
        lab.cluster.run_for(Duration::from_secs(1));
        let c = lab.clients[who].clone();
        lab.cluster.clients[who].rt().spawn_detached(async move {
            let cut = SetAttr { caller: caller(&c), inode, len: Some(1), ..SetAttr::default() };
            // Its client need not live to hear of it.
            let _ = c.setattr(cut).await;
        });
        // Often before anything can be flushed.
        lab.cluster.run_for(some_us(&lab, if round % 4 > 0 { 2_500 } else { FLUSHED_US }));
        // Nobody asks for it again.
        lab.cluster.clients[who].kill();
        lab.restart(true);
        let (len, bytes) = lab.run(0, move |c| async move {
            let (file, opened) = open(&c, inode).await.expect("there");
            let (read, bytes) = file.read(0, c.rt().alloc(LEN as usize)).await;
            read.expect("read");
            c.close_session(report(&c, &file, false)).await.expect("closed");
            (opened.attr.len, bytes)
        });
        let whole = bytes.iter().take_while(|b| **b == 7).count() as u64;
        assert!(len == 1 || len == LEN, "round {round}: {len}");
        assert!(
            len == 1 || whole == LEN,
            "a truncate that never was has cut: round {round}: {whole} bytes are left of {len}"
        );
        undone += u64::from(len == LEN);
    }
    undone
}
