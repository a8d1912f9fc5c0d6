//! What whoever changes names hears of the directories.

use super::lab::{Lab, make, name};
use glowfs_rt::Duration;
use glowfs_sim::cluster::workload::caller;
use glowfs_types::wire::meta::*;
use glowfs_types::*;

/// Whoever changes names learns what the directories are like afterwards, exactly as GETATTR shows them.
#[test]
fn a_change_of_names_brings_the_directories() {
    let lab = Lab::new(26);
    lab.cluster.run_for(Duration::from_secs(3));
    lab.run(0, |c| async move {
        let dir = |parent, called: &'static str| Make {
            parent,
            kind: InodeKind::Directory,
            ..make(&c, 0, called)
        };
        let seen = async |inode| {
            let q = OfInode { caller: caller(&c), inode };
            c.getattr(q).await.expect("there").attr
        };
        let d = c.make(dir(ROOT_INODE, "d")).await.expect("made").attr;
        let e = c.make(dir(ROOT_INODE, "e")).await.expect("made").attr;
        assert_eq!((d.entries, e.entries), (Some(0), Some(0)));
        let check = async |dirs: &[DirChanged], expected: &[(InodeId, u64, u64)]| {
            assert_eq!(dirs.len(), expected.len());
            for (dir, (inode, before, after)) in dirs.iter().zip(expected) {
                assert_eq!(dir.attr, seen(*inode).await);
                assert_eq!((dir.before, dir.attr.entries), (*before, Some(*after)));
                assert!(dir.lease_ms > 0, "nobody else changes it");
            }
        };
        let one = |dir: Option<Box<DirChanged>>| vec![*dir.expect("the directory")];
        let f = c.make(Make { parent: d.inode, ..make(&c, 0, "f") }).await.expect("made");
        check(&one(f.dir), &[(d.inode, 0, 1)]).await;
        let sub = c.make(dir(d.inode, "sub")).await.expect("made");
        check(&one(sub.dir), &[(d.inode, 1, 2)]).await;
        let link = Link {
            caller: caller(&c),
            request: RequestId(0),
            inode: f.attr.inode,
            parent: e.inode,
            name: name("g"),
        };
        check(&one(c.link(link).await.expect("linked").dir), &[(e.inode, 0, 1)]).await;
        let rename = |from: InodeId, old: &str, to: InodeId, new: &str| Rename {
            caller: caller(&c),
            request: RequestId(0),
            parent: from,
            name: name(old),
            new_parent: to,
            new_name: name(new),
            flags: 0,
        };
        let moved = c.rename(rename(d.inode, "sub", e.inode, "s")).await.expect("moved");
        assert_eq!(moved.moved, [sub.attr.inode]);
        check(&moved.dirs, &[(d.inode, 2, 3), (e.inode, 1, 2)]).await;
        let same = c.rename(rename(d.inode, "f", e.inode, "g")).await.expect("one file");
        assert!(same.moved.is_empty());
        check(&same.dirs, &[(d.inode, 3, 3), (e.inode, 2, 2)]).await;
        let within = c.rename(rename(d.inode, "f", d.inode, "h")).await.expect("moved");
        check(&within.dirs, &[(d.inode, 3, 5)]).await;
        let unlink = Unlink {
            caller: caller(&c),
            request: RequestId(0),
            parent: d.inode,
            name: name("h"),
            directory: false,
        };
        check(&one(c.unlink(unlink).await.expect("removed").dir), &[(d.inode, 5, 6)]).await;
    });
}
