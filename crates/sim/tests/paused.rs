//! A client that is stopped for minutes, with the leases as they come, in the shipped services: nothing that it had begun lands late, its open files are told what is
//! promised ([semantics](../../../docs/semantics.md#late-writes)), and it goes on as a new client. Others notice nothing.

use crate::replicas::{CHUNK, LIMIT, Step, change_with, check, fill};
use glowfs_client::{Client, FileAccess, OpenFile};
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_sim::cluster::harness::{Cluster, Shape};
use glowfs_sim::cluster::workload::{caller, open_or_make, report};
use glowfs_types::wire::meta::{Caller, Open, OpenFlags};
use glowfs_types::{ClientId, Error, InodeId, RequestId, Result, SessionId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const SHAPE: Shape =
    Shape { storages: 3, replicas: 3, chains: 3, stripe: 3, clients: 2, ..Shape::SINGLE };
const CHUNKS: u64 = 8;
const STOPPED: Duration = Duration::from_secs(5 * 60);
/// Longer than its session, which is 20 s, and its capabilities, which are 30 s.
const ENDED: Duration = Duration::from_secs(60);
/// What the others may wait for who is stopped, at most: its capabilities.
const WAITED: Duration = Duration::from_secs(35);

/// What becomes of the one that is stopped.
#[derive(Default)]
struct Stopped {
    client: RefCell<Option<Rc<Client>>>,
    read_only: RefCell<Option<Rc<OpenFile>>>,
    /// Writes that were acknowledged, and how each writer ended.
    done: Cell<u64>,
    ends: RefCell<Vec<Error>>,
}

/// Writes to one chunk until that fails.
async fn write_on(file: Rc<OpenFile>, chunk: u64, me: Rc<Stopped>) {
    loop {
        match file.write(chunk * CHUNK, Buf::from_vec(vec![3; CHUNK as usize])).await {
            Ok(()) => me.done.set(me.done.get() + 1),
            Err(e) => return me.ends.borrow_mut().push(e),
        }
    }
}

async fn open_to_read(client: &Rc<Client>, inode: InodeId) -> Result<Rc<OpenFile>> {
    let request = RequestId(0);
    let flags = OpenFlags {
        read: true,
        write: false,
        truncate: false,
        // Who only reads has none.
        session: SessionId(0),
        append: false,
        inline: false,
        exec: false,
    };
    // As a mount says it: whatever life of the client asks by then.
    let caller = Caller { client: ClientId(0), ..caller(client) };
    let open = client.open(Open { caller: caller.clone(), request, inode, flags }).await?;
    let access = FileAccess { caller, read: true, write: false, exec: false };
    client.open_file(&open, access)
}

async fn start(rt: Rt, client: Rc<Client>, me: Rc<Stopped>) -> Result<()> {
    *me.client.borrow_mut() = Some(client.clone());
    let (read, made) = open_or_make(&client, "read").await?;
    fill(&read, 0..1, 7).await?;
    client.close_session(report(&client, &read, true)).await?;
    *me.read_only.borrow_mut() = Some(open_to_read(&client, made.attr.inode).await?);
    let (file, _) = open_or_make(&client, "f").await?;
    fill(&file, 0..CHUNKS, 1).await?;
    for chunk in 0..CHUNKS {
        rt.spawn_detached(write_on(file.clone(), chunk, me.clone()));
    }
    Ok(())
}

/// What another one does with the file meanwhile.
async fn take_over(rt: &Rt, client: &Rc<Client>) -> Result<Duration> {
    let began = rt.now();
    change_with(client, "f", vec![Step::Fill(0..4, 4), Step::Cut(2), Step::Fill(3..6, 5)]).await?;
    Ok(rt.now().since(began))
}

/// What is left of it.
const WANTED: [u8; 6] = [4, 4, 0, 5, 5, 5];

#[test]
fn nothing_lands_late_of_a_client_that_was_stopped_for_minutes() {
    for (seed, after) in [(71, ENDED), (72, Duration::from_secs(1))] {
        let cluster = Cluster::start(seed, SHAPE);
        cluster.bootstrap().expect("a cluster");
        let (node, other) = (cluster.clients[1].clone(), cluster.clients[0].clone());
        let me = Rc::<Stopped>::default();
        let (rt, config, it) = (node.rt(), cluster.client_config(), me.clone());
        node.rt().spawn_detached(async move {
            let client = Client::connect(&rt, config).await.expect("a client");
            start(rt, client, it).await.expect("started");
        });
        assert!(cluster.run_until(LIMIT, || me.done.get() > 100), "it writes");
        node.freeze(STOPPED);
        let (stopped_at, done) = (cluster.world.now(), me.done.get());
        cluster.run_for(after);
        let work = move |rt: Rt, client: Rc<Client>| async move { take_over(&rt, &client).await };
        let waited = cluster.with_client(&other, LIMIT, work).expect("others go on");
        println!("seed {seed}: another client was done within {waited:?}");
        assert!(waited < WAITED, "{waited:?}");
        // Before it goes on ...
        assert!(cluster.world.now() < stopped_at + STOPPED);
        check(&cluster, "f", &WANTED);
        assert!(cluster.world.now() < stopped_at + STOPPED);
        assert_eq!(me.done.get(), done);
        // ... and after.
        let all_ended = || me.ends.borrow().len() as u64 == CHUNKS;
        assert!(cluster.run_until(STOPPED + LIMIT, all_ended), "{:?}", me.ends.borrow());
        assert!(cluster.world.now() >= stopped_at + STOPPED, "it was stopped");
        cluster.run_for(Duration::from_secs(60));
        check(&cluster, "f", &WANTED);
        for e in me.ends.borrow().iter() {
            assert_eq!(e.errno(), 5, "EIO: {e}");
        }
        goes_on(&cluster, &me);
        check(&cluster, "f", &WANTED);
        assert_eq!(*cluster.failures.borrow(), Vec::<String>::new());
    }
}

/// It opens and writes as a new client, and what it only reads it can read still.
fn goes_on(cluster: &Cluster, me: &Stopped) {
    let client = me.client.borrow().clone().expect("connected");
    let read = me.read_only.borrow().clone().expect("opened");
    let node = &cluster.clients[1];
    let rt = node.rt();
    let work = async move {
        change_with(&client, "new", vec![Step::Fill(0..2, 9)]).await?;
        let (result, buf) = read.read(0, rt.alloc(CHUNK as usize)).await;
        result?;
        assert!(buf.iter().all(|b| *b == 7));
        Ok::<(), Error>(())
    };
    cluster.world.run(node, LIMIT, work).expect("in time").expect("it goes on");
    check(cluster, "new", &[9, 9]);
}
