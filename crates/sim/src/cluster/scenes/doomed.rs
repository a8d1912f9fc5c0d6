//! Removed files that are opened by who knows their inodes still: by a handle, or by a look-up that came before the removal.

use crate::cluster::harness::Shape;
use crate::cluster::lab::{Lab, SHAPE};
use crate::cluster::names::unlink;
use crate::cluster::workload::{caller, open_or_make, report};
use glowfs_client::{Client, FileAccess, OpenFile};
use glowfs_rt::sync::join_all;
use glowfs_rt::{Buf, Duration};
use glowfs_types::wire::meta::{Open, OpenFlags, ROOT_INODE};
use glowfs_types::{InodeId, RequestId, Result, Status};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Files that are removed.
pub const FILES: usize = 12;
const BYTES: usize = 9000;
/// The longest pause between two removals, in ms.
const PAUSE_MS: u64 = 100;
/// Each file is opened within so long, in ms: some before they are removed, and most when this client has said that it has them not open.
const LATE_MS: u64 = 2_000;
/// How long one of the clients cannot be asked: longer.
const AWAY: Duration = Duration::from_secs(6);
/// By then what nobody has open is erased, and its chunks are removed.
const ERASED: Duration = Duration::from_secs(60);

async fn open(c: &Rc<Client>, inode: InodeId) -> Result<Rc<OpenFile>> {
    let flags = OpenFlags { read: true, ..OpenFlags::default() };
    let caller = caller(c);
    let asked = Open { caller: caller.clone(), request: RequestId(0), inode, flags };
    let opened = c.open(asked).await?;
    c.open_file(&opened, FileAccess { caller, read: true, write: false, exec: false })
}

/// Files are removed while one of three clients cannot be asked what it has open, and a second one, which can, opens each of them at some moment: it is refused, or has what it opened.
///
/// Returns how many it could open, of [`FILES`].
pub fn opened_late(seed: u64) -> usize {
    let lab = Lab::with(seed, Shape { clients: 3, ..SHAPE });
    let name = |i: usize| format!("f{i}");
    let inodes: Vec<InodeId> = lab.run(0, move |c| async move {
        let mut inodes = Vec::new();
        for i in 0..FILES {
            let (file, _) = open_or_make(&c, &name(i)).await.expect("made");
            file.write(0, Buf::from_vec(vec![7; BYTES])).await.expect("written");
            c.close_session(report(&c, &file, true)).await.expect("closed");
            inodes.push(file.inode());
        }
        inodes
    });
    lab.cluster.world.cut(&lab.cluster.metas[0].node, &lab.cluster.clients[2]);
    let until = lab.cluster.world.now() + AWAY;
    let (remover, removed) = (lab.clients[0].clone(), Rc::new(Cell::new(0)));
    let count = removed.clone();
    lab.cluster.clients[0].rt().spawn_detached(async move {
        let c = &remover;
        for i in 0..FILES {
            c.rt().sleep(Duration::from_millis(c.rt().random_below(PAUSE_MS))).await;
            unlink(c, ROOT_INODE, &name(i), false).await.expect("removed");
            count.set(count.get() + 1);
        }
    });
    let opened: Rc<RefCell<Vec<Rc<OpenFile>>>> = Rc::default();
    let keep = opened.clone();
    lab.run(1, move |c| async move {
        let each = inodes.into_iter().map(async |inode| {
            c.rt().sleep(Duration::from_millis(c.rt().random_below(LATE_MS))).await;
            match open(&c, inode).await {
                Ok(file) => keep.borrow_mut().push(file),
                Err(e) => assert!(matches!(e.status, Status::NotFound | Status::Stale), "{e}"),
            }
        });
        join_all(each).await;
    });
    let now = lab.cluster.world.now();
    assert!(now < until, "one client is away all the time");
    lab.cluster.run_for(until - now);
    assert_eq!(removed.get(), FILES);
    lab.cluster.world.heal();
    lab.cluster.run_for(ERASED);
    let files = opened.take();
    lab.run(1, move |c| async move {
        for file in &files {
            let (read, bytes) = file.read(0, c.rt().alloc(BYTES)).await;
            let whole = read.is_ok_and(|n| n == BYTES) && bytes.iter().all(|b| *b == 7);
            assert!(whole, "what a client has open is erased: {}", file.inode());
        }
        files.len()
    })
}
