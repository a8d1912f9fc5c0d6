//! Changes of names that the client who asked for them may not have finished yet.
//!
//! While a rename or removal is under way, the kernel of that client goes on finding the old name, if it is leased: it drops it when the answer
//! has come. So nobody else may be told what came of the change before that kernel is through with it; then whatever is found there was found
//! before. A kernel makes one change at a time in a directory. So a change is finished when the client begins the next one there, when it has
//! been told to forget the name (which its kernel does between changes), or when no lease from before can last any longer.
//!
//! Nobody has seen anything of a change before its commit is sent. So nobody waits for one that is only noted: it may be one that its client may not make, and may take
//! long to find that out. Until then others are told, and may keep, what was before.
//!
//! Must never: wait for changes that came later. (Of two changes of a directory only the later one waits for the earlier one; those that read
//! wait, and nobody waits for them.)

use glowfs_rt::sync::Notify;
use glowfs_rt::{Duration, Instant};
use glowfs_types::wire::meta::Name;
use glowfs_types::{ClientId, InodeId, RequestId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Nobody waits longer for a transaction that may have changed a name, counted from the time when no lease from before it can last any longer: one that
/// takes so long waits for the metadata engine.
const BEGUN_MAX: Duration = Duration::from_secs(10);

/// See the module. `C`: how a client is called.
pub struct Finishing<C> {
    table: RefCell<Table<C>>,
}

struct Table<C> {
    dirs: BTreeMap<InodeId, Directory<C>>,
    /// When directories are looked at for changes that have ended, in the order of that time: once for each of them.
    looks: VecDeque<(Instant, InodeId)>,
}

/// A directory in which names are being changed, or were a moment ago: there is a look at it ahead.
struct Directory<C> {
    /// Those of the newest request of each client, and all that are in work.
    changes: Vec<Rc<Unfinished<C>>>,
}

impl<C> Table<C> {
    fn changes(&self, dir: InodeId) -> impl Iterator<Item = &Rc<Unfinished<C>>> {
        self.dirs.get(&dir).into_iter().flat_map(|d| &d.changes)
    }
}

/// How far a change is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    /// No commit of it was sent, or of all that were it is known that nothing comes of them: nobody can have seen it.
    Noted,
    /// Its transaction may have been committed, or not.
    Begun,
    /// Committed; what others have of it is being taken from them.
    Committed,
    /// Its client is being answered, or has been.
    Answered,
    /// Its client's kernel is through with it.
    Finished,
}

/// A change of a name in a directory.
pub struct Unfinished<C> {
    /// Who changes it.
    pub client: ClientId,
    /// How that client is called.
    pub conn: C,
    /// Where.
    pub dir: InodeId,
    /// A name that led to something else before.
    pub name: Name,
    until: Cell<Instant>,
    request: RequestId,
    stage: Cell<Stage>,
    /// The count of changes of the directory with it, once it is known.
    version: Cell<Option<u64>>,
    /// Its client's kernel may have the name from before.
    keeps: Cell<bool>,
    /// Kernels have to forget a name before its client is answered.
    held_up: Cell<bool>,
    /// Somebody is telling the client to forget the name.
    telling: Cell<bool>,
    /// Nobody knows whether it was committed, so nobody was told of it.
    doubtful: Cell<bool>,
    news: Notify,
}

/// What a call of a client has found out.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Where.
    pub dir: InodeId,
    /// Of which name; None: of all.
    pub name: Option<&'a Name>,
    /// As it was after so many changes of the directory; None: not known how many.
    pub version: Option<u64>,
}

/// A change that is being carried out. When dropped, its client is being answered.
pub struct Begun<C> {
    names: Vec<Rc<Unfinished<C>>>,
    /// Commits of it that were sent and of which it is not known that nothing comes of them.
    open: Cell<u32>,
    /// How long leases last.
    life: Duration,
}

