//! The library's removal of a whole tree: the name goes at once, and once; what was in it goes behind that, also if the metadata service stops meanwhile.
#![allow(clippy::expect_used, missing_docs)]

use glowfs_client::Client;
use glowfs_rt::Duration;
use glowfs_sim::cluster::fsck;
use glowfs_sim::cluster::harness::{Cluster, Shape};
use glowfs_sim::cluster::workload::caller;
use glowfs_types::wire::meta::{InodeKind, Lookup, Make, ROOT_INODE};
use glowfs_types::wire::tree::{RemoveTree, Trees};
use glowfs_types::{InodeId, RequestId, Result, Status};
use std::rc::Rc;

const LIMIT: Duration = Duration::from_secs(600);
const DIRECTORIES: usize = 6;
const FILES: usize = 20;

async fn make(client: &Client, parent: InodeId, name: &str, kind: InodeKind) -> Result<InodeId> {
    let (caller, name) = (caller(client), name.as_bytes().to_vec().into());
    let made = Make { caller, parent, name, kind, mode: 0o755, exclusive: true, ..Make::default() };
    client.make(made).await.map(|r| r.attr.inode)
}

async fn look(client: &Client, name: &str) -> Result<InodeId> {
    let (caller, name) = (caller(client), name.as_bytes().to_vec().into());
    client.lookup(Lookup { caller, parent: ROOT_INODE, name }).await.map(|r| r.attr.inode)
}

/// Asks for the removal of «top»; answers which tree that is.
async fn remove(client: &Client, request: u128, check: bool) -> Result<InodeId> {
    let (caller, name) = (caller(client), b"top".to_vec().into());
    let (request, inode) = (RequestId(request), InodeId(0));
    let query = RemoveTree { caller, request, parent: ROOT_INODE, name, inode, check };
    client.remove_tree(query).await.map(|r| r.tree)
}

async fn tree(client: &Rc<Client>) -> Result<InodeId> {
    let top = make(client, ROOT_INODE, "top", InodeKind::Directory).await?;
    for d in 0..DIRECTORIES {
        let dir = make(client, top, &format!("d{d}"), InodeKind::Directory).await?;
        for f in 0..FILES {
            make(client, dir, &format!("f{f}"), InodeKind::File).await?;
        }
    }
    Ok(top)
}

#[test]
fn a_removed_tree_is_gone_at_once_and_once_and_goes_on_going() {
    let cluster = Cluster::start(71, Shape::SINGLE);
    cluster.bootstrap().expect("a cluster");
    let node = cluster.clients[0].clone();
    let removed = cluster.with_client(&node, LIMIT, |_, client| async move {
        let top = tree(&client).await?;
        assert_eq!(remove(&client, 6, true).await?, top);
        assert_eq!(look(&client, "top").await?, top, "it was only asked");
        assert_eq!(remove(&client, 7, false).await?, top);
        let gone = look(&client, "top").await.expect_err("gone");
        assert_eq!(gone.status, Status::NotFound);
        let queued = client.trees(Trees { caller: caller(&client), after: None }).await?;
        assert_eq!(queued.trees.iter().map(|t| t.tree).collect::<Vec<_>>(), [top]);
        // Asked once more, it is the same removal, whatever has the name by now.
        let other = make(&client, ROOT_INODE, "top", InodeKind::Directory).await?;
        assert_eq!(remove(&client, 7, false).await?, top);
        assert_eq!(look(&client, "top").await?, other);
        Ok(other)
    });
    let other = removed.expect("removed");
    let meta = &cluster.metas[0];
    cluster.crash(meta, false);
    cluster.restart(meta);
    cluster.run_for(Duration::from_secs(60));
    let left = cluster.with_client(&node, LIMIT, |rt, client| async move {
        let queued = client.trees(Trees { caller: caller(&client), after: None }).await?;
        assert!(queued.trees.is_empty(), "{:?}", queued.trees);
        fsck::clean(&rt, &client).await?;
        look(&client, "top").await
    });
    assert_eq!(left.expect("all of it is gone"), other);
}
