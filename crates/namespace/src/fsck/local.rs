//! What can be said of a record by it and those that it leads to.

use super::judge;
use super::view::{Found, View};
use crate::acl::Acl;
use crate::keys::{self, FORMAT, Part};
use crate::locking::Waiting;
use crate::locks::LockTable;
use crate::name;
use crate::record::{
    CookieEntry, Dentry, GarbageRecord, Inode, OrphanRecord, RequestRecord, Session, VolumeRecord,
    number, unpack,
};
use crate::trash::TrashRecord;
use crate::tree::{LeavingRecord, TreeRecord};
use glowfs_types::layout::FILE_BYTES_MAX;
use glowfs_types::wire::fsck::{Finding, FsckReply, InodeFact, NameFact, Problem};
use glowfs_types::wire::meta::{InodeKind, ROOT_INODE, Time};
use glowfs_types::{ClientId, InodeId, Layout, Result, SessionId, TruncateEpoch};
use minicbor::Decode;

/// Checks one record; what is wrong and what the counts need goes to `reply`.
pub async fn check(view: &View<'_>, key: &[u8], value: &[u8], reply: &mut FsckReply) -> Result<()> {
    let Some(part) = keys::parse(key) else {
        let known = keys::is_known(key);
        let problem = if known { Problem::Unreadable } else { Problem::Unknown };
        let text = format!("the key {} has no form that this release makes", hex(key));
        push(reply, key, problem, InodeId(0), text, "");
        return Ok(());
    };
    let mut at = At { view, key, value, reply };
    match part {
        Part::Volume => at.volume(),
        Part::NextId(0 | 1) | Part::Usage => at.eight_bytes(),
        Part::NextId(_) => {}
        Part::Inode(id) => at.inode(id).await?,
        Part::Dentry(parent, name) => at.dentry(parent, name).await?,
        Part::Cookie(parent, cookie) => at.cookie(parent, cookie).await?,
        Part::Side(dir, which) => at.side(dir, which).await?,
        Part::Xattr(id) => at.of_inode(id, "an extended attribute").await?,
        Part::Session(id, session) => at.session(id, session).await?,
        Part::Client(client, session) => at.client_session(client, session).await?,
        Part::Orphan(id) => {
            if at.read::<OrphanRecord>().is_some() {
                at.of_inode(id, "a queued removal").await?;
            }
        }
        Part::Garbage => {
            if let Some(g) = at.read::<GarbageRecord>() {
                at.layout(InodeId(0), &g.layout, false);
            }
        }
        Part::Request => {
            at.read::<RequestRecord>();
        }
        Part::Content(id) => at.content(id).await?,
        Part::Locks(id) => at.locks(id).await?,
        Part::ClientLock(client, id) => at.client_lock(client, id).await?,
        Part::LockWait => {
            if let Some(w) = at.read::<Waiting>() {
                at.of_inode(w.inode, "an owner's wait for a lock").await?;
                at.lingers();
            }
        }
        Part::Tree(_) => {
            at.read::<TreeRecord>();
        }
        Part::Leaving(id) => at.leaving(id).await?,
        Part::Cut(id, epoch) => at.cut(id, epoch).await?,
        Part::TreeSum(tree) => {
            at.eight_bytes();
            if at.view.get(&keys::tree(at.view.volume(), tree)).await?.is_none() {
                at.stray(tree, "how far the removal is");
            }
        }
        Part::Trash(id) => {
            if at.read::<TrashRecord>().is_none() {
                return Ok(());
            }
            match at.view.inode(id.inode).await? {
                Found::There(i) if i.trashed == Some(id.until) => {}
                Found::Unreadable => {}
                _ => at.stray(id.inode, "a record of the trash"),
            }
        }
    }
    Ok(())
}

