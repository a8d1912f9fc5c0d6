//! What a client leaves that ended in the middle of its work: files and names with what is known of them, so that others can judge them in the end.
//!
//! What was acknowledged is there; what was asked for and never answered may have happened or not; what was acknowledged and not flushed may have
//! gone with all power. How long its files are is right when its session has ended.

use super::certain::open_kept;
use super::model::FileModel;
use super::names::{Directory, empty, list, lookup, unlink};
use super::small;
use super::workload::{Shared, open, report};
use glowfs_client::Client;
use glowfs_rt::Rt;
use glowfs_types::wire::meta::ROOT_INODE;
use glowfs_types::{InodeId, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Bytes read behind the end that a file may have.
const BEHIND: u64 = 1000;

/// Where a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the root directory.
    Root,
    /// In the directory of small files.
    Small,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum There {
    /// Its making was asked for.
    Asked,
    Yes,
    /// Its removal was asked for.
    Going,
}

/// A file that one task alone works on, and what is known of it.
pub struct Kept {
    place: Place,
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub model: RefCell<FileModel>,
    /// Losses of all power that the model knows of.
    pub losses: Cell<u64>,
    /// Those of which nobody is told.
    failed_flushes: Cell<u64>,
    /// There was one since it was made.
    lost: Cell<bool>,
    /// Losses of the metadata engine's power before it was made.
    engine_losses: Cell<u64>,
    /// The same before it was opened with the session that it has, as long as nothing says that this is on the disk of the metadata engine.
    session: Cell<Option<u64>>,
    there: Cell<There>,
}

impl Kept {
    /// It is there.
    pub fn made(&self) {
        self.there.set(There::Yes);
    }
    /// It is being removed.
    pub fn goes(&self) {
        self.there.set(There::Going);
    }
    /// It is being opened anew, and nobody makes sure of the session.
    pub fn opens(&self, shared: &Shared) {
        self.session.set(shared.background.get().then(|| shared.engine_losses.get()));
    }
    /// What was flushed through the session since there were so many losses of the engine's power was answered: if there was none since, the session is on the disk, too.
    pub fn session_flushed(&self, shared: &Shared, losses: u64) {
        if shared.engine_losses.get() == losses {
            self.session.set(None);
        }
    }
    /// The session may be gone with the engine's power, and nothing has been asked of it since that would have put it back for good.
    fn may_lack_session(&self, shared: &Shared) -> bool {
        self.session.get().is_some_and(|before| before != shared.engine_losses.get())
    }
    /// Tells the model of losses of all power that it does not know of; whether there were any.
    pub fn notice_losses(&self, shared: &Shared) -> bool {
        if self.losses.replace(shared.power_losses.get()) == shared.power_losses.get() {
            return false;
        }
        self.lost.set(true);
        let failed = shared.failed_flushes.get();
        if self.failed_flushes.replace(failed) == failed {
            self.model.borrow_mut().power_lost();
        } else {
            self.model.borrow_mut().silently_lost();
        }
        true
    }

    /// Its client is gone: what is there must be what may be there. Then it is removed.
    async fn judge(&self, rt: &Rt, client: &Rc<Client>, shared: &Shared) -> Result<()> {
        let wrong = |what: String| {
            shared.problem(format!("{}, whose client ended in the middle: {what}", self.name));
        };
        let parent = match self.place {
            Place::Root => ROOT_INODE,
            Place::Small => small::dir(client).await?,
        };
        let Some(inode) = lookup(client, parent, &self.name).await? else {
            if self.there.get() == There::Yes {
                wrong("it is gone".into());
            }
            return Ok(());
        };
        self.notice_losses(shared);
        self.model.borrow_mut().abandoned();
        if self.place == Place::Small && self.engine_losses.get() != shared.engine_losses.get() {
            self.judge_contents(rt, client, shared).await?;
            return unlink(client, parent, &self.name, false).await;
        }
        let lengths = self.model.borrow().lengths(self.lost.get());
        // Nobody asked the chunks for the end of a file that counted as closed.
        let short = self.lost.get() || self.may_lack_session(shared);
        let lengths = *self.model.borrow().lengths(short).start()..=*lengths.end();
        let (file, open) = open(client, inode).await?;
        let len = open.attr.len;
        if !lengths.contains(&len) {
            wrong(format!("its length is {len} and must be in {lengths:?}"));
        }
        let bytes = rt.alloc((len.max(*lengths.end()) + BEHIND) as usize);
        let (read, bytes) = file.read(0, bytes).await;
        let read = read?;
        if let Some(e) = self.model.borrow().check(0, &bytes[..read]) {
            wrong(e);
        }
        client.close_session(report(client, &file, false)).await?;
        unlink(client, parent, &self.name, false).await
    }

    /// The metadata engine lost its power, and may have lost of a small file what was answered of it since its last fsync: the file is there, with all that was fsynced.
    pub async fn judge_contents(
        &self,
        rt: &Rt,
        client: &Rc<Client>,
        shared: &Shared,
    ) -> Result<()> {
        let wrong = |what: String| {
            shared.problem(format!("{}, after the engine lost its power: {what}", self.name));
        };
        let Some(inode) = lookup(client, small::dir(client).await?, &self.name).await? else {
            wrong("it is gone".into());
            return Ok(());
        };
        self.model.borrow_mut().silently_lost();
        let (file, open) = open_kept(client, shared, inode).await?;
        let len = open.attr.len.max(self.model.borrow().len());
        let (read, bytes) = file.read(0, rt.alloc(len as usize)).await;
        read?;
        // Losses of storage since are another matter.
        if !self.notice_losses(shared)
            && let Some(e) = self.model.borrow().check(0, &bytes)
        {
            wrong(e);
        }
        client.close_session(report(client, &file, false)).await.map(drop)
    }
}

/// What one life of a client has made.
pub struct Estate {
    /// The name of its file; those of its small ones begin so.
    pub name: String,
    /// The name of its directory.
    pub dir: String,
    /// What is known of that.
    pub(super) names: RefCell<Directory>,
    files: RefCell<Vec<Rc<Kept>>>,
}

impl Estate {
    /// Nothing yet, of a life (from 0 on) of a client.
    pub fn new(client: usize, life: u64) -> Self {
        let suffix = if life == 0 { String::new() } else { format!(".{life}") };
        Self {
            name: format!("own{client}{suffix}"),
            dir: format!("dir{client}{suffix}"),
            names: RefCell::default(),
            files: RefCell::default(),
        }
    }
    /// A file is going to be made.
    pub fn file(&self, place: Place, name: String, shared: &Shared) -> Rc<Kept> {
        let kept = Rc::new(Kept {
            place,
            name,
            model: RefCell::default(),
            losses: Cell::new(shared.power_losses.get()),
            failed_flushes: Cell::new(shared.failed_flushes.get()),
            lost: Cell::new(false),
            engine_losses: Cell::new(shared.engine_losses.get()),
            session: Cell::new(None),
            there: Cell::new(There::Asked),
        });
        self.files.borrow_mut().push(kept.clone());
        kept
    }
    /// A file has been removed.
    pub fn gone(&self, kept: &Rc<Kept>) {
        self.files.borrow_mut().retain(|k| !Rc::ptr_eq(k, kept));
    }

    /// Its client is gone, and its session has ended: judges what is left of it, and removes that.
    pub async fn judge(&self, rt: &Rt, client: &Rc<Client>, shared: &Shared) -> Result<()> {
        let files = self.files.take();
        for kept in &files {
            kept.judge(rt, client, shared).await.map_err(|e| e.context(&kept.name))?;
        }
        let inode = lookup(client, ROOT_INODE, &self.dir).await?;
        self.judge_names(client, shared, inode).await.map_err(|e| e.context(&self.dir))
    }
    async fn judge_names(
        &self,
        client: &Rc<Client>,
        shared: &Shared,
        inode: Option<InodeId>,
    ) -> Result<()> {
        let names = match inode {
            Some(inode) => Some(list(client, inode).await?),
            None => None,
        };
        if !self.names.borrow().may_be(names.as_ref(), shared.engine_losses.get()) {
            let known = self.names.borrow();
            let dir = &self.dir;
            shared.problem(format!("{dir}, whose client ended: {names:?}, and known is {known:?}"));
        }
        match inode.zip(names) {
            Some((inode, names)) => empty(client, &self.dir, inode, &names).await,
            None => Ok(()),
        }
    }
}
