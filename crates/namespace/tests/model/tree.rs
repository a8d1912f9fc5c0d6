//! The tree as the namespace shows it, in the form of the naive one.

use super::naive::Model;
use super::{op, who};
use crate::world::World;
use glowfs_kv::run_transaction;
use glowfs_namespace::{self as ns, Context};
use glowfs_types::wire::meta::*;
use glowfs_types::*;
use std::collections::{BTreeMap, BTreeSet};

/// The whole tree as the namespace shows it, in pages of two.
pub async fn tree(w: &World) -> Model {
    let mut m = Model::default();
    m.parents.insert(1, 1);
    let (mut todo, mut inodes) = (vec![1], BTreeSet::from([1]));
    while let Some(dir) = todo.pop() {
        let mut entries = BTreeMap::new();
        let mut after = 0;
        loop {
            let q = ReadDir {
                caller: who(0),
                inode: InodeId(dir),
                after,
                limit: 2,
                attributes: true,
                atime: AtimeRule::default(),
            };
            let (page, _) = op!(*w, ns::readdir, q.clone()).expect("readdir");
            assert_eq!(page.parent.0, m.parents[&dir]);
            for e in page.entries {
                assert!(e.cookie > after);
                after = e.cookie;
                let attr = e.attr.expect("attributes");
                let n = String::from_utf8(e.name.to_vec()).expect("ascii");
                let look = Lookup { caller: who(0), parent: InodeId(dir), name: e.name.clone() };
                assert_eq!(op!(*w, ns::lookup, look.clone()).expect("lookup"), attr);
                entries.insert(n, e.inode.0);
                inodes.insert(e.inode.0);
                if e.kind == InodeKind::Directory {
                    m.parents.insert(e.inode.0, dir);
                    todo.push(e.inode.0);
                } else {
                    m.links.insert(e.inode.0, attr.nlink);
                }
            }
            if page.end {
                break;
            }
        }
        let of = OfInode { caller: who(0), inode: InodeId(dir) };
        let attr = op!(*w, ns::getattr, of.clone()).expect("getattr");
        let subdirs = m.parents.iter().filter(|(i, p)| **p == dir && **i != 1).count() as u32;
        assert_eq!(attr.nlink, 2 + subdirs, "links of directory {dir}");
        m.dirs.insert(dir, entries);
    }
    let usage = run_transaction(&w.rt, &w.engine, async |tx| ns::statfs(tx, VolumeId(1)).await)
        .await
        .expect("statfs");
    assert_eq!(usage.inodes, inodes.len() as u64, "counted inodes");
    m
}
