//! Emptying the directories of trees that were removed ([`crate::tree`]), some names in a transaction.
//!
//! A queued directory loses its entries: files go the way of an unlink, directories lose their name and are queued as well. When it is empty it goes itself, and
//! the tree's own record with the last one. Each step finds by itself how far things are, so any service may take it up at any time, and several may.
//!
//! What whoever removed the tree may not remove (it is immutable, or somebody else's) goes to `/lost+found`. Must never: touch a directory that has a name,
//! or whose tree has no record.

use crate::access::{self, EXEC, WRITE};
use crate::context::{Context, file_bytes};
use crate::flags;
use crate::keys::{self, Part};
use crate::lost_found;
use crate::record::{Dentry, Inode, number, unpack};
use crate::trash;
use crate::tree::{LeavingRecord, TreeRecord, queue, sum};
use glowfs_kv::Transaction;
use glowfs_types::wire::meta::{Caller, Name};
use glowfs_types::{InodeId, Result, Status, VolumeId};

/// An entry of a directory that is being emptied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeEntry {
    /// Its name.
    pub name: Name,
    /// What it leads to.
    pub inode: InodeId,
}

/// The first entries of such a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeavingPage {
    /// Those that can be taken out.
    pub found: Vec<TreeEntry>,
    /// Names whose records cannot be read. They stay, and the directory with them.
    pub damaged: Vec<Name>,
}

/// What one step did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Emptied {
    /// The directory is not queued any more, or nothing can be done about it.
    pub over: bool,
    /// What went to `/lost+found`, and the name that it had.
    pub kept: Vec<(InodeId, Name)>,
    /// Directories outside the tree that changed.
    pub touched: Vec<InodeId>,
}

/// Directories that wait, at most `limit`, the youngest first: those that are inside of others, mostly, so that few wait at a time. Only those
/// older than `before`.
pub async fn leaving(
    tx: &Transaction,
    volume: VolumeId,
    before: Option<InodeId>,
    limit: u32,
) -> Result<Vec<InodeId>> {
    let (begin, mut end) = keys::all_leaving(volume);
    if let Some(before) = before {
        end = keys::leaving(volume, before);
    }
    let page = tx.get_range_snapshot(&begin, &end, limit, true).await?;
    Ok(page.entries.iter().filter_map(|(key, _)| keys::leaving_of(key)).collect())
}

/// The first entries of a directory, at most `limit`.
pub async fn leaving_entries(
    tx: &Transaction,
    volume: VolumeId,
    dir: InodeId,
    limit: u32,
) -> Result<LeavingPage> {
    let (begin, end) = keys::dentries(volume, dir);
    let page = tx.get_range_snapshot(&begin, &end, limit, false).await?;
    let mut out = LeavingPage::default();
    for (key, value) in &page.entries {
        let Some(Part::Dentry(_, name)) = keys::parse(key) else { continue };
        let name: Name = name.to_vec().into();
        match unpack::<Dentry>("dentry", value) {
            Ok(d) => out.found.push(TreeEntry { name, inode: d.inode }),
            Err(e) if e.status == Status::Corrupt => out.damaged.push(name),
            Err(e) => return Err(e),
        }
    }
    Ok(out)
}

async fn record(cx: &Context<'_>, dir: InodeId) -> Result<Option<LeavingRecord>> {
    let found = cx.tx.get(&keys::leaving(cx.volume(), dir)).await?;
    found.map(|v| unpack("record of a directory that is to be emptied", &v)).transpose()
}

async fn tree_of(cx: &Context<'_>, tree: InodeId) -> Result<Option<TreeRecord>> {
    let found = cx.tx.get(&keys::tree(cx.volume(), tree)).await?;
    found.map(|v| unpack("tree record", &v)).transpose()
}

/// A directory does not wait any more. With the last one its tree is forgotten.
pub(crate) async fn unqueue(cx: &Context<'_>, dir: InodeId) -> Result<()> {
    let Some(record) = record(cx, dir).await? else { return Ok(()) };
    let v = cx.volume();
    cx.tx.clear(keys::leaving(v, dir))?;
    let waiting = keys::tree_sum(v, record.tree, sum::WAITING);
    if number(cx.tx.get(&waiting).await?) > 1 {
        return cx.tx.add(waiting, -1);
    }
    cx.tx.clear(keys::tree(v, record.tree))?;
    let (begin, end) = keys::tree_sums(v, record.tree);
    cx.tx.clear_range(&begin, &end)
}

/// A queued directory, as one step finds it.
struct Leaving {
    id: InodeId,
    inode: Inode,
    record: LeavingRecord,
    who: Caller,
}

async fn find(cx: &Context<'_>, id: InodeId) -> Result<Option<Leaving>> {
    let Some(record) = record(cx, id).await? else { return Ok(None) };
    match cx.find_inode(id).await? {
        Some(inode) if inode.is_dir() && inode.nlink == 0 => {
            // Without the tree's record nobody knows who wanted it: `fsck` puts it to /lost+found.
            let Some(tree) = tree_of(cx, record.tree).await? else { return Ok(None) };
            Ok(Some(Leaving { id, inode, record, who: tree.caller(cx) }))
        }
        // `fsck` of an older release, which does not know the queue, has given it a name again.
        _ => unqueue(cx, id).await.map(|()| None),
    }
}

