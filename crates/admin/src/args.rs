//! The command line of `glowfs admin`.

use crate::users::Groups;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use glowfs_types::NodeId;
use glowfs_types::routing::Role;
use glowfs_types::wire::trash::TrashId;
use std::path::PathBuf;

/// What can be a uid: 32 bits, and all ones say «none».
fn uids() -> RangedU64ValueParser {
    RangedU64ValueParser::new().range(..u64::from(u32::MAX))
}

/// Look at a cluster and operate it.
#[derive(Args, Debug)]
pub struct AdminArgs {
    /// Address of mgmtd or of any other service of the cluster (HOST:PORT or unix:///PATH); may be repeated
    #[arg(long, value_name = "HOST:PORT")]
    pub mgmtd: Vec<String>,
    /// File with the token of a user of the cluster
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// A dev cluster's directory, instead of --mgmtd and --token-file
    #[arg(long, value_name = "DIR", conflicts_with_all = ["mgmtd", "token_file"])]
    pub dev: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// How long to wait for the cluster, in seconds
    #[arg(long, global = true, default_value_t = 10, value_name = "SECONDS")]
    pub timeout: u64,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do with a disk.
#[derive(Subcommand, Debug)]
pub enum DiskCommand {
    /// A new, empty disk is in the place of one that failed: its node takes it up, and the lost replicas are made anew
    Replace {
        /// NODE:DISK
        #[arg(value_parser = crate::operate::place, value_name = "NODE:DISK")]
        place: (NodeId, Option<u32>),
        /// Only explain what would be done
        #[arg(long)]
        dry_run: bool,
        /// Return when every lost replica is there again
        #[arg(long)]
        wait: bool,
    },
}

/// What to do with the trash.
#[derive(Subcommand, Debug)]
pub enum TrashCommand {
    /// What is in it
    List {
        /// Only what was below this path
        #[arg(long, value_name = "PATH")]
        below: Option<String>,
    },
    /// Puts files back where they were; directories that are missing are made anew
    Restore {
        /// Ids, as `trash list` shows them
        ids: Vec<TrashId>,
        /// All that were below this path
        #[arg(long, value_name = "PATH")]
        below: Option<String>,
        /// One file: to this path instead
        #[arg(long, value_name = "PATH")]
        to: Option<String>,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Removes files for good; without --yes it only says which
    Purge {
        /// Ids, as `trash list` shows them
        ids: Vec<TrashId>,
        /// All that were below this path
        #[arg(long, value_name = "PATH")]
        below: Option<String>,
        /// Everything
        #[arg(long, conflicts_with_all = ["ids", "below"])]
        all: bool,
        /// Really
        #[arg(long)]
        yes: bool,
    },
}

/// What to do with all metadata, apart from a running cluster.
#[derive(Subcommand, Debug)]
pub enum MetaCommand {
    /// Writes everything in an engine, as of one moment, to a file. Of an embedded engine that is in use with --online; of etcd in any case, of FoundationDB
    /// only while nothing is changed
    Dump {
        /// An embedded engine is read through the metadata service that hosts it and goes on serving, not from its directory
        #[arg(long)]
        online: bool,
        /// The file; it must not be there
        file: PathBuf,
        /// The configuration of a metadata service: it names the cluster and the engine
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Verifies such a file, puts its content into an engine and reads it back. Stop the services first
    Load {
        /// The file
        file: PathBuf,
        /// The configuration of a metadata service: it names the cluster and the engine
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Only verify the file
        #[arg(long)]
        dry_run: bool,
        /// Remove what is in the engine first; needs --yes
        #[arg(long)]
        replace: bool,
        /// Really
        #[arg(long, requires = "replace")]
        yes: bool,
    },
    /// Has new files get ids that no file had since the metadata was copied: once, before the first start on an older copy of an engine's directory
    SkipIds {
        /// The configuration of a metadata service: it names the cluster and the engine
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// All metadata as a file, and back: how it moves between engines. Needs no --mgmtd
    Meta {
        /// What to do with the metadata
        #[command(subcommand)]
        command: MetaCommand,
    },
    /// Nodes: id, role, status, host, pid, tags, last heartbeat, config version, release
    ListNodes,
    /// Chains: version, members and their states
    ListChains,
    /// Chain tables and their versions
    ListChainTables,
    /// Targets: chain, node, disk, states, bytes
    ListTargets,
    /// Scrub (verification of what is at rest) of every target: progress, last pass, what was found and repaired
    Scrub {
        /// Start a pass over every target now
        #[arg(long)]
        now: bool,
    },
    /// Blocks that no replica has any more, and the files that they are of
    Damaged {
        /// Do not walk the directories for the paths
        #[arg(long)]
        no_paths: bool,
    },
    /// Chunks that no file owns (left by a loss of power, or by a late write): what the last search has found and reclaimed
    Orphans {
        /// Search now, and reclaim nothing
        #[arg(long)]
        dry_run: bool,
        /// Search now, and reclaim what an earlier search has found as well
        #[arg(long, conflicts_with = "dry_run")]
        reclaim: bool,
    },
    /// Checks the whole metadata while it is in use. Without --repair it changes nothing. Exits with 1 if something is wrong or it could not be checked,
    /// with 3 if nothing wrong was found but some inodes kept changing and were not decided
    Fsck {
        /// Mend what is found, after a question; what has lost its name goes to /lost+found
        #[arg(long)]
        repair: bool,
        /// No question
        #[arg(long, requires = "repair")]
        yes: bool,
    },
    /// Clients: mounts and others that have a session
    ListClients,
    /// Targets being brought up to date: how far, how long still
    ListResyncs,
    /// The configuration that running services follow
    GetConfig,
    /// Changes settings of running services: of a role, or with --node of one node only
    SetConfig {
        /// storage or mgmtd (meta has nothing to set yet)
        #[arg(value_parser = role)]
        role: Role,
        /// KEY=VALUE; KEY= takes it away. storage: sync_chunks, sync_bytes_per_s, sync_share_percent, scrub_bytes_per_s; mgmtd:
        /// replace_after_ms, balance
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
        /// Only this node
        #[arg(long)]
        node: Option<u64>,
    },
    /// Attributes, layout and chains of a path
    Stat {
        /// Path inside the file system
        path: String,
    },
    /// Names in a directory
    Ls {
        /// Path inside the file system
        #[arg(default_value = "/")]
        path: String,
    },
    /// Contents of a file, to standard output
    Cat {
        /// Path inside the file system
        path: String,
    },
    /// The layout of a file, or what is made in a directory will get
    ShowLayout {
        /// Path inside the file system
        path: String,
    },
    /// Sets the layout that what is made in a directory from now on gets
    SetLayout {
        /// Path inside the file system
        path: String,
        /// Bytes in a chunk: a power of two, 64K to 64M
        #[arg(long, value_name = "BYTES")]
        chunk_size: Option<String>,
        /// Chains that a file is striped over
        #[arg(long)]
        stripe: Option<u32>,
        /// Chain table
        #[arg(long)]
        table: Option<u64>,
        /// Bytes up to which a file is kept with the metadata: at most 16K, 0 for none. All metadata services must know of this
        #[arg(long, value_name = "BYTES")]
        inline_bytes: Option<String>,
        /// Takes what the parent has
        #[arg(long, conflicts_with_all = ["chunk_size", "stripe", "table", "inline_bytes"])]
        inherit: bool,
    },
    /// Files that were removed from directories with a trash (`setfattr -n glowfs.trash -v 7d DIR`)
    Trash {
        /// What to do with the trash
        #[command(subcommand)]
        command: TrashCommand,
    },
    /// Removed trees that are being emptied (`glowfs remove-tree`), and how far they are
    Trees,
    /// Space: the file system and each disk
    Df,
    /// Whether all is well: every service, asked directly, and the chains. Exits with 1 if anything is not
    Status,
    /// Empties a disk or node: its data moves to other disks, then it can be taken away. Repeated, it shows what is left
    Drain {
        /// NODE, or NODE:DISK for one disk of it
        #[arg(value_parser = crate::operate::place, value_name = "NODE[:DISK]")]
        place: (NodeId, Option<u32>),
        /// Only explain what would be done
        #[arg(long)]
        dry_run: bool,
        /// Return when nothing is left on it
        #[arg(long)]
        wait: bool,
        /// Call the drain off
        #[arg(long, conflicts_with = "wait")]
        cancel: bool,
    },
    /// Forgets a node that is gone for good and has no data; without --yes it only explains
    RemoveNode {
        /// The node
        node: u64,
        /// Really
        #[arg(long)]
        yes: bool,
    },
    /// Disks
    Disk {
        /// What to do with a disk
        #[command(subcommand)]
        command: DiskCommand,
    },
    /// Why a chain is as it is, and which chunks each choice of a server would lose
    ExplainForce {
        /// The chain
        chain: u64,
    },
    /// Makes a target serve a chain that nobody serves, whatever is lost; without --yes it only explains
    Force {
        /// The chain
        chain: u64,
        /// Who shall serve
        #[arg(long)]
        target: u64,
        /// Really
        #[arg(long)]
        yes: bool,
    },
    /// Lays chains over the registered disks and makes a table of them
    CreateTable {
        /// Table id
        #[arg(long, default_value_t = 1)]
        table: u64,
        /// Replicas of each chain
        #[arg(long)]
        replicas: u32,
        /// Chains to make
        #[arg(long)]
        chains: u32,
        /// Only explain what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Lays more chains, over the disks that carry least, for files that are made from now on; chains are never taken away
    GrowTable {
        /// Table id
        #[arg(long, default_value_t = 1)]
        table: u64,
        /// How many chains the table shall have in all
        #[arg(long)]
        chains: u32,
        /// Only explain what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Adds a user; prints the token, once. Who is there already is refused: `user-change`
    UserAdd {
        /// uid
        #[arg(value_parser = uids())]
        uid: u64,
        /// Name
        name: String,
        /// Groups, the primary one first
        #[arg(long, value_parser = crate::users::groups, default_value = "", value_name = "GID,...")]
        groups: Groups,
        /// May act as any user
        #[arg(long)]
        root: bool,
        /// May administer the cluster
        #[arg(long)]
        admin: bool,
    },
    /// Changes of a user what is named, and nothing else
    UserChange {
        /// uid
        #[arg(value_parser = uids())]
        uid: u64,
        /// Name
        #[arg(long)]
        name: Option<String>,
        /// Groups, all of them, the primary one first; '' for none
        #[arg(long, value_parser = crate::users::groups, value_name = "GID,...")]
        groups: Option<Groups>,
        /// May act as any user: true or false
        #[arg(long, value_name = "BOOL")]
        root: Option<bool>,
        /// May administer the cluster: true or false
        #[arg(long, value_name = "BOOL")]
        admin: Option<bool>,
        /// Print a new token, once; the old one is void
        #[arg(long)]
        new_token: bool,
    },
    /// Removes a user: his token is void, and what he has open ends. His files stay. Without --yes it only says who it would be
    UserRemove {
        /// uid
        uid: u64,
        /// Really
        #[arg(long)]
        yes: bool,
    },
    /// Users
    UserList,
}

fn role(text: &str) -> Result<Role, String> {
    [Role::Mgmtd, Role::Meta, Role::Storage]
        .into_iter()
        .find(|r| r.name() == text)
        .ok_or_else(|| "it is one of mgmtd, meta, storage".into())
}
