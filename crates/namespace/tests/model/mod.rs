//! The namespace's operations: random ones against a naive file system in memory, sessions and lengths, permissions.
//! Here: the requests that the tests make.

mod naive;
mod permissions;
mod random;
mod sessions;
mod tree;

use glowfs_types::wire::meta::*;
use glowfs_types::*;

fn who(uid: u32) -> Caller {
    Caller { uid, gid: uid, client: ClientId(1), volume: VolumeId(1), ..Caller::default() }
}

macro_rules! op {
    ($w:expr, $f:path, $q:expr) => {{
        let (w, q) = (&$w, $q);
        run_transaction(&w.rt, &w.engine, async |tx| $f(&Context::new(tx, &q.caller, w), &q).await)
            .await
    }};
}
use op;

fn name(n: &str) -> Name {
    n.as_bytes().to_vec().into()
}

fn make_q(caller: Caller, parent: InodeId, n: &str, kind: InodeKind) -> Make {
    let symlink = if kind == InodeKind::Symlink { b"target".to_vec() } else { vec![] };
    Make {
        caller,
        request: RequestId(0),
        parent,
        name: name(n),
        kind,
        mode: 0o755,
        rdev: 0,
        symlink,
        open: None,
        exclusive: true,
        ..Make::default()
    }
}

fn open_q(inode: InodeId, uid: u32, write: bool, truncate: bool, session: u128) -> Open {
    let session = SessionId(session);
    let flags = OpenFlags { read: true, write, truncate, session, ..OpenFlags::default() };
    Open { caller: who(uid), request: RequestId(0), inode, flags }
}
