//! Making durable: fsync, fdatasync, syncfs, fsync of a directory.
//!
//! Guarantee: what was acknowledged before, by whomever, is on disk when one of them returns, also if another client has cut the file to nothing since this one
//! last heard of it, and its new data lies on other chains. Must never: ask meta for what a lease says.

use crate::daemon::{Answer, Context, Failure, Outcome, fail};
use crate::filesystem::{FileData, FileSystem};
use crate::handles::Handle;
use glowfs_rt::sync::join;
use glowfs_types::wire::meta::*;
use glowfs_types::{RequestId, Status};
use libc::EBADF;

impl<S: FileSystem> Context<S> {
    pub(crate) async fn fsync(&self, fh: u64, data_only: bool) -> Outcome {
        let Some(handle) = self.inodes.handles.file(fh) else { return fail(EBADF) };
        handle.inode.direct.over();
        let durable = self.make_as_durable(&handle, data_only).await;
        self.with_late(&handle, durable.map(|()| Answer::Done))
    }
    /// Data, and what is needed to find it, is on disk when it returns, but for what is lost, of which [`Self::heard`] tells; unless `data_only`, times as well. Without them meta flushes nothing, if it
    /// cannot lose where the bytes are; it hears of the write all the same, for by the time of it other clients know that their pages are old.
    pub(crate) async fn make_as_durable(
        &self,
        handle: &Handle<S::File>,
        data_only: bool,
    ) -> Result<(), Failure> {
        let inode = &handle.inode;
        self.all_sent(inode).await;
        if data_only && !inode.is_inline() && inode.is_found_durably() {
            let flushed = inode.data();
            // Meta hears of our writes or, if there are none, says what it has, unless nobody can have changed that: what another client has written since it
            // cut the file to nothing lies on other chains.
            let news = async {
                match inode.dirty() {
                    Some(_) => self.report(handle, false).await,
                    None => self.refresh_if_unleased(inode).await.map(drop),
                }
            };
            let (data, news) = join(self.flush_data(handle), news).await;
            data.and(news)?;
            // Another fsync may have learnt of new data meanwhile, and have it not flushed yet.
            if inode.is_found_durably() && inode.data() == flushed {
                return Ok(());
            }
        }
        self.make_durable(handle).await
    }
    /// Data, length and times are on disk when it returns, but for what is lost, of which [`Self::heard`] tells.
    pub(crate) async fn make_durable(&self, handle: &Handle<S::File>) -> Result<(), Failure> {
        self.all_sent(&handle.inode).await;
        if handle.inode.is_inline() {
            self.report(handle, true).await?;
            if handle.inode.is_inline() {
                return Ok(());
            }
            // Somebody else had the contents put into chunks, and may have written to those.
        }
        let flushed = handle.inode.data();
        if handle.inode.grew() {
            // A length that outlives the data it stands for would show zeros after a loss of power.
            self.flush_data(handle).await?;
            self.report(handle, true).await?;
        } else {
            let (data, attr) = join(self.flush_data(handle), self.report(handle, true)).await;
            data.and(attr)?;
        }
        if handle.inode.data() != flushed {
            // Another client had cut the file to nothing: what it has written since lies on other chains, of which meta has told only now.
            self.flush_data(handle).await?;
        }
        Ok(())
    }
    /// What is left of the data is on disk when it returns; if something was lost before it was, the handles of the file hear of that ([`Self::heard`]).
    async fn flush_data(&self, handle: &Handle<S::File>) -> Result<(), Failure> {
        let file = &handle.opened.file;
        let flushed = file.flush().await;
        handle.inode.note_losses(file.losses());
        match flushed {
            Err(e) if e.status == Status::WritesLost => Ok(()),
            flushed => flushed.map_err(Failure::from),
        }
    }
    pub(crate) async fn syncfs(&self) -> Outcome {
        for fh in self.inodes.handles.file_handles() {
            if let Some(handle) = self.inodes.handles.file(fh)
                && handle.opened.access.write
            {
                self.make_durable(&handle).await?;
            }
        }
        self.namespace_barrier().await
    }
    /// Meta may answer a change of names before it is flushed (it does so within tens of milliseconds), so this asks.
    pub(crate) async fn fsyncdir(&self) -> Outcome {
        self.namespace_barrier().await
    }
    /// Returns when every change of the namespace that was answered before is on disk. It is asked of the root, which no
    /// `rmdir` can take away under an open directory.
    async fn namespace_barrier(&self) -> Outcome {
        let q = Sync {
            caller: self.caller(),
            request: RequestId(self.rt.random_u128()),
            inode: ROOT_INODE,
            durable: true,
            ..Sync::default()
        };
        self.fs.sync(q).await?;
        Ok(Answer::Done)
    }
}
