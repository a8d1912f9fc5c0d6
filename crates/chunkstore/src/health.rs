//! Whether the disk is still there and takes writes; and how much room it has, without asking it each time.

use crate::format::{BLOCK, Superblock};
use crate::open::{READS, SUPERBLOCK};
use crate::state::Inner;
use glowfs_rt::backend::{OpenOptions, Space};
use glowfs_rt::{Dir, Duration, File, Instant};
use glowfs_types::Result;
use std::cell::Cell;
use std::io;
use std::rc::Rc;

/// The file that is written to see whether writes work. (Its name begins with a dot, so that a directory with nothing else counts as empty.)
const PROBE: &str = ".probe";
/// The pause before the superblock is read again.
const READ_PAUSE: Duration = Duration::from_millis(50);
/// The pause before a file is opened again for which there was no descriptor.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(100);
/// How old the known size of the free space may be.
const SPACE_STALE: Duration = Duration::from_millis(200);

/// What the file system said of its room last, less what was taken since.
#[derive(Default)]
pub(crate) struct KnownSpace(Cell<Option<(Instant, Space)>>);

impl Inner {
    /// The room of the file system, as of a moment ago.
    pub fn disk_space(&self) -> Space {
        let now = self.rt.now();
        match self.known_space.0.get() {
            Some((at, space)) if now.since(at) < SPACE_STALE => space,
            _ => {
                let space = self.dir.space().unwrap_or_default();
                self.known_space.0.set(Some((now, space)));
                space
            }
        }
    }
    /// A file grew by so many bytes.
    pub fn space_taken(&self, bytes: u64) {
        if let Some((at, mut space)) = self.known_space.0.get() {
            space.free_bytes = space.free_bytes.saturating_sub(bytes);
            self.known_space.0.set(Some((at, space)));
        }
    }

    /// A file gave so many bytes back.
    pub fn space_given(&self, bytes: u64) {
        if let Some((at, mut space)) = self.known_space.0.get() {
            space.free_bytes = space.free_bytes.saturating_add(bytes).min(space.total_bytes);
            self.known_space.0.set(Some((at, space)));
        }
    }

    /// Opens a file that the store cannot go on without. Having no descriptor is no fault of the disk, and passes: it waits for one.
    pub async fn open_waiting(&self, name: &str, options: OpenOptions) -> io::Result<File> {
        loop {
            match self.dir.open(name, options).await {
                Err(error) if glowfs_rt::process::lacks_descriptors(&error) => {
                    let disk = self.dir.path();
                    tracing::error!(disk, name, %error, "the store waits for a descriptor; raise the limit of them, or end connections");
                    self.rt.sleep(DESCRIPTOR_PAUSE).await;
                    if self.failed.borrow().is_some() {
                        return Err(error);
                    }
                }
                opened => return opened,
            }
        }
    }

    /// Reads and writes one block. What an idle store would not notice (its directory deleted, the file system remounted read-only)
    /// fails here, and takes the store out of service. By `beside`, which is the same directory opened once more, so that what is asked of the disk by the store
    /// itself is not before it in a queue of ours: a disk with much to do is not one that hangs.
    pub async fn probe(self: &Rc<Self>, beside: &Dir) -> Result<()> {
        self.check_open()?;
        match self.try_probe(beside).await {
            Ok(()) => Ok(()),
            // The process is at its limit of files, or the disk is full: neither says that it is broken.
            Err(e) if crate::log::is_no_space(&e) || e.kind() == io::ErrorKind::OutOfMemory => {
                Ok(())
            }
            Err(e) if glowfs_rt::process::lacks_descriptors(&e) => Ok(()),
            Err(e) => Err(self.poison("the check of the disk", &e)),
        }
    }

    async fn try_probe(&self, beside: &Dir) -> io::Result<()> {
        let mut reads = 1;
        // What is there reads wrongly at times, and rightly the next time; what is not there stays away.
        while let Err(e) = self.check_superblock(beside).await {
            if reads == READS || e.kind() == io::ErrorKind::NotFound {
                return Err(e);
            }
            tracing::warn!(disk = self.dir.path(), error = %e, "the superblock is read again");
            reads += 1;
            self.rt.sleep(READ_PAUSE).await;
        }
        let options = OpenOptions { create: true, direct: true };
        let file = beside.open(PROBE, options).await?;
        let mut block = self.rt.alloc(BLOCK);
        block.fill(0);
        file.write(vec![block.freeze()], 0).await
    }

    /// Reads the superblock by its name: it must be this store's.
    async fn check_superblock(&self, beside: &Dir) -> io::Result<()> {
        let options = OpenOptions { create: false, direct: true };
        let file = beside.open(SUPERBLOCK, options).await?;
        let (read, mut buf) = file.read(self.rt.alloc(BLOCK), 0).await;
        buf.truncate(read?);
        let other = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let found = Superblock::decode(&buf, &self.dir.path()).map_err(|e| other(e.message))?;
        let own = self.superblock.borrow().store;
        if found.store != own {
            return Err(other(format!("store {} is there, not {own}", found.store)));
        }
        Ok(())
    }
}
