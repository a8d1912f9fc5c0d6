//! Opening, formatting and closing.

use crate::api::StoreConfig;
use crate::format::{BLOCK, Superblock};
use crate::gate::Gate;
use crate::log::Log;
use crate::room::{CHECKPOINT_SPARE, RESERVE_SEGMENTS};
use crate::state::Inner;
use glowfs_rt::backend::OpenOptions;
use glowfs_rt::{Dir, Rt};
use glowfs_types::{Error, Result, Status, StoreId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

pub(crate) const SUPERBLOCK: &str = "superblock";
const SUPERBLOCK_NEW: &str = "superblock.new";
/// The smallest log segment in bytes.
const SEGMENT_BYTES_MIN: u64 = 256 << 10;
/// The greatest log segment in bytes.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// How often start-up and the check of a disk read what does not match its checksum before they call it damaged: a disk may
/// return a wrong bit once.
pub(crate) const READS: u32 = 3;

fn check_config(config: &StoreConfig) -> Result<()> {
    let s = config.log_segment_bytes;
    if !s.is_power_of_two() || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&s) {
        return Err(Error::new(
            Status::InvalidArgument,
            format!(
                "log_segment_bytes = {s}: write a power of two from {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"
            ),
        ));
    }
    Ok(())
}

pub(crate) async fn open(rt: &Rt, dir: Dir, config: StoreConfig) -> Result<Rc<Inner>> {
    check_config(&config)?;
    let path = dir.path();
    let fail = |what: &str, e: std::io::Error| {
        let status = if crate::log::is_no_space(&e) { Status::NoSpace } else { Status::DiskFailed };
        Error::new(
            status,
            format!("{path}: {what}: {e}; check the disk and the directory's permissions"),
        )
    };
    rt.lock_dir(&dir).await.map_err(|e| {
        Error::new(
            Status::Busy,
            format!("{path}: in use by another process ({e}); stop it or give another directory"),
        )
    })?;
    let names: BTreeSet<String> =
        dir.list().await.map_err(|e| fail("cannot be listed", e))?.into_iter().collect();
    let fresh = !names.contains(SUPERBLOCK);
    let superblock = if fresh {
        let foreign = names.iter().find(|n| {
            !n.starts_with('.') && *n != "lock" && *n != "lost+found" && *n != SUPERBLOCK_NEW
        });
        if let Some(name) = foreign {
            return Err(Error::new(
                Status::InvalidArgument,
                format!(
                    "{path}: not a store and not empty (it holds «{name}»); give an empty directory or remove what is in it"
                ),
            ));
        }
        if !config.format {
            return Err(Error::new(
                Status::NotFound,
                format!("{path}: no store there; is the disk mounted?"),
            ));
        }
        Superblock {
            store: StoreId(rt.random_u128()),
            cluster: config.cluster,
            node: config.node,
            incarnation: 0,
            clean: true,
            log_segment_bytes: config.log_segment_bytes,
            clean_lsn: 0,
            boot: 0,
            boot_since: 0,
            nonce: 0,
        }
    } else {
        let mut reads = 1;
        loop {
            match read_superblock(rt, &dir).await {
                Err(e) if e.status == Status::Corrupt && reads < READS => reads += 1,
                other => break other?,
            }
        }
    };
    if superblock.cluster != config.cluster {
        return Err(Error::new(
            Status::WrongCluster,
            format!(
                "{path}: the store belongs to cluster {}, this service to {}; give the directory of this cluster, or an empty one",
                superblock.cluster, config.cluster
            ),
        ));
    }
    let mut config = config;
    config.log_segment_bytes = superblock.log_segment_bytes;
    check_config(&config).map_err(|e| e.context(&path))?;
    let inner = Rc::new(Inner {
        rt: rt.clone(),
        dir,
        config,
        was_clean: Cell::new(superblock.clean),
        cut: Cell::default(),
        former: superblock.nonce,
        superblock: RefCell::new(superblock),
        targets: RefCell::default(),
        in_log: RefCell::default(),
        unread: RefCell::default(),
        dead: Default::default(),
        gates: RefCell::<BTreeMap<_, Rc<Gate>>>::default(),
        slots: RefCell::default(),
        block_files: RefCell::default(),
        promised: Cell::new(0),
        growing: Cell::new(false),
        grown: Default::default(),
        epochs: Default::default(),
        retired: RefCell::default(),
        leaving: Default::default(),
        log: Log::default(),
        flush: Default::default(),
        checkpoint: RefCell::default(),
        checkpoint_count: Cell::new(1),
        checkpoint_busy: Cell::new(false),
        checkpoint_done: Default::default(),
        checkpoint_tried: Cell::default(),
        checkpoint_bytes: Cell::default(),
        checkpoint_spare: Cell::new(names.contains(CHECKPOINT_SPARE)),
        failed: RefCell::default(),
        failed_signal: Default::default(),
        closing: Cell::new(false),
        known_space: Default::default(),
    });
    let mut reads = 1;
    while let Err(e) = inner.recover(&names, reads == READS).await {
        if e.status != Status::Corrupt || reads == READS {
            return Err(e);
        }
        tracing::warn!(error = %e, "the store is read again");
        reads += 1;
    }
    inner.begin_life().await?;
    Ok(inner)
}

