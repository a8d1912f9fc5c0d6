//! How long what was removed stays in the trash, whatever the clocks say.

use crate::world::{V, World};
use glowfs_kv::{Engine, Key, RangePage, Value, Version, run_transaction};
use glowfs_namespace::{self as ns, Context};
use glowfs_rt::{BoxFuture, real};
use glowfs_types::wire::kv::Commit;
use glowfs_types::wire::meta::*;
use glowfs_types::*;
use std::cell::Cell;
use std::rc::Rc;

const ROOT: InodeId = InodeId(1);
const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

macro_rules! op {
    ($w:expr, $cx:ident => $work:expr) => {{
        let (w, who) = (&$w, Caller { client: ClientId(1), volume: V, ..Caller::default() });
        run_transaction(&w.rt, &w.engine, async |tx| {
            let $cx = &Context::new(tx, &who, w);
            $work
        })
        .await
        .expect("done")
    }};
}

/// Removes a file into the trash of the root.
async fn removed(w: &World, name: &str) {
    let (caller, name) = (Caller { volume: V, ..Caller::default() }, name.as_bytes().to_vec());
    let (name, parent) = (Name::from(name), ROOT);
    let make = Make { caller: caller.clone(), parent, name: name.clone(), ..Make::default() };
    op!(*w, cx => ns::make(cx, &make).await);
    let unlink = Unlink { caller, request: RequestId(0), parent, name, directory: false };
    op!(*w, cx => ns::unlink(cx, &unlink).await);
}

async fn due(w: &World) -> usize {
    op!(*w, cx => ns::trash_expired(cx, None, 9).await).0.len()
}

/// One metadata service with a wrong clock emptied all of the trash at once, or had what was removed through it go at once.
#[test]
fn a_clock_that_is_wrong_takes_nothing_away_early() {
    real::run(|rt| async move {
        for (removed_by, looked_at_by) in [(0, 8 * DAY), (-8 * DAY, 0), (-8 * DAY, 8 * DAY), (0, 0)]
        {
            let w = World::new(&rt, 0).await;
            let n = Name::from(b"glowfs.trash".to_vec());
            let q = SetXattr {
                caller: Caller { volume: V, ..Caller::default() },
                inode: ROOT,
                name: n,
                value: b"1h".to_vec(),
                request: RequestId(0),
                flags: 0,
            };
            op!(w, cx => ns::setxattr(cx, &q).await);
            let right = w.clock.get();
            w.cluster.set(Some(right));
            w.clock.set(right + removed_by);
            removed(&w, "f").await;
            let case = format!("removed by {removed_by}, looked at by {looked_at_by}");
            for (later, expected) in [(0, 0), (HOUR - 1, 0), (HOUR, 1)] {
                w.clock.set(right + looked_at_by + later);
                w.cluster.set(Some(right + later));
                assert_eq!(due(&w).await, expected, "{case}, {later} s later");
            }
        }
        // Also if it is the cluster's time that is wrong.
        let w = World::new(&rt, 0).await;
        let right = w.clock.get();
        w.cluster.set(Some(right - DAY));
        assert_eq!(due(&w).await, 0);
    });
}

/// An engine that knows whether the last commit was said to make the metadata larger.
struct Watched(Rc<dyn Engine>, Rc<Cell<bool>>);

impl Engine for Watched {
    fn begin(&self) -> BoxFuture<Result<Version>> {
        self.0.begin()
    }
    fn get(&self, version: Version, keys: Vec<Key>) -> BoxFuture<Result<Vec<Option<Value>>>> {
        self.0.get(version, keys)
    }
    fn get_range(
        &self,
        version: Version,
        begin: Key,
        end: Key,
        limit: u32,
        reverse: bool,
    ) -> BoxFuture<Result<RangePage>> {
        self.0.get_range(version, begin, end, limit, reverse)
    }
    fn commit(&self, commit: Commit) -> BoxFuture<Result<Version>> {
        self.1.set(commit.grows);
        self.0.commit(commit)
    }
    fn flush_barrier(&self) -> BoxFuture<Result<()>> {
        self.0.flush_barrier()
    }
}

/// Who removed files without contents from very deep directories made the metadata larger by 64 KiB with each, also where there was hardly any room.
#[test]
fn the_path_of_a_removed_file_is_bounded_and_counts() {
    real::run(|rt| async move {
        let mut w = World::new(&rt, 0).await;
        let grows = Rc::new(Cell::new(false));
        w.engine = Rc::new(Watched(w.engine.clone(), grows.clone()));
        let caller = || Caller { client: ClientId(1), volume: V, ..Caller::default() };
        let keep = SetXattr {
            caller: caller(),
            inode: ROOT,
            name: Name::from(b"glowfs.trash".to_vec()),
            value: b"1h".to_vec(),
            request: RequestId(0),
            flags: 0,
        };
        op!(w, cx => ns::setxattr(cx, &keep).await);
        let (mut parent, long) = (ROOT, Name::from(vec![b'd'; 255]));
        let mut seen = Vec::new();
        for depth in 0..20 {
            let (caller, name) = (caller(), Name::from(b"f".to_vec()));
            let make = Make { caller, parent, name, ..Make::default() };
            op!(w, cx => ns::make(cx, &make).await);
            let Make { caller, name, request, .. } = make;
            let unlink = Unlink { caller, request, parent, name, directory: false };
            op!(w, cx => ns::unlink(cx, &unlink).await);
            let grew = grows.get();
            let (mut all, _) = op!(w, cx => ns::trash(cx, None, 99).await);
            all.sort_by_key(|e| e.id);
            seen.push((all.last().expect("it is there").path.len(), grew));
            let kind = InodeKind::Directory;
            let make = Make { kind, parent, name: long.clone(), mode: 0o755, ..who_makes() };
            parent = op!(w, cx => ns::make(cx, &make).await).attr.inode;
            assert_eq!(seen.len(), depth + 1);
        }
        for (depth, (path, grew)) in seen.into_iter().enumerate() {
            let whole = depth * 256 + 2;
            assert_eq!(path, if whole <= 4096 { whole } else { 0 }, "at depth {depth}");
            assert_eq!(grew, path >= 1024, "at depth {depth}");
        }
    });
}

fn who_makes() -> Make {
    Make {
        caller: Caller { client: ClientId(1), volume: V, ..Caller::default() },
        ..Make::default()
    }
}
