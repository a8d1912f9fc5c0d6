//! Who may do what: modes, owners, sticky and set-id bits, ACLs.

use super::{make_q, name, op, open_q, who};
use crate::world::World;
use glowfs_kv::{Transaction, run_transaction};
use glowfs_namespace::{self as ns, Context};
use glowfs_rt::real;
use glowfs_types::wire::meta::*;
use glowfs_types::*;

#[test]
fn permissions() {
    real::run(|rt| async move {
        let w = World::new(&rt, 0).await;
        let root = InodeId(1);
        let denied = |r: Result<()>| r.expect_err("denied").errno();
        let d = op!(w, ns::make, make_q(who(5), root, "d", InodeKind::Directory))
            .expect("mkdir")
            .attr
            .inode;
        let f =
            op!(w, ns::make, make_q(who(5), d, "f", InodeKind::File)).expect("create").attr.inode;
        assert_eq!(
            denied(op!(w, ns::make, make_q(who(6), d, "x", InodeKind::File)).map(|_| ())),
            13
        );
        assert_eq!(denied(op!(w, ns::open, open_q(f, 6, true, false, 1)).map(|_| ())), 13);
        op!(w, ns::open, open_q(f, 6, false, false, 0)).expect("others may read");
        let set = |uid: u32, f: &dyn Fn(&mut SetAttr)| {
            let mut q = SetAttr { caller: who(uid), ..SetAttr::default() };
            f(&mut q);
            q
        };
        assert_eq!(
            denied(
                op!(w, ns::setattr, set(6, &|q| (q.inode, q.mode) = (f, Some(0o777)))).map(|_| ())
            ),
            1
        );
        assert_eq!(
            denied(op!(w, ns::setattr, set(5, &|q| (q.inode, q.uid) = (f, Some(6)))).map(|_| ())),
            1
        );
        let now = Some(SetTime::Now);
        for (times, errno) in [((now, now), 13), ((now, None), 1), ((None, now), 1)] {
            let touch = set(6, &|q| (q.inode, (q.atime, q.mtime)) = (f, times));
            assert_eq!(denied(op!(w, ns::setattr, touch).map(|_| ())), errno, "{times:?}");
        }
        let suid = op!(w, ns::setattr, set(5, &|q| (q.inode, q.mode) = (f, Some(0o6755))))
            .expect("chmod")
            .0;
        assert_eq!(suid.mode, 0o6755);
        let chowned =
            op!(w, ns::setattr, set(0, &|q| (q.inode, q.uid) = (f, Some(7)))).expect("chown").0;
        assert_eq!(chowned.mode, 0o755, "set-id bits go with a new owner");
        // Sticky: only owners remove.
        op!(w, ns::setattr, set(5, &|q| (q.inode, q.mode) = (d, Some(0o1777)))).expect("sticky");
        let rm = |uid| Unlink {
            caller: who(uid),
            request: RequestId(0),
            parent: d,
            name: name("f"),
            directory: false,
        };
        assert_eq!(denied(op!(w, ns::unlink, rm(6)).map(|_| ())), 1);
        op!(w, ns::unlink, rm(7)).expect("the file's owner");
        // Set-group-id directories hand their group on.
        op!(w, ns::setattr, set(0, &|q| (q.inode, q.gid, q.mode) = (d, Some(42), Some(0o2777))))
            .expect("setgid");
        let sub =
            op!(w, ns::make, make_q(who(6), d, "s", InodeKind::Directory)).expect("mkdir").attr;
        assert_eq!((sub.gid, sub.mode), (42, 0o2755));
    });
}