/// What to do about a change of somebody else.
#[derive(PartialEq, Eq, Debug)]
pub enum Next {
    /// Go on.
    Nothing,
    /// Wait for news of it.
    Wait,
    /// Tell its client to forget the name, then call [`Unfinished::finish`].
    Tell,
}

impl<C> Default for Finishing<C> {
    fn default() -> Self {
        let table = Table { dirs: BTreeMap::new(), looks: VecDeque::new() };
        Self { table: RefCell::new(table) }
    }
}

impl<C: Clone> Finishing<C> {
    /// A client begins to change these names, as leases of `life` are given; with `keeps` its kernel may have them from before.
    pub fn begin(
        &self,
        (client, conn): (ClientId, &C),
        request: RequestId,
        (names, keeps): (&[(InodeId, &Name)], bool),
        (now, life): (Instant, Duration),
    ) -> Begun<C> {
        let mut begun = Vec::with_capacity(names.len());
        self.forget(now, life);
        for (dir, name) in names {
            let until = now + life;
            let change = Rc::new(Unfinished {
                client,
                conn: conn.clone(),
                dir: *dir,
                name: (*name).clone(),
                until: Cell::new(until),
                request,
                stage: Cell::new(Stage::Noted),
                version: Cell::new(None),
                keeps: Cell::new(keeps),
                held_up: Cell::new(false),
                telling: Cell::new(false),
                doubtful: Cell::new(false),
                news: Notify::new(),
            });
            begun.push(change.clone());
            let Table { dirs, looks } = &mut *self.table.borrow_mut();
            let here = dirs.entry(*dir).or_insert_with(|| {
                looks.push_back((until, *dir));
                Directory { changes: Vec::new() }
            });
            here.changes.push(change);
        }
        Begun { names: begun, open: Cell::new(0), life }
    }

    /// A client changes names in a directory by another request: what it changed there before is finished.
    pub fn went_on(&self, dir: InodeId, client: ClientId, request: RequestId) {
        let mut table = self.table.borrow_mut();
        let Some(here) = table.dirs.get_mut(&dir) else { return };
        // Of those in work nothing is known yet, whatever else their client asks for meanwhile.
        let same = |u: &Unfinished<C>| {
            let known = u.stage.get() >= Stage::Answered && !u.doubtful.get();
            u.client == client && u.request != request && known
        };
        for earlier in here.changes.extract_if(.., |u| same(u)) {
            earlier.finish();
        }
    }

    /// Changes of what `by` has seen that others have not finished.
    pub fn others(&self, seen: &Seen<'_>, by: ClientId) -> Vec<Rc<Unfinished<C>>> {
        let table = self.table.borrow();
        let of = |u: &Unfinished<C>| {
            u.client != by
                && u.stage.get() != Stage::Finished
                && seen.name.is_none_or(|name| *name == u.name)
        };
        table.changes(seen.dir).filter(|u| of(u)).cloned().collect()
    }

    /// Whether what a client finds in a directory may be from before its own change.
    pub fn is_changing(&self, dir: InodeId, client: ClientId) -> bool {
        let table = self.table.borrow();
        let mut all = table.changes(dir);
        all.any(|u| u.client == client && u.keeps.get() && u.stage.get() <= Stage::Begun)
    }

    fn forget(&self, now: Instant, life: Duration) {
        let Table { dirs, looks } = &mut *self.table.borrow_mut();
        // What is looked at again comes to the end, so each is looked at once.
        for _ in 0..looks.len() {
            let Some((_, dir)) = looks.pop_front_if(|(at, _)| *at <= now) else { return };
            let Some(here) = dirs.get_mut(&dir) else { continue };
            let in_work = |u: &Unfinished<C>| u.stage.get() < Stage::Answered;
            here.changes.retain(|u| u.until() > now || in_work(u));
            if here.changes.is_empty() {
                dirs.remove(&dir);
            } else {
                looks.push_back((now + life, dir));
            }
        }
    }
}

