//! The last page of a file that is mapped here, when another client has made the file longer.
//!
//! The kernel has zeros there behind the end that it knows, and writes a page that was stored into as far as it takes the file to be long: once it were told the new length it
//! would write them over what the other client stored. So it gives that page back first, while it knows the old end; whoever reads it from then on gets the bytes behind it.
//!
//! Must never: be waited for inside a gate, or where the kernel holds the page until it is answered: it writes the page through a request of its own.

use crate::daemon::Context;
use crate::filesystem::FileSystem;
use glowfs_types::wire::meta::Attr;

impl<S: FileSystem> Context<S> {
    /// Call when meta said this of an inode, before the kernel is told. It takes no longer than the kernel itself, which gives all pages of a file back whose length it
    /// hears is another one.
    pub(crate) async fn before_longer(&self, from_meta: &Attr) {
        if let Some(end) = self.inodes.old_end(from_meta) {
            Box::pin(self.forget_tail(from_meta, end)).await;
        }
    }
    async fn forget_tail(&self, of: &Attr, end: u64) {
        let Some(session) = self.session.borrow().upgrade() else { return };
        let last = i64::try_from(end - 1).unwrap_or(i64::MAX);
        if let Err(error) = session.notify_inval_inode(of.inode.0, last, 1).await {
            tracing::warn!(inode = %of.inode, %error, "the kernel cannot be told to give a page back");
        }
    }
}