async fn read_superblock(rt: &Rt, dir: &Dir) -> Result<Superblock> {
    let path = dir.path();
    let fail =
        |e| Error::new(Status::DiskFailed, format!("{path}/{SUPERBLOCK}: {e}; check the disk"));
    let file =
        dir.open(SUPERBLOCK, OpenOptions { create: false, direct: true }).await.map_err(fail)?;
    let (result, mut buf) = file.read(rt.alloc(BLOCK), 0).await;
    buf.truncate(result.map_err(fail)?);
    Superblock::decode(&buf, &path)
}

/// The boot of this machine as a number; 0 if the kernel does not tell.
fn this_boot() -> u128 {
    let digits = glowfs_rt::process::boot_id().unwrap_or_default().replace('-', "");
    u128::from_str_radix(&digits, 16).unwrap_or(0)
}

/// A number for a new life, not 0.
fn draw(rt: &Rt) -> u32 {
    (rt.random() as u32).max(1)
}

impl Inner {
    /// Makes what was recovered durable and begins a new incarnation with a segment of its own.
    async fn begin_life(self: &Rc<Self>) -> Result<()> {
        self.flush.dirty_classes.borrow_mut().extend(self.block_files.borrow().keys());
        self.flush.dirty_segments.borrow_mut().extend(self.log.segments.borrow().keys());
        // The name of the checkpoint as well: the one before refers to slots that it has given up.
        self.flush.dirty_dir.set(true);
        self.flush_all().await?;
        // Not before: a removal that is not durable yet may have freed a slot.
        self.find_holes().await?;
        {
            let mut sb = self.superblock.borrow_mut();
            sb.incarnation += 1;
            sb.nonce = draw(&self.rt);
            let boot = this_boot();
            // What was cut off is lost as if the power had gone, and is told in the same way.
            if boot == 0 || boot != sb.boot || self.cut.get() {
                (sb.boot, sb.boot_since) = (boot, sb.incarnation);
            }
            sb.clean = false;
            sb.node = self.config.node;
        }
        self.write_superblock().await?;
        let (index, file) = self.first_segment().await?;
        self.begin_segment(index, file).await?;
        self.keep_reserve().await;
        self.keep_checkpoint_spare(self.checkpoint_bytes.get()).await;
        self.log.on_reserve.set(self.log.free.borrow().len() < RESERVE_SEGMENTS);
        self.flush_all().await?;
        self.maybe_checkpoint();
        Ok(())
    }

    async fn write_superblock(self: &Rc<Self>) -> Result<()> {
        let bytes = self.superblock.borrow().encode();
        let error = |e: std::io::Error| self.poison("writing the superblock", &e);
        let mut written = self.write_new_superblock(&bytes).await;
        while written.as_ref().is_err_and(crate::log::is_no_space)
            && self.make_a_little_room().await?
        {
            written = self.write_new_superblock(&bytes).await;
        }
        written.map_err(error)?;
        self.dir.rename(SUPERBLOCK_NEW, SUPERBLOCK).await.map_err(error)?;
        self.dir.sync().await.map_err(error)
    }

    async fn write_new_superblock(&self, bytes: &[u8]) -> std::io::Result<()> {
        let options = OpenOptions { create: true, direct: true };
        let file = self.open_waiting(SUPERBLOCK_NEW, options).await?;
        let mut buf = self.rt.alloc(BLOCK);
        buf.copy_from_slice(bytes);
        file.write(vec![buf.freeze()], 0).await?;
        file.sync().await
    }

    pub async fn close(self: &Rc<Self>) -> Result<()> {
        self.check_open()?;
        self.closing.set(true);
        self.drained().await;
        self.checkpoint_done.wait(|| (!self.checkpoint_busy.get()).then_some(())).await;
        self.flush_to(self.log.written.get()).await?;
        {
            let mut sb = self.superblock.borrow_mut();
            sb.clean = true;
            sb.clean_lsn = self.log.written.get();
        }
        self.write_superblock().await
    }
}
