//! Channels of clients that are gone: forgotten, they take no memory and no room, and nothing of them comes back.

use crate::fake::{Crash, Disk, run};
use crate::small::{T, bytes, config, id, request};
use glowfs_chunkstore::{StageKind, StageRequest, Store, StoreConfig};
use glowfs_rt::Rt;
use glowfs_rt::sync::join_all;
use glowfs_types::wire::data::ChannelRecord;
use glowfs_types::{ChannelId, ChunkVersion, ClientId, Seq};

/// Clients, of which a few live at a time.
const CLIENTS: u64 = 5000;

fn channel(client: u64, channel: u64) -> ChannelRecord {
    ChannelRecord {
        client: ClientId(u128::from(client)),
        channel: ChannelId(channel),
        seq: Seq(1),
        chunk: id(1),
        version: ChunkVersion(1),
    }
}

fn write(client: u64, version: u64) -> StageRequest {
    let channel = ChannelRecord {
        client: ClientId(u128::from(client)),
        channel: ChannelId(1),
        seq: Seq(version),
        chunk: id(1),
        version: ChunkVersion(version),
    };
    let update = request(1, version, StageKind::Replace, bytes(version, 100));
    StageRequest { channel: Some(channel), ..update }
}

/// The bytes of the newest checkpoint.
async fn checkpointed(store: &Store, disk: &Disk) -> usize {
    store.checkpoint().await.expect("checkpoint");
    let names = disk.file_names().into_iter().filter(|n| n.starts_with("checkpoint"));
    names.map(|n| disk.blocks(&n).len() * 4096).max().expect("a checkpoint")
}

async fn open(rt: &Rt, disk: &std::rc::Rc<Disk>) -> Store {
    Store::open(rt, disk.dir(), config()).await.expect("open")
}

#[test]
fn very_many_clients_leave_nothing_behind() {
    let disk = Disk::new(21);
    let d = disk.clone();
    run(21, &disk, |rt| async move {
        let store = open(&rt, &d).await;
        store.create_target(T).await.expect("target");
        store.stage(T, write(1, 1)).await.expect("written");
        let first = checkpointed(&store, &d).await;
        for client in 2..CLIENTS {
            store.stage(T, write(client, client)).await.expect("written");
            if client > 10 {
                let gone = [ClientId(u128::from(client - 10))];
                store.forget_clients(T, gone).await.expect("forgotten");
            }
            assert!(store.channels(T).len() <= 11, "{}", store.channels(T).len());
        }
        let last = checkpointed(&store, &d).await;
        assert!(last <= first + 4096, "the checkpoint grew from {first} to {last} bytes");
        store.flush(T).await.expect("flush");
    })
    .expect("ran");
    let disk = disk.after(Crash::Power, 1);
    let d = disk.clone();
    run(22, &disk, |rt| async move {
        let store = open(&rt, &d).await;
        assert!(store.channels(T).len() <= 11, "{:?}", store.channels(T));
    })
    .expect("ran");
}

/// So many channels that a checkpoint's list of them has more than 64 MiB, which is what one frame of it could have: the store opens again.
#[test]
fn a_checkpoint_of_very_many_channels_is_read_again() {
    const CHANNELS: u64 = 900_000;
    /// Records put at once.
    const PAGE: u64 = 100;
    let disk = Disk::new(23);
    let d = disk.clone();
    run(23, &disk, |rt| async move {
        // Few checkpoints on the way: each has all of them.
        let config =
            StoreConfig { log_segment_bytes: 16 << 20, log_bytes_max: 256 << 20, ..config() };
        let store = Store::open(&rt, d.dir(), config.clone()).await.expect("open");
        store.create_target(T).await.expect("target");
        let record = |n: u64| ChannelRecord {
            client: ClientId(u128::from(n / 256)),
            channel: ChannelId(n % 256),
            seq: Seq(1),
            chunk: id(1),
            version: ChunkVersion(1),
        };
        for page in 0..CHANNELS / PAGE {
            let records = (page * PAGE..(page + 1) * PAGE).map(record).collect();
            store.put_channels(T, records).await.expect("put");
        }
        assert!(checkpointed(&store, &d).await > 64 << 20);
        store.close().await.expect("closed");
        drop(store);
        let store = Store::open(&rt, d.dir(), config).await.expect("open");
        assert_eq!(store.channels(T).len() as u64, CHANNELS);
    })
    .expect("ran");
}

