//! Mending: each finding in one transaction, which looks once more whether it is so.

use super::view::{Found, View};
use super::{judge, local};
use crate::context::{Context, err, file_bytes};
use crate::keys::{self, Part};
use crate::locks::LockTable;
use crate::lost_found;
use crate::record::{CookieEntry, Dentry, Inode, Session, pack};
use glowfs_types::wire::fsck::{Finding, FsckReply, Place, Problem};
use glowfs_types::wire::meta::{InodeKind, ROOT_INODE};
use glowfs_types::{Error, InodeId, Result, Status};

/// Whether a finding is still so; the finding as it is now.
pub async fn still(view: &View<'_>, was: &Finding) -> Result<Option<Finding>> {
    let mut reply = match was.problem {
        Problem::Cycle => judge::cycle(view, was.inode).await?,
        Problem::Subdirs => judge::subdirs(view, was.inode).await?,
        Problem::Links | Problem::ExtraNames | Problem::Parent | Problem::Unnamed => {
            judge::inode(view, was).await?
        }
        _ => {
            let mut reply = FsckReply::default();
            if let Some(value) = view.get(&was.key).await? {
                local::check(view, &was.key, &value, &mut reply).await?;
            }
            reply
        }
    };
    reply.findings.retain(|f| f.problem == was.problem);
    Ok(reply.findings.into_iter().next())
}

/// Mends a finding if it is still so.
pub async fn mend(cx: &Context<'_>, was: &Finding) -> Result<FsckReply> {
    let view = View::for_change(cx);
    let mut reply = FsckReply::default();
    let Some(now) = still(&view, was).await?.filter(|f| !f.cure.is_empty()) else {
        reply.busy = true;
        return Ok(reply);
    };
    let mut m = Mender { view, touched: vec![now.inode] };
    match now.problem {
        Problem::LostDirectory => m.lost_directory(now.inode).await?,
        Problem::Counter => m.counter(&now).await?,
        Problem::StrayCookie => m.stray_cookie(&now).await?,
        Problem::Dangling | Problem::NotADirectory => m.remove_entry(&now).await?,
        Problem::WrongKind => m.wrong_kind(&now).await?,
        Problem::NoCookie => m.no_cookie(&now).await?,
        Problem::NoIndex => m.no_index(&now).await?,
        Problem::Stray => m.stray(&now).await?,
        Problem::BadLength => m.length(now.inode).await?,
        Problem::Subdirs => {
            let key = keys::dir_subdirs(cx.volume(), now.inode);
            cx.tx.put(key, now.change.to_le_bytes().to_vec())?;
        }
        Problem::Links => m.links(&now).await?,
        Problem::ExtraNames => m.extra_names(&now).await?,
        Problem::Parent => m.parent(&now).await?,
        Problem::Unnamed => m.put_in_lost_found(now.inode).await?,
        Problem::Cycle => m.cut_cycle(&now).await?,
        Problem::Unreadable
        | Problem::Unknown
        | Problem::NewerFormat
        | Problem::BadName
        | Problem::UnknownLayout
        | Problem::BadAcl => return err(Status::NotSupported),
    }
    reply.mended = true;
    reply.touched = m.touched;
    Ok(reply)
}

struct Mender<'a> {
    view: View<'a>,
    touched: Vec<InodeId>,
}

fn changed() -> Error {
    Error::new(Status::Conflict, "it has changed meanwhile; check again")
}

