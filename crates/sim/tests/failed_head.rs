//! A head that could not go on, and has not heard yet of the chain without it, in the shipped services: it says nothing more of what there is,
//! to nobody who has not heard of it either.

use glowfs_client::{Client, OpenFile};
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_sim::cluster::harness::{Cluster, Shape};
use glowfs_sim::cluster::workload::open_or_make;
use glowfs_types::Result;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const SHAPE: Shape =
    Shape { storages: 3, replicas: 3, chains: 3, stripe: 3, clients: 2, ..Shape::SINGLE };
/// Bytes of a chunk.
const CHUNK: u64 = 64 << 10;
/// Chunks that are there before the damage, some to each chain.
const BEFORE: u64 = 12;
/// Chunks that are written after it.
const AFTER: u64 = 60;
/// How long who has not heard of the new chain waits for an answer about one chunk.
const PATIENCE: Duration = Duration::from_millis(5);

/// What the two clients tell each other.
#[derive(Default)]
struct Both {
    written: Cell<u64>,
    late: RefCell<Option<(Rc<Client>, Rc<OpenFile>)>>,
}

async fn write(file: &OpenFile, chunk: u64) -> Result<()> {
    file.write(chunk * CHUNK, Buf::from_vec(vec![1; CHUNK as usize])).await
}

/// Writes a part of a damaged block of every chain, so that a head on that disk fails, and then new chunks.
async fn write_on(rt: Rt, client: Rc<Client>, both: Rc<Both>) -> Result<()> {
    let (file, _) = open_or_make(&client, "file").await?;
    for chunk in BEFORE..BEFORE + AFTER {
        let part = chunk % BEFORE * CHUNK + 100;
        file.write(part, Buf::from_vec(vec![2; 100])).await?;
        write(&file, chunk).await?;
        both.written.set(chunk + 1);
        rt.sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// One who has heard nothing of it asks for what was written: it may get no answer, but no wrong one.
async fn ask(rt: Rt, file: Rc<OpenFile>, both: Rc<Both>, done: Rc<Cell<bool>>) -> (u64, u64) {
    let (mut answers, mut wrong) = (0, 0);
    while !done.get() {
        let end = both.written.get();
        for chunk in end.saturating_sub(3).max(BEFORE)..end {
            let (begin, end) = (chunk * CHUNK, (chunk + 1) * CHUNK);
            if let Ok(Ok(found)) = rt.timeout(PATIENCE, file.seek(begin, end, true)).await {
                answers += 1;
                wrong += u64::from(found != Some(begin));
            }
        }
        rt.sleep(Duration::from_millis(1)).await;
    }
    (answers, wrong)
}

#[test]
fn a_head_that_failed_lists_nothing() {
    let mut answered = 0;
    for seed in 51..55 {
        let cluster = Cluster::start(seed, SHAPE);
        cluster.bootstrap().expect("a cluster");
        let (writer, late) = (cluster.clients[0].clone(), cluster.clients[1].clone());
        let limit = Duration::from_secs(60);
        let made = cluster.with_client(&writer, limit, |_, client| async move {
            let (file, _) = open_or_make(&client, "file").await?;
            for chunk in 0..BEFORE {
                write(&file, chunk).await?;
            }
            file.flush().await
        });
        made.expect("the first chunks");
        let both = Rc::<Both>::default();
        let (rt, config, me) = (late.rt(), cluster.client_config(), both.clone());
        late.rt().spawn_detached(async move {
            let client = Client::connect(&rt, config).await.expect("connected");
            let (file, _) = open_or_make(&client, "file").await.expect("opened");
            *me.late.borrow_mut() = Some((client, file));
        });
        assert!(cluster.world.run_until(limit, || both.late.borrow().is_some()));
        // It hears nothing any more of who serves what, and goes on with what it knows.
        cluster.world.cut(&cluster.managers[0].node, &late);
        assert!(cluster.storages[0].damage_chunks() > 100);
        let done = Rc::new(Cell::new(false));
        let (_client, file) = both.late.borrow().clone().expect("connected");
        let outcome = Rc::new(Cell::new(None));
        let (rt, me, end, out) = (late.rt(), both.clone(), done.clone(), outcome.clone());
        late.rt().spawn_detached(async move { out.set(Some(ask(rt, file, me, end).await)) });
        let me = both.clone();
        let written = cluster.with_client(&writer, limit, |rt, c| write_on(rt, c, me));
        written.expect("writes go on");
        done.set(true);
        assert!(cluster.world.run_until(limit, || outcome.get().is_some()));
        let (answers, wrong) = outcome.get().expect("asked");
        println!("seed {seed}: {answers} answers, {wrong} wrong");
        assert_eq!(wrong, 0, "seed {seed}: of {answers} answers");
        answered += answers;
    }
    assert!(answered > 0, "no answer at all");
}
