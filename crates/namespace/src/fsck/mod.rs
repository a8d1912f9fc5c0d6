//! The checker of the whole metadata: finds what should not be, and mends it, while the file system is in use.
//!
//! - [`answer`]: one question, in one transaction of the service: a page of records, or one thing looked at or mended.
//! - [`check`], [`mend`]: whoever asks. It reads everything once in ranges and keeps the [`census`] of names.
//!
//! How a busy file system makes no false alarm: what concerns a record and those it leads to is read in one transaction. How many names an inode has, no
//! transaction can say; but whatever gives or takes a name also writes the inode's record, so if its change counter is the same before and after all
//! entries were read, those found are all of its names. What keeps changing is said to be undecided, and so is what has more names than go into a message.
//!
//! Memory of who asks: about 24 bytes for each inode of a slice ([`SLICE_INODES`]; of a larger file system entries and inodes are read once for each slice), 40 for
//! each directory, and the findings ([`FINDINGS_MAX`]). Must never: change a record that it cannot read, or mend what is not wrong any more.

mod census;
mod drive;
mod judge;
mod local;
mod mending;
#[cfg(test)]
pub(crate) mod tests;
mod view;

pub use census::{FINDINGS_MAX, SLICE_INODES};
pub use drive::{Mended, Progress, Report, check, mend};

use crate::context::Context;
use crate::keys;
use crate::record::{Dentry, Inode, unpack};
use glowfs_kv::key_after;
use glowfs_types::wire::fsck::{FSCK_INODES_MAX, FSCK_PAGE_MAX, Fsck, FsckReply, FsckWish, Place};
use glowfs_types::{Error, InodeId, Result, Status};
use view::View;

/// Answers one question, in the caller's transaction.
pub async fn answer(cx: &Context<'_>, q: &Fsck) -> Result<FsckReply> {
    let bad = |what| Error::new(Status::InvalidArgument, format!("fsck: {what}"));
    if q.inodes.len() > FSCK_INODES_MAX {
        return Err(bad("too many inodes at once"));
    }
    let one = || q.inodes.first().copied().ok_or_else(|| bad("which inode?"));
    let finding = || q.finding.as_ref().ok_or_else(|| bad("which finding?"));
    match q.wish {
        FsckWish::Page => page(cx, q).await,
        FsckWish::Look => look(cx, &q.inodes).await,
        FsckWish::Places => places(cx, q).await,
        FsckWish::Judge => judge::inode(&View::snapshot(cx), finding()?).await,
        FsckWish::Cycle => judge::cycle(&View::snapshot(cx), one()?).await,
        FsckWish::Subdirs => judge::subdirs(&View::snapshot(cx), one()?).await,
        FsckWish::Verify => {
            let findings = mending::still(&View::snapshot(cx), finding()?).await?;
            Ok(FsckReply { findings: findings.into_iter().collect(), ..FsckReply::default() })
        }
        FsckWish::Mend => mending::mend(cx, finding()?).await,
    }
}

/// Whether a question changes something.
pub fn changes(q: &Fsck) -> bool {
    q.wish == FsckWish::Mend
}

async fn page(cx: &Context<'_>, q: &Fsck) -> Result<FsckReply> {
    let (begin, end) = keys::all(cx.volume());
    let begin = if q.from.is_empty() { &begin } else { &q.from };
    let limit = q.limit.clamp(1, FSCK_PAGE_MAX);
    let page = cx.tx.get_range_snapshot(begin, &end, limit, false).await?;
    let mut view = View::snapshot(cx);
    view.prefetch(&page.entries).await?;
    let mut reply = FsckReply { records: page.entries.len() as u64, ..FsckReply::default() };
    for (key, value) in &page.entries {
        local::check(&view, key, value, &mut reply).await?;
    }
    reply.next = page.entries.last().filter(|_| page.more).map(|(k, _)| key_after(k).into());
    if q.from.is_empty() {
        reply.total_inodes = crate::statfs(cx.tx, cx.volume()).await?.inodes;
    }
    Ok(reply)
}

async fn look(cx: &Context<'_>, inodes: &[InodeId]) -> Result<FsckReply> {
    let keys: Vec<_> = inodes.iter().map(|i| keys::inode(cx.volume(), *i)).collect();
    let found = cx.tx.get_all_snapshot(&keys).await?;
    let change = |value: Vec<u8>| unpack::<Inode>("inode", &value).ok().map(|i| i.change);
    let changes = inodes.iter().zip(found).filter_map(|(i, v)| Some((*i, change(v?)?))).collect();
    Ok(FsckReply { changes, ..FsckReply::default() })
}

async fn places(cx: &Context<'_>, q: &Fsck) -> Result<FsckReply> {
    let (begin, end) = keys::all_dentries(cx.volume());
    let begin = if q.from.is_empty() { &begin } else { &q.from };
    let limit = q.limit.clamp(1, FSCK_PAGE_MAX);
    let page = cx.tx.get_range_snapshot(begin, &end, limit, false).await?;
    let wanted: std::collections::BTreeSet<_> = q.inodes.iter().collect();
    let mut reply = FsckReply { records: page.entries.len() as u64, ..FsckReply::default() };
    for (key, value) in &page.entries {
        let (Some(keys::Part::Dentry(parent, name)), Ok(d)) =
            (keys::parse(key), unpack::<Dentry>("dentry", value))
        else {
            continue;
        };
        if wanted.contains(&d.inode) {
            reply.places.push((d.inode, Place { parent, name: name.to_vec() }));
        }
    }
    reply.next = page.entries.last().filter(|_| page.more).map(|(k, _)| key_after(k).into());
    Ok(reply)
}
