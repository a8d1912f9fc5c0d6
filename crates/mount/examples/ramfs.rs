//! Mounts a RAM file system until it is unmounted or ended (SIGTERM, SIGINT): to measure FUSE and the mount without a cluster.
//!
//!     cargo run --release -p glowfs-mount --example ramfs -- /mnt/test

use glowfs_mount::{MountConfig, ram::RamFs, start_on};
use glowfs_rt::{real, signal::Termination, sync::select};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mountpoint = std::env::args().nth(1).ok_or("name a mount point")?.into();
    let config = MountConfig { mountpoint, ..MountConfig::default() };
    let termination = Termination::new()?;
    real::run(move |rt| async move {
        let running = start_on(&rt, config, RamFs::new(&rt)).await?;
        let told = select(termination.wait(&rt), running.failed()).await;
        drop(told);
        running.stop().await;
        Ok(())
    })
}
