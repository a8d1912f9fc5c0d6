//! Listing directories.
//!
//! A cookie of ours is 1 for `.`, 2 for `..`, and meta's cookie + 2 for entries. Entries that were fetched and did
//! not fit wait in the handle; a seek drops them.

use crate::attr::{dirent_kind, entry_out};
use crate::daemon::{Answer, Context, Failure, Outcome, fail};
use crate::filesystem::FileSystem;
use crate::handles::{DirHandle, Page};
use glowfs_fuse::DirWriter;
use glowfs_fuse::abi::{self, ReadIn};
use glowfs_types::InodeId;
use glowfs_types::wire::meta::*;
use libc::{EBADF, EIO};
use std::cell::RefCell;

const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
/// Entries asked for at a time.
const PAGE_ENTRIES: u32 = 256;

impl<S: FileSystem> Context<S> {
    pub(crate) async fn readdir(&self, i: ReadIn, plus: bool) -> Outcome {
        let Some(dir) = self.inodes.handles.dir(i.fh) else { return fail(EBADF) };
        let mut out = DirWriter::new(i.size);
        let mut at = i.offset;
        if at == 0 {
            let caller = dir.borrow().caller.clone();
            *dir.borrow_mut() = DirHandle { caller, ..DirHandle::default() };
        }
        let after = at.saturating_sub(DOT_DOT);
        if dir.borrow().after != after {
            let mut d = dir.borrow_mut();
            d.ahead.clear();
            (d.after, d.end) = (after, false);
        }
        if at < DOT_DOT && dir.borrow().parent.is_none() {
            self.fetch(&dir, plus).await?;
        }
        while at < DOT_DOT {
            let dot = at < DOT;
            let (cookie, name): (u64, &[u8]) = if dot { (DOT, b".") } else { (DOT_DOT, b"..") };
            let parent = dir.borrow().parent.map_or(self.header.node, |p| p.0);
            let inode = if dot { self.header.node } else { parent };
            if !self.put_plain(&mut out, plus, inode, cookie, InodeKind::Directory, name) {
                return Ok(Answer::Bytes(out.finish()));
            }
            at = cookie;
        }
        loop {
            let next = dir.borrow_mut().ahead.pop_front();
            let Some(entry) = next else {
                // What fits is sent before meta is asked for more.
                if dir.borrow().end || !out.is_empty() {
                    break;
                }
                self.fetch(&dir, plus).await?;
                continue;
            };
            let page = dir.borrow().page;
            if !self.put(&mut out, plus, &entry, page)? {
                dir.borrow_mut().ahead.push_front(entry);
                break;
            }
            dir.borrow_mut().after = entry.cookie;
        }
        Ok(Answer::Bytes(out.finish()))
    }

    /// Gets the next page of entries.
    async fn fetch(&self, dir: &RefCell<DirHandle>, attributes: bool) -> Result<(), Failure> {
        let (after, caller) = {
            let mut d = dir.borrow_mut();
            d.caller.admitted |= self.admitted;
            (d.ahead.back().map_or(d.after, |e| e.cookie), d.caller.clone())
        };
        let q = ReadDir {
            caller,
            inode: InodeId(self.header.node),
            after,
            limit: PAGE_ENTRIES,
            attributes,
            atime: self.config.atime_rule(InodeKind::Directory),
        };
        let (asked, name_changes) = (self.asking(), self.directories.name_changes(q.inode));
        let page = self.fs.readdir(q).await?;
        let mut d = dir.borrow_mut();
        d.page = Some(Page { asked, lease_ms: page.lease_ms, name_changes });
        d.parent = Some(page.parent);
        // From the beginning, it is another listing.
        d.last = if after == 0 { page.last } else { page.last.or(d.last) };
        let last = d.last.unwrap_or(u64::MAX);
        d.end = page.end || page.entries.last().is_none_or(|e| e.cookie >= last);
        d.ahead.extend(page.entries.into_iter().filter(|e| e.cookie <= last));
        Ok(())
    }

    fn put(
        &self,
        out: &mut DirWriter,
        plus: bool,
        e: &DirEntry,
        page: Option<Page>,
    ) -> Result<bool, Failure> {
        // The kernel's offsets are signed.
        let cookie = e.cookie.checked_add(DOT_DOT).filter(|c| i64::try_from(*c).is_ok());
        let Some(cookie) = cookie else { return Err(Failure::Errno(EIO)) };
        // Without attributes, or with some that are older than what the kernel has seen, only the name is told: neither would the kernel
        // take a name for one that is there. So it is if we changed names in the directory since: nobody recalls from us what we change. Nor is it told here of a file
        // that is longer than it knows, and may be mapped: who wants to know asks ([`Context::before_longer`]).
        let changes = self.directories.name_changes(InodeId(self.header.node));
        let page = page.filter(|p| plus && p.name_changes == changes);
        let told = e.attr.as_ref().zip(page).filter(|(a, page)| {
            !self.inodes.is_old(a, page.asked.recalls()) && self.inodes.old_end(a).is_none()
        });
        let Some((attr, page)) = told else {
            return Ok(self.put_plain(out, plus, e.inode.0, cookie, e.kind, &e.name));
        };
        // Now, and not when it was fetched: what was recalled since then may not be kept.
        let lease_ms = if e.leased { page.lease_ms } else { 0 };
        let end = self.lease_end(page.asked, e.inode, lease_ms);
        let attr = self.inodes.seen(attr);
        let valid = (self.valid(end), self.valid(end));
        let mut entry = entry_out(&attr, self.config.block_bytes, valid);
        if self.forgetting.is_under_way(e.inode) || self.inodes.would_hide(&attr, &entry) {
            // Readers ask, and wait then.
            (entry.attr_valid, entry.attr_valid_nsec) = (0, 0);
        }
        let fits = out.entry_plus(&entry, e.inode.0, cookie, dirent_kind(e.kind), &e.name);
        if fits {
            self.inodes.looked_up(e.inode, end);
            self.inodes.seen_of(&attr, page.asked.recalls());
            self.inodes.gives(e.inode);
            let (dir, places) = (InodeId(self.header.node), &self.inodes.places);
            match e.kind {
                InodeKind::Directory => drop(places.tell(e.inode, dir, &e.name)),
                _ => places.tell_other(dir, &e.name),
            }
            if self.inodes.tells(&attr, &entry) {
                self.forget_pages_later(attr.inode);
            }
        }
        Ok(fits)
    }

    fn put_plain(
        &self,
        out: &mut DirWriter,
        plus: bool,
        inode: u64,
        cookie: u64,
        kind: InodeKind,
        name: &[u8],
    ) -> bool {
        if plus {
            // Node id 0: no lookup took place.
            out.entry_plus(&abi::EntryOut::default(), inode, cookie, dirent_kind(kind), name)
        } else {
            out.entry(inode, cookie, dirent_kind(kind), name)
        }
    }
}
