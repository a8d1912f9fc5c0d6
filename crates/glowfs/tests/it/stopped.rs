//! A client that is stopped keeps nobody waiting for longer than its leases last, and from then on its kernel shows nothing of before
//! (docs/semantics.md, «Leases and recalls»).

use crate::harness::{Cluster, Mount, scrape};
use rustix::process::Signal;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// The longest that a change may take: a lease of a second, and what a busy machine adds.
const CHANGE_MAX: Duration = Duration::from_secs(5);
/// What a kernel answers from what it keeps it answers within that; else it asks the daemon, which is stopped.
const KEPT: Duration = Duration::from_millis(500);
/// Until an inode that was recalled is leased again.
const LEASED_AGAIN: Duration = Duration::from_millis(2100);

/// What is looked at, and changed.
#[derive(Clone, Copy, Debug)]
enum What {
    Attribute,
    Name,
    Data,
}
const ALL: [What; 3] = [What::Attribute, What::Name, What::Data];

/// Looks, as of this round: 0 is what was before it, 1 what came of it, anything else is neither.
type Look = Arc<dyn Fn(What) -> u8 + Send + Sync>;

/// The number of the round, of which three things speak.
fn look(dir: PathBuf, data: File, round: u8) -> Look {
    let of_round = move |seen: u8| seen.wrapping_sub(round);
    Arc::new(move |what| match what {
        What::Attribute => {
            of_round((fs::metadata(dir.join("f")).expect("stat").mode() & 0o7) as u8)
        }
        What::Name => {
            let there = |round: u8| dir.join(format!("d/n{round}")).symlink_metadata().is_ok();
            // The old name first: where it is gone the new one is not kept.
            if there(round) { 0 } else { u8::from(there(round + 1)) }
        }
        What::Data => {
            let mut byte = [0];
            data.read_exact_at(&mut byte, 5000).expect("read");
            of_round(byte[0])
        }
    })
}

/// From a thread, which may have to wait until the daemon goes on.
fn begin(look: &Look, what: What) -> Receiver<u8> {
    let (send, seen) = mpsc::channel();
    let look = look.clone();
    std::thread::spawn(move || send.send(look(what)));
    seen
}

fn change(dir: &Path, what: What, to: u8) {
    match what {
        What::Attribute => {
            let mode = Permissions::from_mode(0o640 + u32::from(to));
            fs::set_permissions(dir.join("f"), mode).expect("chmod");
        }
        What::Name => {
            let name = |round: u8| dir.join(format!("d/n{round}"));
            fs::rename(name(to - 1), name(to)).expect("rename");
        }
        What::Data => {
            let f = File::options().write(true).open(dir.join("g")).expect("open");
            f.write_all_at(&[to; 8192], 0).expect("write");
        }
    }
}

/// Stops the mount at a moment at which its kernel keeps all three; returns what looks.
fn stop_while_all_is_kept(other: &Mount, round: u8) -> Look {
    for _ in 0..20 {
        std::thread::sleep(LEASED_AGAIN);
        let data = File::open(other.path.join("g")).expect("open");
        let look = look(other.path.clone(), data, round);
        // Twice, so that what the open and the first look took from the daemon is kept.
        for what in ALL.iter().chain(&ALL) {
            assert_eq!(look(*what), 0, "round {round}: {what:?} before");
        }
        other.signal(Signal::STOP);
        let seen = ALL.map(|what| begin(&look, what));
        if seen.iter().all(|seen| seen.recv_timeout(KEPT) == Ok(0)) {
            return look;
        }
        other.signal(Signal::CONT);
    }
    panic!("what is looked at again and again is not kept: nothing was tested");
}

#[test]
fn a_stopped_client_shows_nothing_old_when_a_change_has_returned() {
    let c = Cluster::up("stopped");
    let other = Mount::new(&c, "mnt2");
    // Nothing may be started while a mount is stopped (`Mount::signal`).
    let meta = c.services("meta")[0]["http"].as_str().expect("http").to_owned();
    let waited = || scrape(&meta, "glowfs_meta_recalls_waited_total");
    fs::create_dir(c.mnt.join("d")).expect("mkdir");
    for file in ["f", "d/n0", "g"] {
        fs::write(c.mnt.join(file), [0; 8192]).expect("write");
    }
    fs::set_permissions(c.mnt.join("f"), Permissions::from_mode(0o640)).expect("chmod");
    for round in 0..3 {
        let before = waited();
        let look = stop_while_all_is_kept(&other, round);
        let changing = ALL.map(|what| {
            let (dir, look) = (c.mnt.clone(), look.clone());
            std::thread::spawn(move || {
                let began = Instant::now();
                change(&dir, what, round + 1);
                let took = began.elapsed();
                let pending = begin(&look, what);
                (took, pending.recv_timeout(KEPT), pending)
            })
        });
        let changed = changing.map(|t| t.join().expect("a change"));
        other.signal(Signal::CONT);
        for (what, (took, seen, pending)) in ALL.into_iter().zip(changed) {
            eprintln!("round {round}: {what:?}: {took:?}");
            assert!(took < CHANGE_MAX, "round {round}: {what:?} took {took:?}");
            assert_ne!(
                seen,
                Ok(0),
                "round {round}: {what:?} of before, when the change had returned"
            );
            let seen = seen.or_else(|_| pending.recv_timeout(Duration::from_secs(30)));
            assert_eq!(seen, Ok(1), "round {round}: {what:?}, when it goes on");
        }
        assert!(waited() > before, "round {round}: nobody waited for a lease to end");
    }
}
