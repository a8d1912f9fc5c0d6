//! Removed files that clients may have open: from the doom on nobody opens one, and only who doomed it erases it.

use crate::world::{V, World};
use glowfs_kv::run_transaction;
use glowfs_namespace::{self as ns, Context, Doom, Removed};
use glowfs_rt::real;
use glowfs_types::wire::meta::*;
use glowfs_types::*;

const ROOT: InodeId = InodeId(1);
const MINE: Doom = Doom { node: NodeId(10), life: 1 };
const ANOTHERS: Doom = Doom { node: NodeId(11), life: 1 };

fn caller() -> Caller {
    Caller { client: ClientId(1), volume: V, ..Caller::default() }
}

macro_rules! op {
    ($w:expr, $cx:ident => $work:expr) => {{
        let (w, who) = (&$w, caller());
        run_transaction(&w.rt, &w.engine, async |tx| {
            let $cx = &Context::new(tx, &who, w);
            $work
        })
        .await
    }};
}

/// A client has said that it does not have the file open, and opens it then by its number: a look-up that came before the removal, /proc/self/fd, or a handle.
#[test]
fn nobody_opens_what_is_doomed() {
    real::run(|rt| async move {
        let w = World { keeps_removed: true, ..World::new(&rt, 0).await };
        let name = Name::from(b"f".to_vec());
        let make = Make { caller: caller(), parent: ROOT, name: name.clone(), ..Make::default() };
        let inode = op!(w, cx => ns::make(cx, &make).await).expect("made").attr.inode;
        let (request, parent) = (RequestId(0), ROOT);
        let unlink = Unlink { caller: caller(), request, parent, name, directory: false };
        op!(w, cx => ns::unlink(cx, &unlink).await).expect("removed");
        let open = |write: bool| Open {
            caller: caller(),
            request: RequestId(0),
            inode,
            // Who only reads has none.
            flags: OpenFlags {
                read: true,
                write,
                session: SessionId(if write { 7 } else { 0 }),
                ..OpenFlags::default()
            },
        };
        let opens = async |write| op!(w, cx => ns::open(cx, &open(write)).await).map(drop);
        opens(false).await.expect("it is not doomed yet");
        let seen = Removed { inode, doomed: None };
        let doom = async |seen: &Removed, by| op!(w, cx => ns::doom(cx, seen, by).await);
        assert!(doom(&seen, MINE).await.expect("doomed"));
        for write in [false, true] {
            let e = opens(write).await.expect_err("doomed").status;
            assert_eq!(e, Status::Stale, "open for writing: {write}");
        }
        assert!(!doom(&seen, ANOTHERS).await.expect("asked"), "it has changed since it was seen");
        // Whoever finds another doom leaves it alone.
        let erase = async |by| op!(w, cx => ns::erase_removed(cx, inode, by).await);
        assert!(!erase(ANOTHERS).await.expect("asked"));
        op!(w, cx => ns::undoom(cx, inode, ANOTHERS).await).expect("asked");
        opens(false).await.expect_err("doomed still");
        // Somebody has it open.
        op!(w, cx => ns::undoom(cx, inode, MINE).await).expect("let go");
        opens(true).await.expect("it may be opened again");
        assert!(!doom(&seen, MINE).await.expect("asked"), "it has a session");
        assert!(!erase(MINE).await.expect("asked"));
        let session = Some(SessionId(7));
        let close = Sync { caller: caller(), inode, session, ..Sync::default() };
        op!(w, cx => ns::close(cx, &close).await).expect("closed");
        assert!(doom(&seen, MINE).await.expect("doomed"));
        assert!(erase(MINE).await.expect("erased"));
        assert_eq!(opens(false).await.expect_err("gone").status, Status::Stale);
    });
}
