//! Names: each client makes, renames and unlinks files in a directory of its own; every answer and every listing must be what an
//! exact model says, under retries and crashes of the services.

use super::certain::is_kept;
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
#[derive(Debug)]
pub(super) struct Directory {
    /// What may be there, by what it was told: one thing alone, until the metadata engine loses its power.
    now: Vec<Model>,
    /// What may be there again if it does: what was there at any time since names were flushed last.
    before: Vec<Model>,
    /// Losses that count in `now`.
    losses: u64,
    /// What it has asked for and not been told of.
    asked: Option<Asked>,
    /// The directory is there.
    made: bool,
}

impl Default for Directory {
    fn default() -> Self {
        let (now, before) = (vec![Model::new()], Vec::new());
        Self { now, before, losses: 0, asked: None, made: false }
    }
}

fn add(models: &mut Vec<Model>, more: Vec<Model>) {
    more.into_iter().for_each(|m| {
        if !models.contains(&m) {
            models.push(m);
        }
    });
}

impl Directory {
    /// Whether it may have these names (`None`: it is not there) when its client is gone and so many losses are known.
    pub fn may_be(&self, names: Option<&Model>, losses: u64) -> bool {
        let Some(names) = names else { return !self.made };
        let before = self.before.iter().filter(|_| losses != self.losses);
        self.now
            .iter()
            .chain(before)
            .any(|m| m == names || self.asked.as_ref().is_some_and(|a| a.explains(m, names)))
    }
    /// The engine may have lost its power since.
    fn notice(&mut self, losses: u64) -> bool {
        let lost = std::mem::replace(&mut self.losses, losses) != losses;
        if lost {
            let before = std::mem::take(&mut self.before);
            add(&mut self.now, before);
        }
        lost
    }
    /// All names that it was told of are on disk.
    fn flushed(&mut self) {
        self.before.clear();
    }
    /// An answer: what it makes of what may have been there; None where it cannot be. `losses`: so many now. False: no such answer can be.
    fn answered(&mut self, losses: u64, after: impl Fn(&Model) -> Option<Model>) -> bool {
        let lost = self.notice(losses);
        let fit = self.now.iter().filter_map(|m| Some((m.clone(), after(m)?)));
        let fit: Vec<(Model, Model)> = fit.collect();
        if fit.is_empty() {
            return false;
        }
        let all = std::mem::take(&mut self.now);
        for (was, is) in fit {
            if was != is {
                add(&mut self.before, vec![was]);
            }
            add(&mut self.now, vec![is]);
        }
        if lost {
            // What was told of may have gone just after it was done.
            add(&mut self.now, all);
        }
        true
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

/// Makes its directory, for good.
async fn make_kept(client: &Client, shared: &Shared, estate: &Estate) -> Result<InodeId> {
    let known = &estate.names;
    known.borrow_mut().asked = Some(Asked::Directory);
    let mut may_be_there = false;
    loop {
        let losses = shared.engine_losses.get();
        let made = match make(client, ROOT_INODE, &estate.dir, InodeKind::Directory).await {
            Err(e) if e.status == Status::Exists && may_be_there => {
                lookup(client, ROOT_INODE, &estate.dir).await?.ok_or(e)?
            }
            made => made?,
        };
        if is_kept(client, shared, losses).await? {
            *known.borrow_mut() = Directory { made: true, losses, ..Directory::default() };
            return Ok(made);
        }
        may_be_there = true;
    }
}

async fn ops(rt: &Rt, client: &Client, shared: &Shared, estate: &Estate) -> Result<()> {
    let (dir, known) = (estate.dir.as_str(), &estate.names);
    let parent = make_kept(client, shared, estate).await?;
    // Whether what was told can be.
    let told = |what: &str, got: String, after: &dyn Fn(&Model) -> Option<Model>| {
        // For who replays a seed with its log.
        tracing::debug!(dir, losses = shared.engine_losses.get(), got, "{what}");
        if !known.borrow_mut().answered(shared.engine_losses.get(), after) {
            let now = &known.borrow().now;
            shared.problem(format!("{dir}: {what}: {got}, and before it there was one of {now:?}"));
        }
    };
    while !shared.stop.get() {
        let name = format!("n{}", rt.random_below(NAMES));
        let ask = |asked: Asked| {
            let mut known = known.borrow_mut();
            known.notice(shared.engine_losses.get());
            known.asked = Some(asked);
        };
        match rt.random_below(if shared.background.get() { 9 } else { 8 }) {
            0..3 => {
                ask(Asked::Make(name.clone()));
                let made = match make(client, parent, &name, InodeKind::File).await {
                    Err(e) if e.status == Status::Exists => None,
                    made => Some(made?),
                };
                told(&format!("make {name}"), format!("{made:?}"), &|m| {
                    let with = |inode| with(m, &name, inode);
                    (m.contains_key(&name) != made.is_some())
                        .then(|| made.map_or_else(|| m.clone(), with))
                });
            }
            3 | 4 => {
                ask(Asked::Unlink(name.clone()));
                let done = was_there(unlink(client, parent, &name, false).await)?;
                told(&format!("unlink {name}"), format!("{done}"), &|m| {
                    (m.contains_key(&name) == done).then(|| without(m, &name))
                });
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
                let done = was_there(client.rename(query).await.map(drop))?;
                told(&format!("rename {name} to {to}"), format!("{done}"), &|m| {
                    let renamed = |inode: &InodeId| with(&without(m, &name), &to, *inode);
                    let inode = m.get(&name);
                    (inode.is_some() == done).then(|| inode.map_or_else(|| m.clone(), renamed))
                });
            }
            6 => {
                let got = lookup(client, parent, &name).await?;
                let fits = |m: &Model| (m.get(&name).copied() == got).then(|| m.clone());
                told(&format!("lookup {name}"), format!("{got:?}"), &fits);
            }
            7 => {
                let got = list(client, parent).await?;
                told("listing", format!("{got:?}"), &|m| (*m == got).then(|| m.clone()));
            }
            _ => {
                let losses = shared.engine_losses.get();
                known.borrow_mut().notice(losses);
                if is_kept(client, shared, losses).await? {
                    known.borrow_mut().flushed();
                }
            }
        }
        known.borrow_mut().asked = None;
        if !shared.background.get() {
            known.borrow_mut().flushed();
        }
        shared.ops.set(shared.ops.get() + 1);
        rt.sleep(Duration::from_micros(rt.random_below(40_000))).await;
    }
    known.borrow_mut().notice(shared.engine_losses.get());
    let got = list(client, parent).await?;
    told("the last listing", format!("{got:?}"), &|m| (*m == got).then(|| m.clone()));
    empty(client, dir, parent, &got).await
}

/// Whether a name was there that was to go.
fn was_there(done: Result<()>) -> Result<bool> {
    match done {
        Err(e) if e.status == Status::NotFound => Ok(false),
        done => done.map(|()| true),
    }
}

fn with(names: &Model, name: &str, inode: InodeId) -> Model {
    let mut names = names.clone();
    names.insert(name.to_owned(), inode);
    names
}

fn without(names: &Model, name: &str) -> Model {
    let mut names = names.clone();
    names.remove(name);
    names
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
        let asked = |asked| {
            let now = vec![names(&[("a", 1)])];
            Directory { now, asked, made: true, ..Directory::default() }
        };
        let judge = |d: &Directory, all: &[(&str, u64)]| d.may_be(Some(&names(all)), 0);
        for (d, happened) in [
            (asked(Some(Asked::Make(b.clone()))), &[("a", 1), ("b", 7)][..]),
            (asked(Some(Asked::Unlink(a.clone()))), &[][..]),
            (asked(Some(Asked::Rename(a, b))), &[("b", 1)][..]),
        ] {
            assert!(judge(&d, &[("a", 1)]) && judge(&d, happened), "{d:?}");
            assert!(!judge(&d, &[("a", 1), ("c", 7)]) && !judge(&d, &[("b", 2)]), "{d:?}");
            assert!(!d.may_be(None, 0), "the directory was made");
        }
        assert!(judge(&asked(None), &[("a", 1)]) && !judge(&asked(None), &[]));
        assert!(
            Directory { asked: Some(Asked::Directory), ..Directory::default() }.may_be(None, 0)
        );
    }

    #[test]
    fn what_was_told_and_not_flushed_may_go_with_the_power_and_nothing_else() {
        let model = |n: u64| with(&Model::new(), "a", InodeId(n));
        let mut d = Directory { made: true, ..Directory::default() };
        for n in 1..4 {
            assert!(d.answered(0, |_| Some(model(n))));
            if n == 1 {
                d.flushed();
            }
        }
        let is = |n: u64| move |m: &Model| (*m == model(n)).then(|| m.clone());
        assert!(!d.may_be(Some(&model(2)), 0) && d.may_be(Some(&model(2)), 1));
        assert!(!d.may_be(Some(&Model::new()), 1), "it was flushed");
        assert!(!d.answered(0, is(2)), "without a loss");
        d.notice(1);
        assert!(!d.answered(1, is(7)) && d.answered(1, is(2)));
        assert!(!d.answered(1, is(3)), "it was told which");
        // On its way when the power went: it may be gone as well.
        assert!(d.answered(2, |_| Some(model(9))) && d.may_be(Some(&model(2)), 2));
    }
}