fn push(
    reply: &mut FsckReply,
    key: &[u8],
    problem: Problem,
    inode: InodeId,
    text: String,
    cure: &str,
) {
    let (key, cure) = (key.to_vec(), cure.to_owned());
    reply.findings.push(Finding { problem, key, inode, text, cure, ..Finding::default() });
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A name for people.
pub(super) fn shown(name: &[u8]) -> String {
    format!("«{}»", name.escape_ascii())
}

/// A record that is being checked.
struct At<'a, 'v> {
    view: &'a View<'v>,
    key: &'a [u8],
    value: &'a [u8],
    reply: &'a mut FsckReply,
}

impl At<'_, '_> {
    fn say(&mut self, problem: Problem, inode: InodeId, text: String, cure: &str) {
        push(self.reply, self.key, problem, inode, text, cure);
    }
    fn stray(&mut self, inode: InodeId, what: &str) {
        let text = format!("{what} of inode {inode}, which is not there");
        self.say(Problem::Stray, inode, text, "is removed");
    }
    /// The last thing said may go by itself.
    fn lingers(&mut self) {
        if let Some(last) = self.reply.findings.last_mut().filter(|f| f.key == self.key) {
            last.lingers = true;
        }
    }
    fn unreadable(&mut self, why: &str) {
        let text = format!("the record {} does not decode: {why}", hex(self.key));
        self.say(Problem::Unreadable, InodeId(0), text, "");
    }
    fn read<T: for<'b> Decode<'b, ()>>(&mut self) -> Option<T> {
        match unpack("record", self.value) {
            Ok(record) => Some(record),
            Err(e) => {
                self.unreadable(&e.message);
                None
            }
        }
    }
    fn eight_bytes(&mut self) {
        if self.value.len() != 8 {
            self.unreadable(&format!("{} bytes where 8 are expected", self.value.len()));
        }
    }
    fn volume(&mut self) {
        if let Some(record) = self.read::<VolumeRecord>().filter(|r| r.format > FORMAT) {
            let text = format!("format {}; this release knows up to {FORMAT}", record.format);
            self.say(Problem::NewerFormat, InodeId(0), text, "");
        }
    }
    /// A record that needs its inode.
    async fn of_inode(&mut self, id: InodeId, what: &str) -> Result<()> {
        if self.view.inode(id).await?.is_absent() {
            self.stray(id, what);
        }
        Ok(())
    }
    fn layout(&mut self, inode: InodeId, layout: &Layout, directory: bool) {
        if let Err(e) = layout.validate() {
            self.say(Problem::UnknownLayout, inode, format!("layout: {}", e.message), "");
        } else if !self.view.cx.env.knows_layout(layout, directory) {
            let (table, version) = (layout.table, layout.table_version);
            let text = format!("chain table {table} (version {version}) or a chain is not there");
            self.say(Problem::UnknownLayout, inode, text, "");
        }
    }
    async fn given_out(&mut self, which: u8, id: u64, what: &str) -> Result<()> {
        if self.view.next_id(which).await?.is_some_and(|next| id >= next) {
            let text = format!("{what} {id} is in use, and the counter would give it out again");
            let cure = "the counter is set behind it; restart the metadata services afterwards";
            self.say(Problem::Counter, InodeId(id), text, cure);
        }
        Ok(())
    }

    async fn inode(&mut self, id: InodeId) -> Result<()> {
        let Some(inode) = self.read::<Inode>() else { return Ok(()) };
        let v = self.view.volume();
        self.given_out(0, id.0, "inode id").await?;
        let orphan = self.view.get(&keys::orphan(v, id)).await?.is_some();
        let trashed = match inode.trashed {
            Some(until) => self.view.get(&keys::trash(v, until, id)).await?.is_some(),
            None => false,
        };
        let leaving = judge::is_leaving(self.view, id, &inode).await?;
        let odd = if inode.nlink > 0 {
            orphan || inode.trashed.is_some()
        } else {
            let held = orphan || trashed || leaving;
            !held && !self.view.cx.has_sessions(id).await?
        };
        // One that waits to be emptied is to have no name, and no links: as other inodes are to have as many of both.
        let (dir, nlink, parent) = (inode.is_dir() && !leaving, inode.nlink, inode.parent);
        self.reply.inodes.push(InodeFact { inode: id, dir, nlink, parent, odd });
        self.contents(id, &inode).await
    }

    /// What an inode says of its contents and rights.
    async fn contents(&mut self, id: InodeId, inode: &Inode) -> Result<()> {
        match (inode.kind, &inode.layout) {
            (InodeKind::File, Some(l)) => {
                self.layout(id, l, false);
                self.given_out(1, inode.data.0, "data id").await?;
            }
            (InodeKind::File, None) => {
                let text = format!("file {id} has no layout");
                self.say(Problem::UnknownLayout, id, text, "");
            }
            (_, Some(l)) => self.layout(id, l, true),
            _ => {}
        }
        if inode.is_inline() {
            let content = self.view.get(&keys::content(self.view.volume(), id)).await?;
            let there = content.map_or(0, |c| c.len() as u64);
            if there != inode.len {
                let text = format!("file {id}: length {}, contents of {there} bytes", inode.len);
                self.say(Problem::BadLength, id, text, "its length is set");
            }
        }
        if inode.len > FILE_BYTES_MAX {
            let text = format!("inode {id} has a length of {}", inode.len);
            self.say(Problem::BadLength, id, text, "");
        }
        if inode.kind == InodeKind::Symlink {
            let target = inode.symlink.as_ref().map_or(0, |t| t.len() as u64);
            if target == 0 {
                let text = format!("symlink {id} has no target");
                self.say(Problem::BadLength, id, text, "");
            } else if target != inode.len {
                let text = format!("symlink {id}: length {}, target {target}", inode.len);
                self.say(Problem::BadLength, id, text, "its length is set");
            }
        }
        for acl in [&inode.acl, &inode.default_acl].into_iter().flatten() {
            if let Err(e) = Acl::parse(acl) {
                let text = format!("inode {id}: access control list: {}", e.message);
                self.say(Problem::BadAcl, id, text, "");
            }
        }
        Ok(())
    }

    async fn dentry(&mut self, parent: InodeId, n: &[u8]) -> Result<()> {
        let Some(d) = self.read::<Dentry>() else {
            self.reply.blind = true;
            return Ok(());
        };
        let place = format!("{} in directory {parent}", shown(n));
        if name::check(n).is_err() || name::is_dots(n) {
            self.say(Problem::BadName, d.inode, format!("{place} cannot be asked for"), "");
        }
        self.given_out(0, d.cookie, "cookie").await?;
        let dir = self.view.inode(parent).await?;
        match &dir {
            Found::Absent => {
                let text = format!("{place}: the directory's record is lost");
                // Nobody knows how the root was, nor which layout things inherit.
                let cure = match parent {
                    ROOT_INODE => "",
                    _ => {
                        "the directory is made anew, for root only, where it was or in /lost+found"
                    }
                };
                self.say(Problem::LostDirectory, parent, text, cure);
            }
            Found::There(i) if !i.is_dir() => {
                let text = format!("{place}: that is no directory");
                self.say(Problem::NotADirectory, d.inode, text, "the entry is removed");
            }
            _ => {}
        }
        let mut odd = false;
        match self.view.inode(d.inode).await? {
            Found::Absent => {
                let text = format!("{place} leads to inode {}, which is not there", d.inode);
                self.say(Problem::Dangling, d.inode, text, "the entry is removed");
            }
            Found::There(i) if i.kind != d.kind => {
                let text = format!("{place} says {:?}, inode {} is {:?}", d.kind, d.inode, i.kind);
                self.say(Problem::WrongKind, d.inode, text, "the entry is set right");
            }
            Found::There(i) if i.is_dir() => {
                odd = i.parent != parent || i.name.as_ref().is_some_and(|own| own.as_slice() != n);
            }
            _ => {}
        }
        let key = keys::cookie(self.view.volume(), parent, d.cookie);
        match self.view.record::<CookieEntry>(&key).await? {
            Found::There(c) if c.inode == d.inode && c.kind == d.kind && c.name.as_slice() == n => {
            }
            Found::Unreadable => {}
            _ => {
                let text = format!("{place} is not listed (cookie {})", d.cookie);
                self.say(Problem::NoCookie, d.inode, text, "it is listed again");
            }
        }
        let (inode, dir) = (d.inode, d.kind == InodeKind::Directory);
        self.reply.names.push(NameFact { parent, inode, dir, odd });
        Ok(())
    }

    async fn cookie(&mut self, parent: InodeId, cookie: u64) -> Result<()> {
        let Some(c) = self.read::<CookieEntry>() else { return Ok(()) };
        let key = keys::dentry(self.view.volume(), parent, &c.name);
        match self.view.record::<Dentry>(&key).await? {
            Found::There(d) if d.cookie == cookie => {}
            Found::Unreadable => {}
            _ => {
                let text =
                    format!("directory {parent} lists {}, which it does not have", shown(&c.name));
                let cure = "the name comes back if its inode is there, else it is not listed";
                self.say(Problem::StrayCookie, c.inode, text, cure);
            }
        }
        Ok(())
    }

    /// Contents that are kept beside the inode record.
    async fn content(&mut self, id: InodeId) -> Result<()> {
        let text = match self.view.inode(id).await? {
            Found::There(i) if i.is_inline() => return Ok(()),
            Found::Unreadable => return Ok(()),
            Found::There(_) => format!("contents of inode {id}, which has them in chunks"),
            Found::Absent => {
                self.stray(id, "contents");
                return Ok(());
            }
        };
        self.say(Problem::Stray, id, text, "is removed");
        Ok(())
    }

    /// A directory that waits to be emptied. One whose tree is not known has no name and is not held: that is found with its names.
    async fn leaving(&mut self, id: InodeId) -> Result<()> {
        if self.read::<LeavingRecord>().is_none() {
            return Ok(());
        }
        match self.view.inode(id).await? {
            Found::There(i) if i.is_dir() && i.nlink == 0 => {}
            Found::Unreadable => {}
            Found::There(_) => {
                let text = format!("inode {id} is queued to be emptied, and is not removed");
                self.say(Problem::Stray, id, text, "is taken out of the queue");
            }
            Found::Absent => self.stray(id, "a directory that waits to be emptied"),
        }
        Ok(())
    }

    /// The key of a truncate. An older release takes the mark away alone; a look at these keys in the background takes them after it.
    async fn cut(&mut self, id: InodeId, epoch: TruncateEpoch) -> Result<()> {
        match self.view.inode(id).await? {
            Found::There(i) if i.cut.is_some() && i.epoch == epoch => return Ok(()),
            Found::Unreadable => return Ok(()),
            Found::There(_) => {
                let text = format!("a truncate of inode {id}, which is finished");
                self.say(Problem::Stray, id, text, "is removed");
            }
            Found::Absent => self.stray(id, "a truncate"),
        }
        self.lingers();
        Ok(())
    }

    async fn side(&mut self, dir: InodeId, which: u8) -> Result<()> {
        match which {
            0 | 1 if self.value.len() != 8 => self.eight_bytes(),
            1 => self.reply.subdirs.push((dir, number(Some(self.value.to_vec())))),
            2 if self.read::<Time>().is_none() => return Ok(()),
            _ => {}
        }
        match self.view.inode(dir).await? {
            Found::Absent => self.stray(dir, "a record beside a directory"),
            Found::There(i) if !i.is_dir() => self.stray(dir, "a record beside a directory"),
            _ => {}
        }
        Ok(())
    }

    async fn session(&mut self, id: InodeId, session: SessionId) -> Result<()> {
        let Some(s) = self.read::<Session>() else { return Ok(()) };
        if self.view.inode(id).await?.is_absent() {
            self.stray(id, "a session");
            return Ok(());
        }
        let key = keys::client_session(self.view.volume(), s.client, session);
        let index = self.view.get(&key).await?;
        if index.as_deref() != Some(&id.0.to_be_bytes()[..]) {
            let text = format!("a session of inode {id} is not among those of its client");
            self.say(Problem::NoIndex, id, text, "it is put there");
        }
        Ok(())
    }

    async fn client_session(&mut self, client: ClientId, session: SessionId) -> Result<()> {
        let Ok(id) = self.value.try_into().map(u64::from_be_bytes) else {
            self.eight_bytes();
            return Ok(());
        };
        let id = InodeId(id);
        if self.view.get(&keys::session(self.view.volume(), id, session)).await?.is_none() {
            let text = format!("client {client} has a session of inode {id} that is not there");
            self.say(Problem::Stray, id, text, "is removed");
            self.lingers();
        }
        Ok(())
    }

    async fn locks(&mut self, id: InodeId) -> Result<()> {
        let Some(table) = self.read::<LockTable>() else { return Ok(()) };
        if self.view.inode(id).await?.is_absent() {
            self.stray(id, "locks");
            return Ok(());
        }
        for client in table.clients() {
            let key = keys::client_lock(self.view.volume(), client, id);
            if self.view.get(&key).await?.is_none() {
                let text = format!("locks of inode {id} would not end with client {client}");
                self.say(Problem::NoIndex, id, text, "they are put among the client's");
                break;
            }
        }
        Ok(())
    }

    async fn client_lock(&mut self, client: ClientId, id: InodeId) -> Result<()> {
        let holds =
            match self.view.record::<LockTable>(&keys::locks(self.view.volume(), id)).await? {
                Found::Absent => false,
                Found::Unreadable => true,
                Found::There(t) => t.has(client),
            };
        if !holds {
            let text = format!("client {client} is said to have locks of inode {id}, and has none");
            self.say(Problem::Stray, id, text, "is removed");
            self.lingers();
        }
        Ok(())
    }
}