#[test]
fn acls_are_enforced_and_inherited() {
    real::run(|rt| async move {
        let w = World::new(&rt, 0).await;
        let root = InodeId(1);
        // Version 2, then tag, permissions, id: user 5 may all, the mask leaves reading and searching.
        let acl = |entries: &[(u16, u16, u32)]| {
            let mut bytes = 2u32.to_le_bytes().to_vec();
            for (tag, perm, id) in entries {
                bytes.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
                bytes.extend(id.to_le_bytes());
            }
            bytes
        };
        let none = u32::MAX;
        let user5 = acl(&[(1, 7, none), (2, 7, 5), (4, 0, none), (16, 5, none), (32, 0, none)]);
        let set = |uid, inode, n: &str, value: &[u8]| SetXattr {
            caller: who(uid),
            request: RequestId(0),
            inode,
            name: name(n),
            value: value.to_vec(),
            flags: 0,
        };
        let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
        let d = op!(w, ns::make, make_q(who(1), root, "d", InodeKind::Directory))
            .expect("mkdir")
            .attr
            .inode;
        let refused = op!(w, ns::setxattr, set(5, d, access, &user5)).expect_err("not the owner");
        assert_eq!(refused.status, Status::NotPermitted);
        op!(w, ns::setxattr, set(1, d, access, &user5)).expect("access");
        op!(w, ns::setxattr, set(1, d, default, &user5)).expect("default");
        let of = |inode| OfInode { caller: who(0), inode };
        let attr = op!(w, ns::getattr, of(d)).expect("attr");
        assert_eq!((attr.mode, attr.has_acl), (0o750, true));
        let list = |uid| ReadDir {
            caller: who(uid),
            inode: d,
            after: 0,
            limit: 9,
            attributes: false,
            atime: AtimeRule::default(),
        };
        op!(w, ns::readdir, list(5)).expect("named");
        assert_eq!(op!(w, ns::readdir, list(6)).expect_err("others").status, Status::AccessDenied);
        let made = op!(w, ns::make, make_q(who(5), d, "no", InodeKind::File)).expect_err("masked");
        assert_eq!(made.status, Status::AccessDenied);
        // What is made inside gets the default, less what the maker did not ask for; the umask is not used.
        let f = Make { mode: 0o640, umask: 0o777, ..make_q(who(1), d, "f", InodeKind::File) };
        let f = op!(w, ns::make, f.clone()).expect("make").attr;
        assert_eq!((f.mode, f.has_acl), (0o640, true));
        op!(w, ns::open, open_q(f.inode, 5, false, false, 0)).expect("inherited");
        let sub = op!(w, ns::make, make_q(who(1), d, "s", InodeKind::Directory))
            .expect("mkdir")
            .attr
            .inode;
        let names = op!(w, ns::listxattr, of(sub)).expect("list");
        assert_eq!(names, [name(access), name(default)]);
        // chmod moves the mask; without ACLs the mode rules again.
        let chmod =
            SetAttr { caller: who(1), inode: f.inode, mode: Some(0o600), ..SetAttr::default() };
        op!(w, ns::setattr, chmod.clone()).expect("chmod");
        assert_eq!(
            op!(w, ns::open, open_q(f.inode, 5, false, false, 0)).expect_err("masked").status,
            Status::AccessDenied
        );
        op!(w, ns::setxattr, set(1, f.inode, access, &[])).expect("remove");
        assert!(!op!(w, ns::getattr, of(f.inode)).expect("attr").has_acl);
        let plain =
            Make { mode: 0o666, umask: 0o027, ..make_q(who(1), root, "p", InodeKind::File) };
        assert_eq!(op!(w, ns::make, plain.clone()).expect("make").attr.mode, 0o640);
    });
}

/// All directories above the new place were read before anybody looked whether the caller may rename at all.
#[test]
fn who_may_not_rename_has_little_read_for_it() {
    real::run(|rt| async move {
        let (w, root) = (World::new(&rt, 0).await, InodeId(1));
        let dir = async |uid, parent, n| {
            let q = make_q(who(uid), parent, n, InodeKind::Directory);
            op!(w, ns::make, q).expect("made").attr.inode
        };
        let home = dir(7, root, "home").await;
        let mut deepest = dir(5, root, "mine").await;
        for _ in 0..200 {
            deepest = dir(5, deepest, "d").await;
        }
        let rename = async |uid, parent, n, new_parent| {
            let (name, new_name) = (name(n), name("x"));
            let (caller, request, flags) = (who(uid), RequestId(0), 0);
            let q = Rename { caller, request, parent, name, new_parent, new_name, flags };
            let asked = async |tx: &Transaction| {
                let done = ns::rename(&Context::new(tx, &q.caller, &w), &q).await;
                Ok((done.map_err(|e| e.status).err(), tx.conditions()))
            };
            run_transaction(&w.rt, &w.engine, asked).await.expect("asked")
        };
        let (refused, read) = rename(5, root, "home", deepest).await;
        assert_eq!(refused, Some(Status::AccessDenied), "its `..` is not the caller's");
        assert!(read < 20, "{read} conditions");
        let (refused, read) = rename(7, root, "home", deepest).await;
        assert_eq!(refused, Some(Status::AccessDenied), "the new place is not the caller's");
        assert!(read < 20, "{read} conditions");
        // Who may is told that a directory does not go into itself.
        let (refused, read) = rename(5, root, "mine", deepest).await;
        assert_eq!(refused, Some(Status::InvalidArgument));
        assert!(read > 200, "{read} conditions");
        assert_eq!(rename(7, root, "home", root).await.0, None);
        let look = OfInode { caller: who(7), inode: home };
        op!(w, ns::getattr, look).expect("there");
    });
}
