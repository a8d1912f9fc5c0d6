//! Names: each client makes, renames and unlinks files in a directory of its own; every answer and every listing must be what an
//! exact model says, under retries and crashes of the services.

use super::workload::{Shared, caller};
use glowfs_client::Client;
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::meta::{
    AtimeRule, InodeKind, Lookup, Make, ROOT_INODE, ReadDir, Rename, Unlink,
};
use glowfs_types::{Error, InodeId, RequestId, Result, Status};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Names that are used.
const NAMES: u64 = 6;

type Model = BTreeMap<String, InodeId>;

/// One client's work, until told to stop; it leaves nothing behind.
pub async fn work(rt: Rt, client: Rc<Client>, shared: Rc<Shared>, dir: String) {
    if let Err(e) = ops(&rt, &client, &shared, &dir).await {
        shared.problem(format!("{dir}: {e}"));
    }
}

pub(super) async fn make(
    client: &Client,
    parent: InodeId,
    name: &str,
    kind: InodeKind,
) -> Result<InodeId> {
    let query = Make {
        caller: caller(client),
        request: RequestId(0),
        parent,
        name: name.as_bytes().to_vec().into(),
        kind,
        mode: 0o755,
        rdev: 0,
        symlink: Vec::new(),
        open: None,
        exclusive: true,
        ..Make::default()
    };
    client.make(query).await.map(|r| r.attr.inode)
}

/// Removes a name; whether it was there.
pub async fn unlink(client: &Client, parent: InodeId, name: &str, directory: bool) -> Result<()> {
    let query = Unlink {
        caller: caller(client),
        request: RequestId(0),
        parent,
        name: name.as_bytes().to_vec().into(),
        directory,
    };
    client.unlink(query).await.map(|_| ())
}

async fn ops(rt: &Rt, client: &Client, shared: &Shared, dir: &str) -> Result<()> {
    let parent = make(client, ROOT_INODE, dir, InodeKind::Directory).await?;
    let mut model = Model::new();
    let wrong = |what: &str, name: &str, got: String, want: String| {
        shared.problem(format!("{dir}: {what} {name}: {got}, and must be {want}"));
    };
    while !shared.stop.get() {
        let name = format!("n{}", rt.random_below(NAMES));
        let there = model.get(&name).copied();
        match rt.random_below(8) {
            0..3 => match (make(client, parent, &name, InodeKind::File).await, there) {
                (Ok(inode), None) => drop(model.insert(name, inode)),
                (Err(e), Some(_)) if e.status == Status::Exists => {}
                (Err(e), _) if e.status != Status::Exists => return Err(e),
                (got, there) => wrong("make", &name, format!("{got:?}"), format!("{there:?}")),
            },
            3 | 4 => match (unlink(client, parent, &name, false).await, there) {
                (Ok(()), Some(_)) => drop(model.remove(&name)),
                (Err(e), None) if e.status == Status::NotFound => {}
                (Err(e), _) if e.status != Status::NotFound => return Err(e),
                (got, there) => wrong("unlink", &name, format!("{got:?}"), format!("{there:?}")),
            },
            5 => {
                let to = format!("n{}", rt.random_below(NAMES));
                let query = Rename {
                    caller: caller(client),
                    request: RequestId(0),
                    parent,
                    name: name.as_bytes().to_vec().into(),
                    new_parent: parent,
                    new_name: to.as_bytes().to_vec().into(),
                    flags: 0,
                };
                match (client.rename(query).await, there) {
                    (Ok(_), Some(inode)) => {
                        model.remove(&name);
                        model.insert(to, inode);
                    }
                    (Err(e), None) if e.status == Status::NotFound => {}
                    (Err(e), _) if e.status != Status::NotFound => return Err(e),
                    (got, there) => {
                        wrong("rename", &name, format!("{:?}", got.err()), format!("{there:?}"));
                    }
                }
            }
            6 => {
                let query = Lookup {
                    caller: caller(client),
                    parent,
                    name: name.as_bytes().to_vec().into(),
                };
                let got = match client.lookup(query).await {
                    Ok(r) => Some(r.attr.inode),
                    Err(e) if e.status == Status::NotFound => None,
                    Err(e) => return Err(e),
                };
                if got != there {
                    wrong("lookup", &name, format!("{got:?}"), format!("{there:?}"));
                }
            }
            _ => {
                let got = list(client, parent).await?;
                if got != model {
                    wrong("listing", "", format!("{got:?}"), format!("{model:?}"));
                }
            }
        }
        shared.ops.set(shared.ops.get() + 1);
        rt.sleep(Duration::from_micros(rt.random_below(40_000))).await;
    }
    let got = list(client, parent).await?;
    if got != model {
        wrong("the last listing", "", format!("{got:?}"), format!("{model:?}"));
    }
    for name in got.keys() {
        unlink(client, parent, name, false).await?;
    }
    unlink(client, ROOT_INODE, dir, true).await
}

async fn list(client: &Client, inode: InodeId) -> Result<Model> {
    let query = ReadDir {
        caller: caller(client),
        inode,
        after: 0,
        limit: 1000,
        attributes: false,
        atime: AtimeRule::default(),
    };
    let reply = client.readdir(query).await?;
    let mut out = Model::new();
    for e in reply.entries {
        let name = String::from_utf8(e.name.to_vec())
            .map_err(|_| Error::new(Status::Internal, "a listing holds a name nobody made"))?;
        if name != "." && name != ".." {
            out.insert(name, e.inode);
        }
    }
    Ok(out)
}
