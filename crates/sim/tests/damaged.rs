//! Records that cannot be read (damaged, or of a newer release): what they are about stays, and keeps nothing else.
#![allow(clippy::expect_used, missing_docs)]

use glowfs_client::Client;
use glowfs_kv::{Transaction, run_transaction};
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_sim::cluster::harness::{CHUNK_BYTES, Cluster, Shape};
use glowfs_sim::cluster::names::unlink;
use glowfs_sim::cluster::records;
use glowfs_sim::cluster::workload::{caller, open_or_make};
use glowfs_types::wire::meta::{InodeKind, Make, ROOT_INODE};
use glowfs_types::wire::tree::{RemoveTree, Trees};
use glowfs_types::{InodeId, NodeId, RequestId, Result};

const LIMIT: Duration = Duration::from_secs(600);
const DAMAGED: &[u8] = b"damaged";

/// Puts a record; what was there.
async fn put(rt: &Rt, meta: &str, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>> {
    let engine = records::engine(rt, meta.to_owned())?;
    run_transaction(rt, &engine, async |tx: &Transaction| {
        let before = tx.get(key).await?;
        tx.put(key, value)?;
        Ok(before)
    })
    .await
}

/// Chunks of all files.
async fn chunks(client: &Client, node: NodeId) -> Result<u64> {
    let targets = client.storage_info(node).await?.targets;
    Ok(targets.iter().map(|(_, chunks)| *chunks).sum())
}

/// One record in the queue of what is to be removed kept the chunks of all removed files, in the whole cluster, for good.
#[test]
fn one_damaged_record_does_not_keep_all_garbage() {
    let cluster = Cluster::start(91, Shape::SINGLE);
    cluster.bootstrap().expect("a cluster");
    let (node, meta) = (cluster.storages[0].id(), Cluster::address(&cluster.metas[0]));
    let left = cluster.with_client(&cluster.clients[0].clone(), LIMIT, move |rt, c| async move {
        put(&rt, &meta, &records::key(b'G', &[&[0; 10]]), DAMAGED).await?;
        let (file, _) = open_or_make(&c, "f").await?;
        file.write(0, Buf::from_vec(vec![1; 3 * CHUNK_BYTES as usize])).await?;
        c.close_file(&file).await?;
        drop(file);
        assert_eq!(chunks(&c, node).await?, 3);
        unlink(&c, ROOT_INODE, "f", false).await?;
        rt.sleep(Duration::from_secs(30)).await;
        chunks(&c, node).await
    });
    assert_eq!(left.expect("chunks"), 0);
}

/// One inode that could not be read kept all of its directory in a removed tree.
#[test]
fn one_damaged_inode_does_not_keep_a_removed_tree() {
    const FILES: usize = 100;
    let cluster = Cluster::start(92, Shape::SINGLE);
    cluster.bootstrap().expect("a cluster");
    let meta = Cluster::address(&cluster.metas[0]);
    let done = cluster.with_client(&cluster.clients[0].clone(), LIMIT, move |rt, c| async move {
        let make = async |parent, name: String, kind| {
            let name = name.into_bytes().into();
            let q = Make { caller: caller(&c), parent, name, kind, mode: 0o755, ..Make::default() };
            c.make(q).await.map(|r| r.attr.inode)
        };
        let top = make(ROOT_INODE, "top".into(), InodeKind::Directory).await?;
        let mut files = Vec::new();
        for n in 0..FILES {
            files.push(make(top, format!("f{n:03}"), InodeKind::File).await?);
        }
        let key = records::inode(files[3]);
        let sound = put(&rt, &meta, &key, DAMAGED).await?.expect("its record");
        let (inode, name) = (InodeId(0), b"top".to_vec().into());
        let (request, parent, check) = (RequestId(7), ROOT_INODE, false);
        c.remove_tree(RemoveTree { caller: caller(&c), request, parent, name, inode, check })
            .await?;
        let queued = async || c.trees(Trees { caller: caller(&c), after: None }).await;
        rt.sleep(Duration::from_secs(30)).await;
        let trees = queued().await?.trees;
        assert_eq!(trees.iter().map(|t| (t.waiting, t.files)).collect::<Vec<_>>(), [(1, 99)]);
        put(&rt, &meta, &key, &sound).await?;
        rt.sleep(Duration::from_secs(120)).await;
        Ok(queued().await?.trees)
    });
    assert_eq!(done.expect("removed"), []);
}
