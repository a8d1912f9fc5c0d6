//! Which data ids are left out when older metadata is put back.

use crate::world::{V, World};
use glowfs_kv::{Engine, run_transaction};
use glowfs_namespace::{IdRange, next_data_id, skip_ids, skipped_data_ids, take_data_ids};
use glowfs_rt::real;
use std::rc::Rc;

/// What a metadata service takes at a time.
const RANGE: u64 = 16_384;

async fn take(w: &World, engine: &Rc<dyn Engine>) -> IdRange {
    run_transaction(&w.rt, engine, async |tx| take_data_ids(tx, V, RANGE).await)
        .await
        .expect("taken")
}

/// Two services have taken ids when the metadata is copied, and give them out afterwards: what is stored under those is nothing that may be reclaimed when the copy is
/// put back.
#[test]
fn ids_that_services_held_when_the_metadata_was_copied_are_skipped() {
    real::run(|rt| async move {
        let w = World::new(&rt, 0).await;
        let engine = w.engine.clone();
        for _ in 0..40 {
            take(&w, &engine).await;
        }
        let held = [take(&w, &engine).await, take(&w, &engine).await];
        let (next, skipped) = run_transaction(&w.rt, &engine, async |tx| {
            let next = next_data_id(tx, V).await?;
            assert!(skip_ids(tx, V, &[], None).await?);
            Ok((next, skipped_data_ids(tx, V).await?))
        })
        .await
        .expect("skipped");
        let is = |id| skipped.iter().any(|r: &IdRange| r.holds(id));
        for id in held.iter().flat_map(|r| [r.next, r.end - 1]).chain([next]) {
            assert!(is(id), "{id} of {held:?}, next {next}: {skipped:?}");
        }
        assert!(!is(1), "what was given out long before is as ever: {skipped:?}");
        let fresh = take(&w, &engine).await;
        assert!(!is(fresh.next), "{fresh:?}: {skipped:?}");
    });
}
