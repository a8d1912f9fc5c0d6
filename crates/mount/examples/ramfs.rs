//! Mounts a RAM file system until it is unmounted or ended (SIGTERM, SIGINT): to measure FUSE and the mount without a cluster.
//!
//!     cargo run --release -p glowfs-mount --example ramfs -- /mnt/test [dev|uring]

use glowfs_mount::{FuseTransport, MountConfig, ram};
use glowfs_rt::{real, signal::Termination, sync::select};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mountpoint = std::env::args().nth(1).ok_or("name a mount point")?.into();
    let fuse_transport = match std::env::args().nth(2).as_deref() {
        None => FuseTransport::Auto,
        Some("dev") => FuseTransport::Dev,
        Some("uring") => FuseTransport::Uring,
        Some(other) => return Err(format!("`{other}` is no transport").into()),
    };
    let config = MountConfig { mountpoint, fuse_transport, ..MountConfig::default() };
    let termination = Termination::new()?;
    real::run_with(config.runtime(), move |rt| async move {
        let running = ram::start(&rt, config, ram::RamFs::new(&rt)).await?;
        println!("{}", running.transport());
        let told = select(termination.wait(&rt), running.failed()).await;
        drop(told);
        running.stop().await;
        Ok(())
    })?
}
