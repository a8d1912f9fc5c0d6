//! `glowfs admin`.

use crate::config;
use anyhow::{Context, Result};
use glowfs_admin::AdminArgs;

/// Finds the cluster and runs the command.
pub fn admin(args: AdminArgs) -> Result<()> {
    if glowfs_admin::offline(&args) {
        return glowfs_rt::real::run(
            |rt| async move { glowfs_admin::run_offline(&rt, &args).await },
        );
    }
    if args.dev.is_none() && args.mgmtd.is_empty() {
        anyhow::bail!("which cluster? --mgmtd HOST:PORT --token-file FILE, or --dev DIR");
    }
    let (mgmtd, token_file) = match (&args.dev, &args.token_file) {
        (Some(dir), _) => {
            let status = glowfs_dev::status::status(dir)?;
            (status.mgmtd, status.token_file)
        }
        (None, Some(file)) => (args.mgmtd.clone(), file.clone()),
        (None, None) => anyhow::bail!("--mgmtd needs --token-file as well"),
    };
    let token = config::token(&token_file)?;
    for address in &mgmtd {
        // A name is looked up when it is dialled: one that is not known must not keep the others from being asked.
        if let Err(e @ glowfs_rt::BadAddress::Form(_)) = address.parse::<glowfs_rt::Address>() {
            return Err(e).context("in --mgmtd");
        }
    }
    glowfs_rt::real::run(|rt| async move { glowfs_admin::run(&rt, &args, mgmtd, token).await })
}