impl Mender<'_> {
    fn cx(&self) -> &Context<'_> {
        self.view.cx
    }
    async fn inode(&self, id: InodeId) -> Result<Inode> {
        self.view.inode(id).await?.there().ok_or_else(changed)
    }
    /// An entry of the directory that a finding's key names.
    async fn entry<'k>(&self, key: &'k [u8]) -> Result<(InodeId, &'k [u8], Dentry)> {
        let Some(Part::Dentry(parent, name)) = keys::parse(key) else { return Err(changed()) };
        let d = self.view.record(&key.to_vec()).await?.there().ok_or_else(changed)?;
        Ok((parent, name, d))
    }
    /// Names were given to it or taken from it without its record: who has counted them before must count anew.
    async fn note_names(&mut self, id: InodeId) -> Result<()> {
        if let Some(mut inode) = self.view.inode(id).await?.there() {
            self.cx().put_inode(id, &mut inode)?;
            self.touched.push(id);
        }
        Ok(())
    }

    async fn lost_directory(&mut self, id: InodeId) -> Result<()> {
        let root = self.inode(ROOT_INODE).await?;
        let cx = self.cx();
        let mut inode = lost_found::new_dir(cx, &root, ROOT_INODE, None);
        cx.count(&inode, 1, 0)?;
        cx.put_inode(id, &mut inode)
    }

    async fn counter(&mut self, f: &Finding) -> Result<()> {
        let mut used = vec![];
        match keys::parse(&f.key) {
            Some(Part::Inode(id)) => {
                used.push((0, id.0));
                used.push((1, self.inode(id).await?.data.0));
            }
            Some(Part::Dentry(..)) => used.push((0, self.entry(&f.key).await?.2.cookie)),
            _ => return Err(changed()),
        }
        for (which, id) in used {
            let Some(next) = self.view.next_id(which).await? else { return Err(changed()) };
            let behind = id.checked_add(1).ok_or_else(|| {
                Error::new(Status::NoSpace, format!("id {id} is the last one that there can be"))
            })?;
            if behind > next {
                let key = keys::next_id(self.view.volume(), which);
                self.cx().tx.put(key, behind.to_le_bytes().to_vec())?;
            }
        }
        Ok(())
    }

    async fn stray_cookie(&mut self, f: &Finding) -> Result<()> {
        let Some(Part::Cookie(parent, cookie)) = keys::parse(&f.key) else { return Err(changed()) };
        let c: CookieEntry = self.view.record(&f.key).await?.there().ok_or_else(changed)?;
        let v = self.view.volume();
        let key = keys::dentry(v, parent, &c.name);
        let dir = self.view.inode(parent).await?.there().is_some_and(|i| i.is_dir());
        let free = self.view.get(&key).await?.is_none() && crate::name::check(&c.name).is_ok();
        let inode = self.view.inode(c.inode).await?.there();
        let there = inode.is_some_and(|i| i.kind == c.kind && i.nlink > 0);
        if dir && free && there {
            let cx = self.cx();
            cx.insert(parent, &c.name, c.inode, c.kind, cookie)?;
            self.touched.push(parent);
            return self.note_names(c.inode).await;
        }
        self.cx().tx.clear(f.key.clone())
    }

    /// Takes an entry away, and its cookie if it has that.
    async fn remove_entry(&mut self, f: &Finding) -> Result<()> {
        let (parent, name, d) = self.entry(&f.key).await?;
        self.drop_entry(parent, name, &d).await?;
        self.note_names(d.inode).await
    }

    async fn drop_entry(&mut self, parent: InodeId, name: &[u8], d: &Dentry) -> Result<()> {
        let (v, cx) = (self.view.volume(), self.view.cx);
        let key = keys::cookie(v, parent, d.cookie);
        let listed: Option<CookieEntry> = self.view.record(&key).await?.there();
        let own = listed.is_some_and(|c| c.name.as_slice() == name);
        let dir = self.view.inode(parent).await?.there().is_some_and(|i| i.is_dir());
        self.touched.push(parent);
        if dir && own {
            return cx.remove(parent, name, d);
        }
        cx.tx.clear(keys::dentry(v, parent, name))?;
        if own {
            cx.tx.clear(key)?;
        }
        if dir {
            let subdirs = if d.kind == InodeKind::Directory { -1 } else { 0 };
            self.entries_changed(parent, subdirs)?;
        }
        Ok(())
    }

    fn entries_changed(&self, dir: InodeId, subdirs: i64) -> Result<()> {
        let (v, cx) = (self.view.volume(), self.cx());
        cx.tx.add(keys::dir_version(v, dir), 1)?;
        if subdirs != 0 {
            cx.tx.add(keys::dir_subdirs(v, dir), subdirs)?;
        }
        Ok(())
    }

    async fn wrong_kind(&mut self, f: &Finding) -> Result<()> {
        let (parent, name, mut d) = self.entry(&f.key).await?;
        let is = self.inode(d.inode).await?.kind;
        let dirs = |k| i64::from(k == InodeKind::Directory);
        self.entries_changed(parent, dirs(is) - dirs(d.kind))?;
        d.kind = is;
        self.put_entry(parent, name, d).await
    }

    async fn no_cookie(&mut self, f: &Finding) -> Result<()> {
        let (parent, name, d) = self.entry(&f.key).await?;
        self.entries_changed(parent, 0)?;
        self.put_entry(parent, name, d).await
    }

    /// Sets an entry and its cookie; a cookie that another entry has is replaced by a new one.
    async fn put_entry(&mut self, parent: InodeId, name: &[u8], mut d: Dentry) -> Result<()> {
        let (v, cx) = (self.view.volume(), self.view.cx);
        let found = self.view.record::<CookieEntry>(&keys::cookie(v, parent, d.cookie)).await?;
        let taken = match found {
            Found::Absent => false,
            Found::Unreadable => true,
            Found::There(c) if c.name.as_slice() == name => false,
            Found::There(c) => {
                let other = self.view.record::<Dentry>(&keys::dentry(v, parent, &c.name)).await?;
                other.there().is_some_and(|o| o.cookie == d.cookie)
            }
        };
        if taken {
            d.cookie = cx.env.new_id()?;
        }
        let listed = CookieEntry { inode: d.inode, kind: d.kind, name: name.to_vec().into() };
        cx.tx.put(keys::cookie(v, parent, d.cookie), pack(&listed))?;
        cx.tx.put(keys::dentry(v, parent, name), pack(&d))?;
        self.touched.push(parent);
        Ok(())
    }

    async fn no_index(&mut self, f: &Finding) -> Result<()> {
        let (v, tx) = (self.view.volume(), self.cx().tx);
        match keys::parse(&f.key) {
            Some(Part::Session(id, session)) => {
                let s: Session = self.view.record(&f.key).await?.there().ok_or_else(changed)?;
                tx.put(keys::client_session(v, s.client, session), id.0.to_be_bytes().to_vec())
            }
            Some(Part::Locks(id)) => {
                let t: LockTable = self.view.record(&f.key).await?.there().ok_or_else(changed)?;
                let mut clients = t.clients().into_iter();
                clients.try_for_each(|c| tx.put(keys::client_lock(v, c, id), Vec::new()))
            }
            _ => Err(changed()),
        }
    }

    async fn stray(&mut self, f: &Finding) -> Result<()> {
        let (v, tx) = (self.view.volume(), self.cx().tx);
        if let Some(Part::Session(id, session)) = keys::parse(&f.key) {
            let s: Session = self.view.record(&f.key).await?.there().ok_or_else(changed)?;
            let index = keys::client_session(v, s.client, session);
            let own = self.view.get(&index).await?;
            if own.as_deref() == Some(&id.0.to_be_bytes()[..]) {
                tx.clear(index)?;
            }
        }
        if let Some(Part::Leaving(id)) = keys::parse(&f.key) {
            return crate::emptying::unqueue(self.cx(), id).await;
        }
        tx.clear(f.key.clone())
    }

    /// Of a symlink, or of a file whose contents are beside its record.
    async fn length(&mut self, id: InodeId) -> Result<()> {
        let mut inode = self.inode(id).await?;
        let before = file_bytes(&inode);
        inode.len = if inode.is_inline() {
            let content = self.view.get(&keys::content(self.view.volume(), id)).await?;
            content.map_or(0, |c| c.len() as u64)
        } else {
            inode.symlink.as_ref().map_or(0, |t| t.len() as u64)
        };
        self.cx().count(&inode, 0, file_bytes(&inode) - before)?;
        self.cx().put_inode(id, &mut inode)
    }

    /// Nothing removes it any more.
    async fn unqueue(&self, id: InodeId, inode: &mut Inode) -> Result<()> {
        let (v, tx) = (self.view.volume(), self.cx().tx);
        tx.clear(keys::orphan(v, id))?;
        if let Some(until) = inode.trashed.take() {
            tx.clear(keys::trash(v, until, id))?;
        }
        crate::emptying::unqueue(self.cx(), id).await
    }

    async fn links(&mut self, f: &Finding) -> Result<()> {
        let mut inode = self.inode(f.inode).await?;
        self.unqueue(f.inode, &mut inode).await?;
        inode.nlink = f.names.len() as u32;
        self.cx().put_inode(f.inode, &mut inode)
    }

    async fn extra_names(&mut self, f: &Finding) -> Result<()> {
        let mut inode = self.inode(f.inode).await?;
        let keep = judge::kept(&inode, &f.names).filter(|_| f.inode != ROOT_INODE).cloned();
        for place in f.names.iter().filter(|p| Some(*p) != keep.as_ref()) {
            self.drop_place(place).await?;
        }
        self.cx().put_inode(f.inode, &mut inode)
    }

    async fn drop_place(&mut self, place: &Place) -> Result<()> {
        let key = keys::dentry(self.view.volume(), place.parent, &place.name);
        let (parent, name, d) = self.entry(&key).await?;
        self.drop_entry(parent, name, &d).await
    }

    async fn parent(&mut self, f: &Finding) -> Result<()> {
        let mut inode = self.inode(f.inode).await?;
        self.unqueue(f.inode, &mut inode).await?;
        inode.nlink = 1;
        match f.names.first() {
            Some(place) => {
                inode.parent = place.parent;
                inode.name = Some(place.name.clone().into());
            }
            None => inode.parent = ROOT_INODE,
        }
        self.cx().put_inode(f.inode, &mut inode)
    }

    async fn cut_cycle(&mut self, f: &Finding) -> Result<()> {
        for place in &f.names {
            self.drop_place(place).await?;
        }
        self.put_in_lost_found(f.inode).await
    }

    /// Gives an inode a name in /lost+found.
    async fn put_in_lost_found(&mut self, id: InodeId) -> Result<()> {
        let mut inode = self.inode(id).await?;
        self.unqueue(id, &mut inode).await?;
        self.touched.extend(lost_found::put(self.cx(), (id, &mut inode)).await?);
        Ok(())
    }
}
