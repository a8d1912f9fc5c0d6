//! Names: each client makes, renames and unlinks files in a directory of its own; every answer and every listing must be what an
//! exact model says, under retries and crashes of the services.

use super::estate::Estate;
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

/// Names and inodes.
pub(super) type Model = BTreeMap<String, InodeId>;

/// A change of names under way: if it is never answered, it may have happened or not.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    /// Of the directory itself.
    Directory,
    Make(String),
    Unlink(String),
    Rename(String, String),
}

impl Asked {
    /// Whether these names are what it makes of those before; the inode of a new one is anybody's guess.
    fn explains(&self, before: &Model, names: &Model) -> bool {
        let mut after = before.clone();
        match self {
            Self::Directory => return false,
            Self::Make(name) => {
                let Some(inode) = names.get(name) else { return false };
                after.entry(name.clone()).or_insert(*inode);
            }
            Self::Unlink(name) => drop(after.remove(name)),
            Self::Rename(from, to) => {
                let Some(inode) = after.remove(from) else { return false };
                after.insert(to.clone(), inode);
            }
        }
        after == *names
    }
}

/// What is known of a client's directory.
#[derive(Debug, Default)]
pub(super) struct Directory {
    /// What it was told is there.
    model: Model,
    /// What it has asked for and not been told of.
    asked: Option<Asked>,
    /// The directory is there.
    made: bool,
}

impl Directory {
    /// Whether it may have these names (`None`: it is not there) when its client is gone.
    pub fn may_be(&self, names: Option<&Model>) -> bool {
        match names {
            None => !self.made,
            Some(names) => {
                *names == self.model
                    || self.asked.as_ref().is_some_and(|a| a.explains(&self.model, names))
            }
        }
    }
}

/// One client's work, until told to stop; it leaves nothing behind.
pub async fn work(rt: Rt, client: Rc<Client>, shared: Rc<Shared>, estate: Rc<Estate>) {
    if let Err(e) = ops(&rt, &client, &shared, &estate).await {
        shared.problem(format!("{}: {e}", estate.dir));
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

async fn ops(rt: &Rt, client: &Client, shared: &Shared, estate: &Estate) -> Result<()> {
    let (dir, known) = (estate.dir.as_str(), &estate.names);
    known.borrow_mut().asked = Some(Asked::Directory);
    let parent = make(client, ROOT_INODE, dir, InodeKind::Directory).await?;
    *known.borrow_mut() = Directory { made: true, ..Directory::default() };
    let wrong = |what: &str, name: &str, got: String, want: String| {
        shared.problem(format!("{dir}: {what} {name}: {got}, and must be {want}"));
    };
    while !shared.stop.get() {
        let name = format!("n{}", rt.random_below(NAMES));
        let there = known.borrow().model.get(&name).copied();
        let ask = |asked: Asked| known.borrow_mut().asked = Some(asked);
        match rt.random_below(8) {
            0..3 => {
                ask(Asked::Make(name.clone()));
                match (make(client, parent, &name, InodeKind::File).await, there) {
                    (Ok(inode), None) => drop(known.borrow_mut().model.insert(name, inode)),
                    (Err(e), Some(_)) if e.status == Status::Exists => {}
                    (Err(e), _) if e.status != Status::Exists => return Err(e),
                    (got, there) => wrong("make", &name, format!("{got:?}"), format!("{there:?}")),
                }
            }
            3 | 4 => {
                ask(Asked::Unlink(name.clone()));
                match (unlink(client, parent, &name, false).await, there) {
                    (Ok(()), Some(_)) => drop(known.borrow_mut().model.remove(&name)),
                    (Err(e), None) if e.status == Status::NotFound => {}
                    (Err(e), _) if e.status != Status::NotFound => return Err(e),
                    (got, there) => {
                        wrong("unlink", &name, format!("{got:?}"), format!("{there:?}"));
                    }
                }
            }
            5 => {
                let to = format!("n{}", rt.random_below(NAMES));
                ask(Asked::Rename(name.clone(), to.clone()));
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
                        let mut known = known.borrow_mut();
                        known.model.remove(&name);
                        known.model.insert(to, inode);
                    }
                    (Err(e), None) if e.status == Status::NotFound => {}
                    (Err(e), _) if e.status != Status::NotFound => return Err(e),
                    (got, there) => {
                        wrong("rename", &name, format!("{:?}", got.err()), format!("{there:?}"));
                    }
                }
            }
            6 => {
                let got = lookup(client, parent, &name).await?;
                if got != there {
                    wrong("lookup", &name, format!("{got:?}"), format!("{there:?}"));
                }
            }
            _ => {
                let got = list(client, parent).await?;
                if got != known.borrow().model {
                    wrong("listing", "", format!("{got:?}"), format!("{known:?}"));
                }
            }
        }
        known.borrow_mut().asked = None;
        shared.ops.set(shared.ops.get() + 1);
        rt.sleep(Duration::from_micros(rt.random_below(40_000))).await;
    }
    let got = list(client, parent).await?;
    if got != known.borrow().model {
        wrong("the last listing", "", format!("{got:?}"), format!("{known:?}"));
    }
    empty(client, dir, parent, &got).await
}

/// Removes a directory with its names.
pub(super) async fn empty(client: &Client, dir: &str, inode: InodeId, names: &Model) -> Result<()> {
    for name in names.keys() {
        unlink(client, inode, name, false).await?;
    }
    unlink(client, ROOT_INODE, dir, true).await
}

/// The inode of a name, if it is there.
pub(super) async fn lookup(
    client: &Client,
    parent: InodeId,
    name: &str,
) -> Result<Option<InodeId>> {
    let name = name.as_bytes().to_vec().into();
    match client.lookup(Lookup { caller: caller(client), parent, name }).await {
        Ok(r) => Ok(Some(r.attr.inode)),
        Err(e) if e.status == Status::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

pub(super) async fn list(client: &Client, inode: InodeId) -> Result<Model> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_was_never_answered_may_have_happened_or_not() {
        let names = |all: &[(&str, u64)]| -> Model {
            all.iter().map(|(name, inode)| ((*name).to_owned(), InodeId(*inode))).collect()
        };
        let (a, b) = ("a".to_owned(), "b".to_owned());
        let asked = |asked| Directory { model: names(&[("a", 1)]), asked, made: true };
        let judge = |d: &Directory, all: &[(&str, u64)]| d.may_be(Some(&names(all)));
        for (d, happened) in [
            (asked(Some(Asked::Make(b.clone()))), &[("a", 1), ("b", 7)][..]),
            (asked(Some(Asked::Unlink(a.clone()))), &[][..]),
            (asked(Some(Asked::Rename(a, b))), &[("b", 1)][..]),
        ] {
            assert!(judge(&d, &[("a", 1)]) && judge(&d, happened), "{d:?}");
            assert!(!judge(&d, &[("a", 1), ("c", 7)]) && !judge(&d, &[("b", 2)]), "{d:?}");
            assert!(!d.may_be(None), "the directory was made");
        }
        assert!(judge(&asked(None), &[("a", 1)]) && !judge(&asked(None), &[]));
        assert!(Directory { asked: Some(Asked::Directory), ..Directory::default() }.may_be(None));
    }
}