impl<C> Unfinished<C> {
    /// What somebody has to do about it, for what he has seen.
    pub fn next(&self, seen: &Seen<'_>, now: Instant) -> Next {
        let later = |version: Option<u64>| seen.version.zip(version).is_some_and(|(s, v)| v > s);
        match self.stage.get() {
            Stage::Noted | Stage::Finished => Next::Nothing,
            Stage::Begun if now >= self.until() + BEGUN_MAX => Next::Nothing,
            Stage::Begun => Next::Wait,
            _ if later(self.version.get()) || self.until() <= now => Next::Nothing,
            // A listing has the directory locked in a kernel.
            Stage::Committed if seen.name.is_none() && self.held_up.get() => Next::Nothing,
            Stage::Committed => Next::Wait,
            // Others than its client may have it, too.
            Stage::Answered if self.doubtful.get() => Next::Wait,
            Stage::Answered if self.telling.replace(true) => Next::Wait,
            Stage::Answered => Next::Tell,
        }
    }
    /// When no lease from before can last any longer.
    pub fn until(&self) -> Instant {
        self.until.get()
    }
    /// When somebody who was told to wait has to look again, without news.
    pub fn look_again(&self, now: Instant) -> Instant {
        let until = self.until();
        if until > now { until } else { until + BEGUN_MAX }
    }
    /// Resolves when something about it may have changed since this was called.
    pub fn news(&self) -> impl Future<Output = ()> {
        self.news.wait()
    }
    /// Its client's kernel is through with it, or has no lease any more.
    pub fn finish(&self) {
        self.reach(Stage::Finished);
    }
    fn reach(&self, stage: Stage) {
        if self.stage.get() < stage {
            self.stage.set(stage);
            self.news.notify_all();
        }
    }
}

impl<C> Begun<C> {
    /// A commit of it is being sent: from now on it may have been seen, and who looks is given no lease of what was before, unless nobody ever hears what became of it.
    pub fn sent(&self, now: Instant) {
        let before = self.open.replace(self.open.get() + 1);
        for u in self.names.iter().filter(|_| before == 0) {
            u.until.set(now + self.life);
            u.reach(Stage::Begun);
        }
    }
    /// Nothing comes of the commit that was sent last. If that holds for all, whoever waits has not seen the change: the next attempt comes after he has looked.
    pub fn came_to_nothing(&self) {
        self.open.set(self.open.get().saturating_sub(1));
        let begun = |u: &&Rc<Unfinished<C>>| u.stage.get() == Stage::Begun;
        for u in self.names.iter().filter(|_| self.open.get() == 0).filter(begun) {
            u.stage.set(Stage::Noted);
            u.news.notify_all();
        }
    }
    /// It is committed, and is about to be taken from others, with `held_up` from kernels that have the name: `version` says what it has made of
    /// the count of changes of a directory.
    pub fn committed(&self, version: impl Fn(InodeId) -> Option<u64>, held_up: bool) {
        debug_assert!(self.open.get() > 0, "its commit was sent without a word: nobody waited");
        for u in &self.names {
            u.version.set(version(u.dir));
            u.held_up.set(held_up);
            u.reach(Stage::Committed);
        }
    }
    /// Its client keeps nothing that it would have to forget.
    pub fn keeps_nothing(&self) {
        self.names.iter().for_each(|u| u.keeps.set(false));
    }
    /// It came to nothing, or nobody keeps anything from before.
    pub fn finish(&self) {
        self.names.iter().for_each(|u| u.finish());
    }
}

impl<C> Drop for Begun<C> {
    fn drop(&mut self) {
        for u in &self.names {
            u.doubtful.set(u.stage.get() == Stage::Begun);
            u.reach(match u.stage.get() {
                Stage::Begun => Stage::Answered,
                Stage::Committed if u.keeps.get() => Stage::Answered,
                _ => Stage::Finished,
            });
        }
    }
}

#[cfg(test)]
mod tests;