/// Takes these entries out of a queued directory. What is not there any more, or leads elsewhere, is passed over.
pub async fn empty(cx: &Context<'_>, dir: InodeId, entries: &[TreeEntry]) -> Result<Emptied> {
    let mut done = Emptied::default();
    let Some(mut d) = find(cx, dir).await? else {
        done.over = true;
        return Ok(done);
    };
    let mut own = flags::check_remove(&d.inode, &d.inode);
    own = own.and_then(|()| access::check(&d.who, &d.inode, WRITE | EXEC));
    if own.is_err() {
        keep_whole(cx, &mut d, &mut done).await?;
        return Ok(done);
    }
    let v = cx.volume();
    let ask = entries.iter().flat_map(|e| [keys::dentry(v, dir, &e.name), keys::inode(v, e.inode)]);
    let mut found = cx.tx.get_all(&ask.collect::<Vec<_>>()).await?.into_iter();
    for e in entries {
        let (entry, inode) = (found.next().flatten(), found.next().flatten());
        let entry = entry.map(|v| unpack::<Dentry>("dentry", &v)).transpose()?;
        let Some(entry) = entry.filter(|d| d.inode == e.inode) else { continue };
        // Two names of one file: the second one must see what the first one did.
        let again = entries.iter().take_while(|o| o.name != e.name).any(|o| o.inode == e.inode);
        let inode = match inode {
            _ if again => cx.find_inode(e.inode).await?,
            Some(v) => Some(unpack::<Inode>("inode", &v)?),
            None => None,
        };
        let entry = (e.name.as_slice(), entry);
        take(cx, &d, entry, inode, &mut done).await?;
    }
    Ok(done)
}

/// Takes one entry out.
async fn take(
    cx: &Context<'_>,
    d: &Leaving,
    (name, entry): (&[u8], Dentry),
    inode: Option<Inode>,
    done: &mut Emptied,
) -> Result<()> {
    let (v, tree) = (cx.volume(), d.record.tree);
    let count = |what, n| cx.tx.add(keys::tree_sum(v, tree, what), n);
    let Some(mut inode) = inode else { return cx.remove(d.id, name, &entry) };
    if access::check_delete(&d.who, &d.inode, &inode).is_err() {
        let touched = lost_found::move_to(cx, (d.id, name, &entry), &mut inode).await?;
        done.touched.extend(touched);
        done.kept.push((entry.inode, name.to_vec().into()));
        return count(sum::KEPT, 1);
    }
    let path = || {
        let above: &[u8] = d.record.path.as_ref()?;
        Some([above, b"/", name].concat())
    };
    cx.remove(d.id, name, &entry)?;
    if inode.is_dir() {
        return queue(cx, (entry.inode, &mut inode), tree, path());
    }
    count(sum::FILES, 1)?;
    if trash::takes(&d.inode, &inode) {
        let place = (d.id, &d.inode, name, path());
        return trash::put_from(cx, place, d.who.uid, (entry.inode, &mut inode));
    }
    if cx.drop_link(entry.inode, &mut inode).await?.nlink == 0 {
        count(sum::BYTES, file_bytes(&inode))?;
    }
    Ok(())
}

/// A directory out of which nothing may be taken stays as it is, elsewhere.
async fn keep_whole(cx: &Context<'_>, d: &mut Leaving, done: &mut Emptied) -> Result<()> {
    let above: Option<&[u8]> = d.record.path.as_ref().map(|p| p.as_slice());
    let name = above.and_then(|p| p.rsplit(|b| *b == b'/').next()).unwrap_or_default();
    done.kept.push((d.id, name.to_vec().into()));
    done.touched = lost_found::put(cx, (d.id, &mut d.inode)).await?;
    done.over = true;
    cx.tx.add(keys::tree_sum(cx.volume(), d.record.tree, sum::KEPT), 1)?;
    unqueue(cx, d.id).await
}

/// A queued directory goes, if it is empty. False: it is not.
pub async fn finish_leaving(cx: &Context<'_>, dir: InodeId) -> Result<bool> {
    let Some(d) = find(cx, dir).await? else { return Ok(true) };
    if !cx.is_empty_dir(dir).await? {
        return Ok(false);
    }
    cx.tx.add(keys::tree_sum(cx.volume(), d.record.tree, sum::DIRECTORIES), 1)?;
    cx.erase(dir, &d.inode).await?;
    unqueue(cx, dir).await?;
    Ok(true)
}

/// Forgets trees of which no directory waits, though their last one has left a record behind: only damage can do that.
pub async fn forget_trees(cx: &Context<'_>) -> Result<()> {
    let v = cx.volume();
    let (begin, end) = keys::all_leaving(v);
    if !cx.tx.get_range(&begin, &end, 1, false).await?.entries.is_empty() {
        return Ok(());
    }
    for (begin, end) in [keys::trees(v), keys::all_tree_sums(v)] {
        if !cx.tx.get_range(&begin, &end, 1, false).await?.entries.is_empty() {
            cx.tx.clear_range(&begin, &end)?;
        }
    }
    Ok(())
}
