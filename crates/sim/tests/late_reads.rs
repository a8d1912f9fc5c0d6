//! Reads that have waited for their turn at a slow disk until nobody wanted them any more: the disk does not work on them.

use glowfs_client::ClientConfig;
use glowfs_rt::sync::join_all;
use glowfs_rt::{Buf, Duration};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, Cluster, DISK, Shape};
use glowfs_sim::cluster::workload::open_or_make;

const SHAPE: Shape = Shape { clients: 2, ..Shape::SINGLE };
/// Chunks, of each of which a piece is read.
const READS: u64 = 64;
/// Bytes of a read.
const READ: usize = 64 << 10;
/// The disk takes half a second for one.
const DISK_BYTES_PER_S: u64 = 2 * READ as u64;
/// How long a client waits for them. All together take 32 s.
const PATIENCE: Duration = Duration::from_secs(4);
/// What a read may take that comes when those are given up: one is being done, and the queue is gone.
const SOON: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn a_slow_disk_does_not_read_what_nobody_waits_for() {
    let cluster = Cluster::start(61, SHAPE);
    cluster.bootstrap().expect("a cluster");
    let [first, second] = [0, 1].map(|i| cluster.clients[i].clone());
    let place = |chunk| chunk * u64::from(CHUNK_BYTES);
    let filled = cluster.with_client(&first, LIMIT, move |_, client| async move {
        let (file, _) = open_or_make(&client, "file").await?;
        for chunk in 0..READS {
            file.write(place(chunk), Buf::from_vec(vec![7; READ])).await?;
        }
        Ok(())
    });
    filled.expect("written");
    cluster.storages[0].node.disk(DISK).set_rate(DISK_BYTES_PER_S);

    let config = ClientConfig { data_total: PATIENCE, hedge: false, ..cluster.client_config() };
    let given_up = cluster.with_config(&first, LIMIT, config, move |rt, client| async move {
        let (file, _) = open_or_make(&client, "file").await?;
        let reads = (0..READS).map(|chunk| file.read(place(chunk), rt.alloc(READ)));
        Ok(join_all(reads).await.iter().filter(|(read, _)| read.is_err()).count())
    });
    let given_up = given_up.expect("a client");
    assert!(given_up as u64 > READS / 2, "{given_up}: the disk was not busy for long enough");

    let took = cluster.with_client(&second, LIMIT, move |rt, client| async move {
        let (file, _) = open_or_make(&client, "file").await?;
        let began = rt.now();
        let (read, buf) = file.read(place(0), rt.alloc(READ)).await;
        assert_eq!(read?, READ);
        assert!(buf.iter().all(|b| *b == 7));
        Ok(rt.now().since(began))
    });
    let took = took.expect("read");
    assert!(took < SOON, "it took {took:?}");
    assert_eq!(*cluster.failures.borrow(), Vec::<String>::new());
}
