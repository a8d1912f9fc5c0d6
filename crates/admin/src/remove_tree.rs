//! `glowfs remove-tree`: asks a mount to remove directories with all that is in them, at once.

use crate::output::{plain, print};
use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use rustix::io::Errno;
use std::fs::symlink_metadata;
use std::path::{Path, PathBuf};

/// The attribute of the mount: it has the directory's own name, and is set to it.
const ATTRIBUTE: &str = "glowfs.remove_tree";
/// The longest name in bytes.
const NAME_MAX: usize = 255;

/// Removes directories with all that is in them: their names are gone at once, their space comes back in the background
#[derive(Args, Debug)]
pub struct RemoveTreeArgs {
    /// Directories on a mount
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Really; without it only what would be done is said
    #[arg(long)]
    yes: bool,
}

/// Removes them, or says what would be removed.
pub fn remove_tree(args: &RemoveTreeArgs) -> Result<()> {
    let mut failed = 0;
    for path in &args.paths {
        let shown = plain(&path.to_string_lossy());
        match one(path, args.yes) {
            Ok(()) if args.yes => print(&format!("{shown}: removed\n"))?,
            Ok(()) => print(&format!(
                "{shown}: would be removed with all that is in it; --yes does it\n"
            ))?,
            Err(e) => {
                failed += 1;
                print(&format!("{shown}: {e:#}\n"))?;
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} failed", args.paths.len());
    }
    Ok(())
}

fn one(path: &Path, yes: bool) -> Result<()> {
    if !symlink_metadata(path)?.is_dir() {
        bail!("is not a directory; rm(1) removes it");
    }
    // The mount says the directory's own name, if all that is in it may be removed.
    let mut name = [0; NAME_MAX];
    let len = match lgetxattr(path, ATTRIBUTE, &mut name[..]) {
        Err(Errno::OPNOTSUPP | Errno::NODATA) => {
            bail!("is not on a mount of GlowFS, or on one of an older release")
        }
        other => other.context("may not be removed; the metadata service's answer")?,
    };
    if yes {
        lsetxattr(path, ATTRIBUTE, &name[..len], XattrFlags::empty())?;
    }
    Ok(())
}
