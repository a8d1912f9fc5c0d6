//! `glowfs admin`.

use anyhow::{Context, Result, bail};
use glowfs_admin::AdminArgs;
use glowfs_net::read_token_file;
use std::path::PathBuf;

/// Finds the cluster and runs the command.
pub fn admin(args: AdminArgs) -> Result<()> {
    if glowfs_admin::offline(&args) {
        return glowfs_rt::real::run(
            |rt| async move { glowfs_admin::run_offline(&rt, &args).await },
        );
    }
    let (mgmtd, token_file) = which_cluster(&args)?;
    let token = read_token_file(&token_file)?;
    for address in &mgmtd {
        // A name is looked up when it is dialled: one that is not known must not keep the others from being asked.
        if let Err(e @ glowfs_rt::BadAddress::Form(_)) = address.parse::<glowfs_rt::Address>() {
            return Err(e).context("in --mgmtd, or GLOWFS_MGMTD");
        }
    }
    glowfs_rt::real::run(|rt| async move { glowfs_admin::run(&rt, &args, mgmtd, token).await })
}

/// The addresses and the token file that the command line names, or else the environment.
fn which_cluster(args: &AdminArgs) -> Result<(Vec<String>, PathBuf)> {
    if let Some(dir) = &args.dev {
        let status = glowfs_dev::status::status(dir)?;
        return Ok((status.mgmtd, status.token_file));
    }
    let mut mgmtd = args.mgmtd.clone();
    if mgmtd.is_empty() {
        let named = std::env::var("GLOWFS_MGMTD").unwrap_or_default();
        mgmtd.extend(named.split(',').map(str::trim).filter(|a| !a.is_empty()).map(String::from));
    }
    let token_file = args.token_file.clone().or_else(|| {
        std::env::var_os("GLOWFS_TOKEN_FILE").filter(|f| !f.is_empty()).map(PathBuf::from)
    });
    match token_file {
        _ if mgmtd.is_empty() => bail!(
            "which cluster? --mgmtd HOST:PORT --token-file FILE (or the variables GLOWFS_MGMTD and GLOWFS_TOKEN_FILE), or --dev DIR"
        ),
        None => bail!("whose token? --token-file FILE, or the variable GLOWFS_TOKEN_FILE"),
        Some(token_file) => Ok((mgmtd, token_file)),
    }
}
