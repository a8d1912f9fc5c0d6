//! What can be said of an inode by its names, and of a directory by those above and in it.

use super::local::shown;
use super::view::{Found, View};
use crate::keys;
use crate::record::{Dentry, Inode, number, unpack};
use crate::tree::LeavingRecord;
use glowfs_kv::key_after;
use glowfs_types::wire::fsck::{FSCK_PAGE_MAX, Finding, FsckReply, Place, Problem};
use glowfs_types::wire::meta::{InodeKind, ROOT_INODE};
use glowfs_types::{InodeId, Result};
use std::collections::BTreeSet;

/// Directories above one another, at most.
const DEPTH_MAX: usize = 65_536;
/// Names of an inode that are looked at in one step.
const NAMES_AT_ONCE: usize = 512;

/// Whether an inode is as its names say. `asked` has all of its names, as they were while its change counter was what is given.
pub async fn inode(view: &View<'_>, asked: &Finding) -> Result<FsckReply> {
    let (id, v) = (asked.inode, view.volume());
    let mut reply = FsckReply::default();
    let Some(inode) = view.inode(id).await?.there() else { return Ok(reply) };
    if inode.change != asked.change {
        reply.busy = true;
        return Ok(reply);
    }
    // Without conflicts, however many there are: whoever gives or takes one changes the inode, which was read above.
    for some in asked.names.chunks(NAMES_AT_ONCE) {
        let ask: Vec<_> = some.iter().map(|p| keys::dentry(v, p.parent, &p.name)).collect();
        let mut found = view.cx.tx.get_all_snapshot(&ask).await?.into_iter();
        let leads = |d: Option<Vec<u8>>| {
            d.is_some_and(|d| unpack::<Dentry>("dentry", &d).is_ok_and(|d| d.inode == id))
        };
        if !found.all(leads) {
            reply.busy = true;
            return Ok(reply);
        }
    }
    let orphan = view.get(&keys::orphan(v, id)).await?.is_some();
    let trashed = match inode.trashed {
        Some(until) => view.get(&keys::trash(v, until, id)).await?.is_some(),
        None => false,
    };
    let verdict = if asked.names.is_empty() && is_leaving(view, id, &inode).await? {
        None
    } else if inode.is_dir() {
        directory(id, &inode, &asked.names)
    } else if !asked.names.is_empty() {
        named(id, &inode, asked.names.len(), orphan)
    } else if inode.nlink == 0 && (trashed || orphan || view.cx.has_sessions(id).await?) {
        None
    } else {
        Some(unnamed(id, &inode))
    };
    if let Some((problem, text, cure)) = verdict {
        let cure = cure.into();
        reply.findings.push(Finding { problem, text, cure, key: Vec::new(), ..asked.clone() });
    }
    Ok(reply)
}

/// Whether it is a directory of a tree that was removed, which waits to be emptied.
pub async fn is_leaving(view: &View<'_>, id: InodeId, inode: &Inode) -> Result<bool> {
    if !inode.is_dir() || inode.nlink > 0 {
        return Ok(false);
    }
    let v = view.volume();
    let record: Found<LeavingRecord> = view.record(&keys::leaving(v, id)).await?;
    Ok(match record {
        Found::Absent => false,
        // Found where it stands; nothing is concluded from it.
        Found::Unreadable => true,
        Found::There(r) => view.get(&keys::tree(v, r.tree)).await?.is_some(),
    })
}

type Verdict = (Problem, String, &'static str);

fn unnamed(id: InodeId, inode: &Inode) -> Verdict {
    let text =
        format!("{:?} {id} of {} bytes has no name, and nobody holds it", inode.kind, inode.len);
    (Problem::Unnamed, text, "goes to /lost+found")
}

fn named(id: InodeId, inode: &Inode, names: usize, orphan: bool) -> Option<Verdict> {
    let queued = orphan || inode.trashed.is_some();
    if inode.nlink as usize == names && !queued {
        return None;
    }
    let queue = if queued { ", and is queued for removal" } else { "" };
    let text = format!("inode {id} says {} names and has {names}{queue}", inode.nlink);
    Some((Problem::Links, text, "the number is set, and it is kept"))
}

fn directory(id: InodeId, inode: &Inode, names: &[Place]) -> Option<Verdict> {
    let extra = |n| {
        let text = format!("directory {id} has {n} names: {}", list(names));
        (Problem::ExtraNames, text, "one of them is kept")
    };
    if id == ROOT_INODE {
        let text = "the root directory is not its own parent".to_owned();
        let wrong = inode.parent != ROOT_INODE || inode.nlink != 1;
        return match names.len() {
            0 if wrong => Some((Problem::Parent, text, "is set right")),
            0 => None,
            n => Some(extra(n)),
        };
    }
    match names {
        [] => Some(unnamed(id, inode)),
        [one] => {
            let own = inode.name.as_ref().is_none_or(|n| n.as_slice() == one.name);
            if inode.parent == one.parent && own && inode.nlink == 1 {
                return None;
            }
            let text = format!(
                "directory {id} is {} in {}, and says {} in {} ({} names)",
                shown(&one.name),
                one.parent,
                inode.name.as_ref().map_or("nothing".into(), |n| shown(n)),
                inode.parent,
                inode.nlink
            );
            Some((Problem::Parent, text, "is set as its entry says"))
        }
        more => Some(extra(more.len())),
    }
}

fn list(names: &[Place]) -> String {
    let one = |p: &Place| format!("{} in {}", shown(&p.name), p.parent);
    names.iter().take(8).map(one).collect::<Vec<_>>().join(", ")
}

/// The name of a directory with several that is kept: the one that it says itself, if it can be.
pub fn kept<'a>(inode: &Inode, names: &'a [Place]) -> Option<&'a Place> {
    let parent = |p: &&Place| p.parent == inode.parent;
    let name = |p: &&Place| inode.name.as_ref().is_none_or(|n| n.as_slice() == p.name);
    names.iter().find(|p| parent(p) && name(p)).or(names.iter().find(parent)).or(names.first())
}

