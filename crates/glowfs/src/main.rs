//! The one binary of GlowFS: every role is a sub-command. Only command line, configuration files, logging and going into the background live here.

mod admin;
mod closed_output;
mod config;
mod dev;
mod mount;
mod service;

use clap::{Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

#[global_allocator]
static HEAP: glowfs_rt::Heap = glowfs_rt::Heap;

/// GlowFS: a distributed file system for AI training, inference and analytics.
#[derive(Parser, Debug)]
#[command(name = "glowfs", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand, Debug)]
enum Role {
    /// Cluster manager: routing info, leases, configuration, tokens
    #[command(after_help = service::READ_ON)]
    Mgmtd(service::ServiceArgs),
    /// Metadata service
    #[command(after_help = service::READ_ON)]
    Meta(service::MetaArgs),
    /// Storage service
    #[command(after_help = service::READ_ON)]
    Storage(service::ServiceArgs),
    /// Mount the file system (in the foreground until it is unmounted or ended, or with --background)
    Mount(mount::MountArgs),
    /// Look at a cluster and operate it
    Admin(glowfs_admin::AdminArgs),
    /// Remove directories with all that is in them: their names at once, the rest in the background
    RemoveTree(glowfs_admin::RemoveTreeArgs),
    /// A whole cluster on this machine, for trying and developing
    Dev(dev::DevArgs),
    /// Measure each layer, and all of them with fio; the report is one HTML page
    Bench(glowfs_bench::BenchArgs),
}

fn main() -> ExitCode {
    closed_output::ends_quietly();
    let mut words = std::env::args_os();
    if mount::mount8::is_name(words.next().as_deref()) {
        return mount::mount8::run(words);
    }
    let result = match Cli::parse().role {
        Role::Mgmtd(args) => service::mgmtd(&args),
        Role::Meta(args) => service::meta(&args),
        Role::Storage(args) => service::storage(&args),
        Role::Mount(args) => mount::mount(&args),
        Role::Admin(args) => admin::admin(args),
        Role::RemoveTree(args) => glowfs_admin::remove_tree(&args),
        Role::Dev(args) => dev::dev(&args),
        Role::Bench(args) => glowfs_bench::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // In one piece: where it is a message of the system's log, pieces would be several.
            let _ = std::io::stderr().write_all(format!("glowfs: {e:#}\n").as_bytes());
            ExitCode::from(glowfs_admin::exit_code(&e))
        }
    }
}
