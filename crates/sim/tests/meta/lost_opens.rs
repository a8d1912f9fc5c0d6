//! Ends of truncates that are answered, and that the machine of the metadata engine takes along when it loses its power: who has the file open goes on, and what he wrote is
//! found.

use super::lab::{Lab, SHAPE};
use glowfs_client::OpenFile;
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, Shape};
use glowfs_sim::cluster::workload::{caller, open, open_or_make, report};
use glowfs_types::wire::meta::*;
use glowfs_types::*;
use std::rc::Rc;

/// Losses of power of each kind: the simulated disk keeps a random part of what was not flushed.
const ROUNDS: u64 = 12;
/// Longer than the engine waits with a flush.
const FLUSHED_US: u64 = 60_000;
const LEN: usize = 5000;

fn some_us(lab: &Lab, below: u64) -> Duration {
    Duration::from_micros(lab.cluster.world.random(|r| r.below(below)))
}

/// A file that is on the disks.
fn made(lab: &Lab, client: usize, name: String, len: usize) -> InodeId {
    lab.run(client, move |c| async move {
        let (file, _) = open_or_make(&c, &name).await.expect("made");
        file.write(0, Buf::from_vec(vec![7; len])).await.expect("written");
        file.flush().await.expect("flushed");
        c.close_session(report(&c, &file, true)).await.expect("closed");
        file.inode()
    })
}

/// The client has it open, and has written to it.
fn written(lab: &Lab, client: usize, inode: InodeId, at: u64) -> Rc<OpenFile> {
    lab.run(client, move |c| async move {
        let (file, _) = open(&c, inode).await.expect("opened");
        file.write(at, Buf::from_vec(vec![8; LEN])).await.expect("written");
        file
    })
}

/// What another client finds from there on.
fn found(lab: &Lab, name: String, at: u64) -> (u64, Vec<u8>) {
    lab.run(0, move |c| async move {
        let (file, opened) = open_or_make(&c, &name).await.expect("there");
        let (read, bytes) = file.read(at, c.rt().alloc(LEN)).await;
        read.expect("read");
        c.close_session(report(&c, &file, false)).await.expect("closed");
        (opened.attr.len, bytes.to_vec())
    })
}

/// Under the epoch that the end of a truncate gave out somebody has written, and then the end of it went with the power: the truncate was done over, and cut that off, or the length was
/// not taken any more.
#[test]
fn what_was_written_after_a_truncate_outlives_a_loss_of_power() {
    let lab = Lab::as_shipped(66, Shape { clients: 3, ..SHAPE });
    let at = 2 * CHUNK_BYTES as u64;
    for round in 0..2 * ROUNDS {
        let name = format!("f{round}");
        let inode = made(&lab, 1, name.clone(), 3 * CHUNK_BYTES as usize);
        // One has it open all the time, the other one comes just behind the truncate.
        let writer = Some(written(&lab, 2, inode, 0));
        lab.cluster.run_for(Duration::from_secs(1));
        lab.run(1, move |c| async move {
            let cut = SetAttr { caller: caller(&c), inode, len: Some(100), ..SetAttr::default() };
            c.setattr(cut).await.expect("cut");
        });
        let file = match writer {
            Some(file) => {
                let same = file.clone();
                lab.run(2, move |_| async move {
                    file.write(at, Buf::from_vec(vec![8; LEN])).await.expect("written");
                });
                same
            }
            None => written(&lab, 2, inode, at),
        };
        lab.cluster.run_for(some_us(&lab, 3_000));
        lab.restart(true);
        let attr = lab.run(2, move |c| async move {
            let synced = c.sync(report(&c, &file, true)).await.expect("synced").attr;
            c.close_session(report(&c, &file, false)).await.expect("closed");
            synced
        });
        assert_eq!(attr.len, at + LEN as u64, "round {round}");
        let (len, bytes) = found(&lab, name, at);
        let right = bytes.iter().all(|b| *b == 8);
        assert!(len == at + LEN as u64 && right, "round {round}: {len}, right: {right}");
    }
}
