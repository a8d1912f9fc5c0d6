//! READDIR: pages in the order of the entries' cookies, which never change, so that a listing goes on where it stopped
//! whatever was made or removed meanwhile; a page costs its own entries.

use crate::access::{self, READ};
use crate::context::{Context, DirSide, dir_attr};
use crate::keys;
use crate::record::{CookieEntry, Inode, unpack};
use glowfs_types::wire::kv::RANGE_ENTRIES_MAX;
use glowfs_types::wire::meta::{Attr, DirEntry, InodeKind, ReadDir, ReadDirReply};
use glowfs_types::{InodeId, Result};

/// Entries of one page with attributes.
const ATTR_ENTRIES_MAX: u32 = 1024;

/// One page of a directory, and whether [`crate::touch`] is to be called.
pub async fn readdir(cx: &Context<'_>, req: &ReadDir) -> Result<(ReadDirReply, bool)> {
    let v = cx.volume();
    let dir = cx.dir(req.inode).await?;
    access::check_named(cx.caller, &dir, READ)?;
    let most = if req.attributes { ATTR_ENTRIES_MAX } else { RANGE_ENTRIES_MAX };
    let (begin, end) = keys::cookies_after(v, req.inode, req.after);
    let page = cx.tx.get_range_snapshot(&begin, &end, req.limit.clamp(1, most), false).await?;
    let mut entries = Vec::with_capacity(page.entries.len());
    for (key, value) in &page.entries {
        let entry: CookieEntry = unpack("directory entry", value)?;
        let cookie = keys::cookie_of(key).unwrap_or_default();
        entries.push(DirEntry {
            name: entry.name,
            inode: entry.inode,
            kind: entry.kind,
            cookie,
            attr: None,
            leased: false,
        });
    }
    if req.attributes {
        add_attributes(cx, &mut entries).await?;
    }
    let begins = req.after == 0;
    let accessed = begins && cx.attr_of(req.inode, &dir).await?.wants_atime(req.atime, cx.now);
    let (more, parent) = (page.more, dir.parent);
    let last = if begins && more { last_cookie(cx, req.inode).await? } else { None };
    Ok((ReadDirReply { entries, end: !more, parent, lease_ms: 0, last }, accessed))
}

/// Where a listing that begins now has to end: what is made, or moved in, comes behind all others, so who makes
/// entries while he lists would never come to an end.
async fn last_cookie(cx: &Context<'_>, dir: InodeId) -> Result<Option<u64>> {
    let (begin, end) = keys::cookies_after(cx.volume(), dir, 0);
    let page = cx.tx.get_range_snapshot(&begin, &end, 1, true).await?;
    Ok(page.entries.first().and_then(|(key, _)| keys::cookie_of(key)))
}

async fn add_attributes(cx: &Context<'_>, entries: &mut [DirEntry]) -> Result<()> {
    let v = cx.volume();
    let mut ask = Vec::with_capacity(entries.len());
    for e in entries.iter() {
        ask.push(keys::inode(v, e.inode));
        if e.kind == InodeKind::Directory {
            ask.extend([
                keys::dir_version(v, e.inode),
                keys::dir_subdirs(v, e.inode),
                keys::dir_time(v, e.inode),
            ]);
        }
    }
    let mut found = cx.tx.get_all_snapshot(&ask).await?.into_iter();
    let mut next = || found.next().flatten();
    for e in entries {
        let inode = next();
        let side = (e.kind == InodeKind::Directory).then(|| (next(), next(), next()));
        let Some(inode) = inode else { continue };
        let inode: Inode = unpack("inode", &inode)?;
        let attr: Attr = match side {
            Some((version, subdirs, time)) => {
                dir_attr(e.inode, &inode, DirSide::new(version, subdirs, time), cx.tx.life())
            }
            None => cx.attr_here(e.inode, &inode),
        };
        e.attr = Some(attr);
    }
    Ok(())
}
