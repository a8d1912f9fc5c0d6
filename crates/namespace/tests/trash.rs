//! How long what was removed stays in the trash, whatever the clocks say.

use crate::world::{V, World};
use glowfs_kv::run_transaction;
use glowfs_namespace::{self as ns, Context};
use glowfs_rt::real;
use glowfs_types::wire::meta::*;
use glowfs_types::*;

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
