//! What every replica holds, for the tests that bring targets up to date: files that have one byte all over each of their chunks.

use glowfs_client::{Client, ClientConfig, OpenFile};
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, Cluster, Service, all_serve};
use glowfs_sim::cluster::names::unlink;
use glowfs_sim::cluster::workload::{caller, open_or_make, report};
use glowfs_types::wire::meta::{ROOT_INODE, SetAttr};
use glowfs_types::{ChunkId, RequestId, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// Bytes of a chunk.
pub const CHUNK: u64 = CHUNK_BYTES as u64;
/// How long anything may take.
pub const LIMIT: Duration = Duration::from_secs(600);
/// How long garbage collection may take.
const COLLECTED: Duration = Duration::from_secs(120);

/// Runs something with a client of its own.
pub fn with<T: 'static, F: Future<Output = Result<T>> + 'static>(
    cluster: &Cluster,
    work: impl FnOnce(Rt, Rc<Client>) -> F + 'static,
) -> T {
    cluster.with_client(&cluster.clients[0].clone(), LIMIT, work).expect("done")
}

/// Waits until everybody serves.
pub fn wait_serving(cluster: &Cluster) {
    let shape = cluster.shape();
    with(cluster, move |rt, client| async move {
        while !all_serve(&client.routing(), shape) {
            rt.sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    });
}

/// Starts all storage services anew, one after the other, each when all serve.
pub fn restart_one_by_one(cluster: &Cluster, services: &[Service]) {
    for service in services {
        cluster.crash(service, false);
        cluster.run_for(Duration::from_secs(3));
        cluster.restart(service);
        wait_serving(cluster);
    }
}

/// Chunks of a file that are written with a byte.
pub async fn fill(file: &OpenFile, chunks: Range<u64>, byte: u8) -> Result<()> {
    for chunk in chunks {
        file.write(chunk * CHUNK, Buf::from_vec(vec![byte; CHUNK as usize])).await?;
    }
    Ok(())
}

/// A step of a file's life.
#[derive(Clone, Debug)]
pub enum Step {
    /// Chunks are written with a byte.
    Fill(Range<u64>, u8),
    /// It is cut to so many chunks, all of what is behind them removed.
    Cut(u64),
    /// It is removed; what follows is of another file of that name.
    Remove,
}

/// Does such steps, and flushes.
pub fn change(cluster: &Cluster, name: &'static str, steps: Vec<Step>) {
    with(cluster, move |_, client| async move { change_with(&client, name, steps).await });
}

/// The same with a client.
pub async fn change_with(client: &Rc<Client>, name: &str, steps: Vec<Step>) -> Result<()> {
    for step in steps {
        if let Step::Remove = step {
            unlink(client, ROOT_INODE, name, false).await?;
            continue;
        }
        let (file, _) = open_or_make(client, name).await?;
        match step {
            Step::Fill(chunks, byte) => fill(&file, chunks, byte).await?,
            Step::Cut(chunks) => {
                let (caller, request) = (caller(client), RequestId(0));
                let (inode, session) = (file.inode(), file.session());
                let len = Some(chunks * CHUNK);
                let cut = SetAttr { caller, request, inode, len, session, ..SetAttr::default() };
                file.update_attr(&client.setattr(cut).await?.attr);
            }
            Step::Remove => {}
        }
        file.flush().await?;
        client.close_session(report(client, &file, true)).await?;
    }
    Ok(())
}

/// The replicas of one node have exactly this of a file: a byte for each chunk, 0 where nothing was written.
pub fn check_near(cluster: &Cluster, storage: &Service, name: &'static str, want: &[u8]) {
    let (node, want) = (storage.id(), want.to_vec());
    with(cluster, move |rt, client| async move {
        // The client reads from replicas of its own host, if there are.
        let host = client.routing().nodes[&node].host;
        let config = ClientConfig { host, hedge: false, ..client.config().clone() };
        let near = Client::connect(&rt, config).await?;
        let (file, reply) = open_or_make(&near, name).await?;
        assert_eq!(reply.attr.len, want.len() as u64 * CHUNK, "{name} near {node}");
        for (i, byte) in want.iter().enumerate() {
            let (result, buf) = file.read(i as u64 * CHUNK, rt.alloc(CHUNK as usize)).await;
            result?;
            let wrong = buf.iter().find(|b| *b != byte);
            assert!(wrong.is_none(), "{name}, chunk {i} near {node}: {wrong:?} for {byte}");
        }
        near.close_session(report(&near, &file, false)).await?;
        near.close().await;
        Ok(())
    });
}

/// Each replica has exactly this of a file; all say the same of each of its chunks, and hold as many chunks.
pub fn check(cluster: &Cluster, name: &'static str, want: &[u8]) {
    for storage in &cluster.storages {
        check_near(cluster, storage, name, want);
    }
    let chunks = want.len() as u64;
    with(cluster, move |rt, client| async move {
        same_chunks(&client, name, chunks).await?;
        let until = rt.now() + COLLECTED;
        loop {
            let counts = counts(&client).await?;
            if counts.values().all(|c| c.windows(2).all(|p| p[0] == p[1])) {
                return Ok(());
            }
            assert!(rt.now() < until, "chunks of the members of each chain: {counts:?}");
            rt.sleep(Duration::from_millis(500)).await;
        }
    });
}

async fn same_chunks(client: &Rc<Client>, name: &str, chunks: u64) -> Result<()> {
    let (file, _) = open_or_make(client, name).await?;
    let (io, info, layout) = (client.chunk_io(), client.routing(), file.layout());
    let table = info.table(layout.table, layout.table_version).expect("its table");
    for extent in layout.extents(0, chunks * CHUNK) {
        let place = layout.position(extent.index, table.chains.len() as u32) as usize;
        let (chain, index) = (table.chains[place], extent.index);
        let chunk = ChunkId { volume: file.volume(), data: file.data(), index };
        let mut all = Vec::new();
        for m in &info.chains[&chain].members {
            // A target that was brought up to date forgets removed chunks; the others keep their tombstones.
            all.push(io.query_chunk(chain, m.target, chunk).await?.filter(|c| c.len > 0));
        }
        assert!(all.windows(2).all(|p| p[0] == p[1]), "{name}, chunk {index}: {all:?}");
    }
    client.close_session(report(client, &file, false)).await.map(drop)
}

/// How many chunks each member of each chain holds.
async fn counts(client: &Rc<Client>) -> Result<BTreeMap<u64, Vec<u64>>> {
    let info = client.routing();
    let mut counts = BTreeMap::<u64, Vec<u64>>::new();
    for chain in info.chains.values() {
        for m in &chain.members {
            let node = client.storage_info(m.node).await?;
            let of = node.targets.iter().find(|t| t.0 == m.target).map_or(0, |t| t.1);
            counts.entry(chain.id.0).or_default().push(of);
        }
    }
    Ok(counts)
}
