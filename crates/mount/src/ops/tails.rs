//! The last page of a file that is mapped here, when another client has made the file longer.
//!
//! The kernel has zeros there behind the end that it knows, and writes a page that was stored into as far as it takes the file to be long: once it were told the new length it
//! would write them over what the other client stored. So it gives that page back first, while it knows the old end; whoever reads it from then on gets the bytes behind it.
//! Likewise before this client makes the file longer itself; where the kernel holds the page meanwhile, what lies behind the old end is not written until it has given it back
//! ([`crate::old_tails`]).
//!
//! Must never: be waited for inside a gate, or where the kernel holds the page until it is answered: it writes the page through a request of its own.

use crate::daemon::Context;
use crate::filesystem::FileSystem;
use crate::kernel_len::Between;
use crate::old_tails::{OldTail, is_within_a_page};
use crate::open::OpenInode;
use glowfs_rt::Duration;
use glowfs_types::InodeId;
use glowfs_types::wire::meta::Attr;
use std::ops::Range;

/// How long a request waits for the page; then it goes on beside that.
const PATIENCE: Duration = Duration::from_secs(1);

/// What makes a file longer here.
#[derive(Clone, Copy)]
pub(crate) enum LongerBy {
    /// A new length: no bytes come with it.
    Length,
    /// A write from there on: the kernel holds all those pages until it is answered.
    Write { from: u64 },
    /// An append: the kernel has its bytes in the place that it guessed.
    Append,
    /// A copy: the kernel does not have its bytes.
    Copy,
}

impl LongerBy {
    /// Whether what the kernel has behind the old end, in the last page, may belong elsewhere.
    fn bytes_are_elsewhere(self) -> bool {
        matches!(self, Self::Append | Self::Copy)
    }
    /// Whether the kernel holds the last page itself until the request is answered.
    fn holds(self, tail: &OldTail) -> bool {
        matches!(self, Self::Write { from } if tail.is_in_page_of(from))
    }
}

impl<S: FileSystem> Context<S> {
    /// Call when meta said this of an inode, before the kernel is told. It takes no longer than the kernel itself, which gives all pages of a file back whose length it
    /// hears is another one.
    pub(crate) async fn before_longer(&self, from_meta: &Attr) {
        let Some(end) = self.inodes.old_end(from_meta) else { return };
        let open = self.inodes.opened(from_meta.inode);
        // If it has passed over what ended early, it writes more of the pages than the file had when they were read.
        let in_doubt = open.filter(|_| end.least < end.most);
        let _tail = in_doubt.map(|open| open.old_tails.begin(end, u64::MAX));
        Box::pin(self.forget_tails(from_meta.inode, end)).await;
    }
    /// The page in which the file ends for the kernel, if this client is about to make it reach to `end`, another one has made it longer before, and somebody may have stored
    /// into the page through a mapping. What the other one has there is not written over from here on, until this is dropped; nor anything behind it in the page if
    /// the kernel has bytes there that belong elsewhere.
    pub(crate) async fn old_tail(
        &self,
        open: &OpenInode<S::File>,
        by: LongerBy,
        end: u64,
    ) -> Option<OldTail> {
        let old = open.direct.kernel_len();
        if end <= old.least || !is_within_a_page(old) || !open.may_be_mapped() {
            return None;
        }
        // Who cannot know goes on: he would have done so before.
        self.refresh_if_unleased(open).await.ok()?;
        let len = open.meta_len();
        let to = if by.bytes_are_elsewhere() { u64::MAX } else { len };
        // It may have been told since, when it had given the page back, or have read where the file ends.
        let old = open.direct.kernel_len();
        (len.min(end) > old.least).then(|| open.old_tails.begin(old, to))
    }
    /// The same, given back before the request goes on; but if the kernel holds that page for it, or if that takes long, it has to be given
    /// back [beside it](Self::forget_tail_later). Nobody waits long for meta: a write can do without.
    pub(crate) async fn before_lengthening(
        &self,
        open: &OpenInode<S::File>,
        by: LongerBy,
        end: u64,
    ) -> Option<OldTail> {
        let known = Box::pin(self.old_tail(open, by, end));
        let tail = self.rt.timeout(PATIENCE, known).await.ok()??;
        if by.holds(&tail) {
            return Some(tail);
        }
        let given_back = Box::pin(self.forget_tails(open.id, tail.old_end()));
        self.rt.timeout(PATIENCE, given_back).await.is_err().then_some(tail)
    }
    /// Has the kernel give the page back beside the request, which it may hold it for.
    pub(crate) fn forget_tail_later(&self, inode: InodeId, tail: Option<OldTail>) {
        let Some(tail) = tail else { return };
        let all = self.clone();
        self.rt.spawn_detached(async move { all.forget_tails(inode, tail.old_end()).await });
    }
    /// Has the kernel give back what it reads as zeros of what lies behind the end. It holds the pages until the READ is answered.
    pub(crate) fn forget_zeros_later(&self, inode: InodeId, zeros: Range<u64>) {
        let all = self.clone();
        let end = Between { least: zeros.start, most: zeros.end };
        self.rt.spawn_detached(async move { all.forget_tails(inode, end).await });
    }
    /// All pages from the one in which the file ends at least to the one in which it ends at most.
    async fn forget_tails(&self, inode: InodeId, end: Between) {
        let Some(session) = self.session.borrow().upgrade() else { return };
        let from = end.least.saturating_sub(1);
        let bytes = i64::try_from((end.most.max(1) - from).max(1)).unwrap_or(i64::MAX);
        let from = i64::try_from(from).unwrap_or(i64::MAX);
        if let Err(error) = session.notify_inval_inode(inode.0, from, bytes).await {
            tracing::warn!(%inode, %error, "the kernel cannot be told to give a page back");
        }
    }
}