/// What was asked for after the client was forgotten is remembered, though both are on their way at once.
#[test]
fn a_write_that_comes_after_it_is_remembered() {
    let disk = Disk::new(23);
    let d = disk.clone();
    run(23, &disk, |rt| async move {
        let store = open(&rt, &d).await;
        store.create_target(T).await.expect("target");
        store.stage(T, write(7, 1)).await.expect("written");
        let forgets = async { store.forget_clients(T, [ClientId(7)]).await.map(drop) };
        let writes = async { store.stage(T, write(7, 2)).await.map(drop) };
        let both: Vec<std::pin::Pin<Box<dyn Future<Output = _>>>> =
            vec![Box::pin(forgets), Box::pin(writes)];
        join_all(both).await.into_iter().for_each(|r| r.expect("done"));
        let seq = |store: &Store| store.channel(T, ClientId(7), ChannelId(1)).map(|c| c.seq);
        assert_eq!(seq(&store), Some(Seq(2)));
        store.flush(T).await.expect("flush");
    })
    .expect("ran");
    let disk = disk.after(Crash::Power, 1);
    let d = disk.clone();
    run(24, &disk, |rt| async move {
        let store = open(&rt, &d).await;
        assert_eq!(store.channel(T, ClientId(7), ChannelId(1)).map(|c| c.seq), Some(Seq(2)));
    })
    .expect("ran");
}

/// A target that is brought up to date forgets all clients that it knew, while its chain waits: not with a write for each.
#[test]
fn many_clients_are_forgotten_in_a_few_writes() {
    let disk = Disk::new(25);
    let d = disk.clone();
    run(25, &disk, |rt| async move {
        let store = open(&rt, &d).await;
        store.create_target(T).await.expect("target");
        let record = |client| ChannelRecord { client, ..channel(1, 1) };
        let clients: Vec<_> = (1..=CLIENTS).map(|n| ClientId(n.into())).collect();
        let records = clients.iter().map(|c| record(*c)).collect();
        store.put_channels(T, records).await.expect("put");
        let before = d.ops.get();
        store.forget_clients(T, clients).await.expect("forgotten");
        let ops = d.ops.get() - before;
        assert!(ops < 100, "{ops} operations");
        assert_eq!(store.channels(T), []);
    })
    .expect("ran");
}

/// Some channels of a client go and others stay, also over a loss of power.
#[test]
fn some_channels_of_a_client_are_forgotten() {
    const CHANNELS: u64 = 5000;
    let disk = Disk::new(26);
    let d = disk.clone();
    run(26, &disk, |rt| async move {
        let store = open(&rt, &d).await;
        store.create_target(T).await.expect("target");
        let records = (0..CHANNELS).map(|n| channel(7, n)).chain([channel(8, 0)]);
        store.put_channels(T, records.collect()).await.expect("put");
        let gone: Vec<_> = (0..CHANNELS).filter(|n| n % 100 != 0).map(ChannelId).collect();
        store.forget_channels(T, [], [(ClientId(7), gone.clone())]).await.expect("forgotten");
        store.flush(T).await.expect("flush");
    })
    .expect("ran");
    let disk = disk.after(Crash::Power, 1);
    let d = disk.clone();
    run(27, &disk, |rt| async move {
        let store = open(&rt, &d).await;
        let left = store.channels(T);
        assert_eq!(left.len() as u64, CHANNELS / 100 + 1);
        assert!(left.iter().all(|c| c.channel.0 % 100 == 0));
    })
    .expect("ran");
}