/// Whether a directory is its own ancestor, by the parents that the records say.
pub async fn cycle(view: &View<'_>, dir: InodeId) -> Result<FsckReply> {
    let mut reply = FsckReply::default();
    let Some(start) = view.inode(dir).await?.there().filter(Inode::is_dir) else {
        return Ok(reply);
    };
    let (mut at, mut seen) = (start.parent, BTreeSet::from([dir]));
    while seen.insert(at) {
        if at == ROOT_INODE || seen.len() > DEPTH_MAX {
            return Ok(reply);
        }
        match view.inode(at).await? {
            Found::There(i) if i.is_dir() => at = i.parent,
            _ => return Ok(reply),
        }
    }
    if at != dir {
        // It hangs below a circle, which is another's.
        return Ok(reply);
    }
    let names = entry_of(view, dir, &start).await?.into_iter().collect();
    let text = format!("directory {dir} lies in itself, {} directories deep", seen.len());
    let (inode, cure) = (dir, "goes to /lost+found with all that is in it".into());
    let change = start.change;
    reply.findings.push(Finding {
        problem: Problem::Cycle,
        inode,
        names,
        change,
        text,
        cure,
        ..Finding::default()
    });
    Ok(reply)
}

/// The entry of a directory in its parent.
async fn entry_of(view: &View<'_>, dir: InodeId, inode: &Inode) -> Result<Option<Place>> {
    let (v, parent) = (view.volume(), inode.parent);
    if let Some(name) = &inode.name {
        let found = view.record::<Dentry>(&keys::dentry(v, parent, name)).await?;
        if found.there().is_some_and(|d| d.inode == dir) {
            return Ok(Some(Place { parent, name: name.to_vec() }));
        }
    }
    let mut found = None;
    entries(view, parent, |name, d| {
        if d.inode == dir {
            found = Some(Place { parent, name: name.to_vec() });
        }
    })
    .await?;
    Ok(found)
}

/// Whether a directory has as many sub-directories as is recorded.
pub async fn subdirs(view: &View<'_>, dir: InodeId) -> Result<FsckReply> {
    let (mut reply, v) = (FsckReply::default(), view.volume());
    if view.inode(dir).await?.there().is_none_or(|i| !i.is_dir()) {
        return Ok(reply);
    }
    // Every insertion and removal changes it, and so conflicts with a repair that rests on the entries.
    view.get(&keys::dir_version(v, dir)).await?;
    let recorded = number(view.get(&keys::dir_subdirs(v, dir)).await?);
    let mut there = 0;
    entries(view, dir, |_, d| there += i64::from(d.kind == InodeKind::Directory)).await?;
    if recorded != there {
        let text = format!("directory {dir} says {recorded} sub-directories and has {there}");
        let (problem, cure) = (Problem::Subdirs, "the number is set".into());
        // The number itself travels where a change counter does.
        let change = there as u64;
        reply.findings.push(Finding {
            problem,
            inode: dir,
            change,
            text,
            cure,
            ..Finding::default()
        });
    }
    Ok(reply)
}

async fn entries(
    view: &View<'_>,
    dir: InodeId,
    mut each: impl FnMut(&[u8], &Dentry),
) -> Result<()> {
    let (mut begin, end) = keys::dentries(view.volume(), dir);
    loop {
        let page = view.cx.tx.get_range_snapshot(&begin, &end, FSCK_PAGE_MAX, false).await?;
        for (key, value) in &page.entries {
            if let (Some(keys::Part::Dentry(_, name)), Ok(d)) =
                (keys::parse(key), unpack::<Dentry>("dentry", value))
            {
                each(name, &d);
            }
        }
        match page.entries.last() {
            Some((last, _)) if page.more => begin = key_after(last),
            _ => return Ok(()),
        }
    }
}
