//! The command line of `glowfs admin`.

use crate::users::Groups;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use glowfs_types::routing::Role;
use glowfs_types::wire::trash::TrashId;
use glowfs_types::{NodeId, StoreId};
use std::path::PathBuf;

/// What can be a uid: 32 bits, and all ones say «none».
fn uids() -> RangedU64ValueParser {
    RangedU64ValueParser::new().range(..u64::from(u32::MAX))
}

/// Look at a cluster and operate it.
#[derive(Args, Debug)]
pub struct AdminArgs {
    /// Address of mgmtd or of any other service of the cluster (HOST:PORT or unix:///PATH); may be repeated. Without it: those in
    /// $GLOWFS_MGMTD, with commas between them
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub mgmtd: Vec<String>,
    /// File with the token of a user of the cluster. Without it: the one in $GLOWFS_TOKEN_FILE
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// A dev cluster's directory, instead of --mgmtd and --token-file
    #[arg(long, global = true, value_name = "DIR", conflicts_with_all = ["mgmtd", "token_file"])]
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
    /// Take up a new, empty disk; the lost replicas are made anew
    ///
    /// Without --yes it only says which directory of which node would be taken up and formatted.
    Replace {
        /// NODE:DISK
        #[arg(value_parser = crate::operate::place, value_name = "NODE:DISK")]
        place: (NodeId, Option<u32>),
        /// Only give up this one, which had that number before and is not there any more
        #[arg(long, value_name = "STORE")]
        store: Option<StoreId>,
        /// Only explain what would be done
        #[arg(long)]
        dry_run: bool,
        /// Return when every lost replica is there again
        #[arg(long, requires = "yes")]
        wait: bool,
        /// Do it; without it only say what would be done
        #[arg(long, conflicts_with = "dry_run")]
        yes: bool,
    },
}

/// What to do with the trash.
#[derive(Subcommand, Debug)]
pub enum TrashCommand {
    /// List what is in it
    List {
        /// Only what was below this path
        #[arg(long, value_name = "PATH")]
        below: Option<String>,
    },
    /// Put files back where they were
    ///
    /// Directories that are missing are made anew.
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
    /// Erase files for good
    ///
    /// Without --yes it only says which.
    Purge {
        /// Ids, as `trash list` shows them
        ids: Vec<TrashId>,
        /// All that were below this path
        #[arg(long, value_name = "PATH")]
        below: Option<String>,
        /// Everything
        #[arg(long, conflicts_with_all = ["ids", "below"])]
        all: bool,
        /// Do it; without it only say what would be done
        #[arg(long)]
        yes: bool,
    },
}

/// What to do with all metadata, apart from a running cluster.
#[derive(Subcommand, Debug)]
pub enum MetaCommand {
    /// Write everything in an engine, as of one moment, to a file
    ///
    /// Of an embedded engine that is in use with --online; of etcd in any case, of FoundationDB only while nothing is changed.
    Dump {
        /// An embedded engine is read through the metadata service that hosts it and goes on serving, not from its directory
        #[arg(long)]
        online: bool,
        /// Also if no cluster has used the engine yet
        #[arg(long)]
        without_cluster: bool,
        /// The file; it must not be there
        file: PathBuf,
        /// The configuration of a metadata service: it names the cluster and the engine
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Verify such a file, put its content into an engine, read it back
    ///
    /// Stop the services first.
    Load {
        /// The file
        file: PathBuf,
        /// The configuration of a metadata service: it names the cluster and the engine
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Only verify the file
        #[arg(long)]
        dry_run: bool,
        /// Also if it is of an engine that no cluster had used
        #[arg(long)]
        without_cluster: bool,
        /// Remove what is in the engine first; needs --yes
        #[arg(long)]
        replace: bool,
        /// Do it
        #[arg(long, requires = "replace")]
        yes: bool,
    },
    /// Skip the ids that were given out since a copy was made
    ///
    /// New files and targets get ids that none had since then. Once, before the first start on an older copy of an engine's directory.
    SkipIds {
        /// The configuration of a metadata service: it names the cluster and the engine
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
}

/// What to do, in the order of the help: summaries are of at most 70 characters, in the imperative.
#[derive(Subcommand, Debug)]
pub enum Command {
    // Look.
    /// Say whether all is well: every service, and the chains
    ///
    /// Every service is asked directly. Exits with 1 if anything is not well.
    Status,
    /// List nodes: id, role, status, host, tags, heartbeat, release
    ListNodes,
    /// List chains: version, members and their states
    ListChains,
    /// List chain tables and their versions
    ListChainTables,
    /// List targets: chain, node, disk, states, bytes
    ListTargets,
    /// List clients: mounts and others that have a session
    ListClients,
    /// List targets that are brought up to date: how far, how long still
    ListResyncs,
    /// Show space: of the file system and of each disk
    Df,
    /// List blocks that no replica has any more, and their files
    Damaged {
        /// Do not walk the directories for the paths
        #[arg(long)]
        no_paths: bool,
    },
    /// Show, or search for, chunks that no file owns
    ///
    /// They are left by a loss of power, or by a late write. Without an option: what the last search has found and reclaimed.
    Orphans {
        /// Search now, and reclaim nothing
        #[arg(long)]
        dry_run: bool,
        /// Search now, and reclaim what an earlier search has found as well
        #[arg(long, conflicts_with = "dry_run")]
        reclaim: bool,
    },
    /// List removed trees that are being emptied (`glowfs remove-tree`)
    Trees,
    /// Show the settings that running services follow
    GetConfig,
    /// Show attributes, layout and chains of a path
    Stat {
        /// Path inside the file system
        path: String,
    },
    /// List the names in a directory
    Ls {
        /// Path inside the file system
        #[arg(default_value = "/")]
        path: String,
    },
    /// Write the contents of a file to standard output
    Cat {
        /// Path inside the file system
        path: String,
    },
    /// Show the layout of a file, or of what is made in a directory
    ShowLayout {
        /// Path inside the file system
        path: String,
    },
    /// Explain why a chain waits, and what each choice would lose
    ExplainForce {
        /// The chain
        chain: u64,
    },
    // Change.
    /// Change settings of running services, of a role or of one node
    SetConfig {
        /// storage or mgmtd (meta has nothing to set yet)
        #[arg(value_parser = role)]
        role: Role,
        /// KEY=VALUE; KEY= takes it away. storage: sync_chunks, sync_targets, sync_bytes_per_s, sync_share_percent, sync_floor_percent,
        /// scrub_bytes_per_s; mgmtd: replace_after_ms, balance
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
        /// Only this node
        #[arg(long)]
        node: Option<u64>,
    },
    /// Set the layout of what is made in a directory from now on
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
    /// Lay chains over the registered disks, as a new table
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
    /// Lay more chains of a table, over the disks that carry least
    ///
    /// Files that are made from now on use them. Chains are never taken away.
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
    /// Empty a disk or a node, so that it can be taken away
    ///
    /// Its data moves to other disks. Repeated, it shows what is left.
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
    /// Forget a node that is gone for good and has no data
    ///
    /// Without --yes it only explains.
    RemoveNode {
        /// The node
        node: u64,
        /// Do it; without it only say what would be done
        #[arg(long)]
        yes: bool,
    },
    /// Take a new disk into the place of one that failed
    Disk {
        /// What to do with a disk
        #[command(subcommand)]
        command: DiskCommand,
    },
    /// Make a target serve a chain that nobody serves, whatever is lost
    ///
    /// Without --yes it only explains.
    Force {
        /// The chain
        chain: u64,
        /// Who shall serve
        #[arg(long)]
        target: u64,
        /// Do it; without it only say what would be done
        #[arg(long)]
        yes: bool,
    },
    // Check and mend.
    /// Show, or start, the verification of what is at rest
    ///
    /// Of every target: progress, the last pass, what was found and repaired.
    Scrub {
        /// Start a pass over every target now
        #[arg(long)]
        now: bool,
    },
    /// Check the whole metadata while it is in use, and mend it
    ///
    /// Without --repair it changes nothing. Exits with 1 if something is wrong or it could not be checked, with 3 if nothing wrong was
    /// found but some inodes kept changing and were not decided.
    Fsck {
        /// Mend what is found, after a question; what has lost its name goes to /lost+found
        #[arg(long)]
        repair: bool,
        /// No question
        #[arg(long, requires = "repair")]
        yes: bool,
    },
    /// List, restore or erase removed files
    ///
    /// Of directories with a trash (`setfattr -n glowfs.trash -v 7d DIR`).
    Trash {
        /// What to do with the trash
        #[command(subcommand)]
        command: TrashCommand,
    },
    /// Write all metadata to a file, and read it back
    ///
    /// How it moves between engines. Needs no --mgmtd.
    Meta {
        /// What to do with the metadata
        #[command(subcommand)]
        command: MetaCommand,
    },
    // Users.
    /// Add a user, and print the token, once
    ///
    /// Who is there already is refused: `user-change`.
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
    /// Change of a user what is named, and nothing else
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
        /// Print a new token, once; the old one is void at once, and needs --yes: without it only say who uses it
        #[arg(long)]
        new_token: bool,
        /// Do it
        #[arg(long, requires = "new_token")]
        yes: bool,
    },
    /// Remove a user; the files stay
    ///
    /// His token is void, and what he has open ends. Without --yes it only says who it would be.
    UserRemove {
        /// uid
        uid: u64,
        /// Do it; without it only say what would be done
        #[arg(long)]
        yes: bool,
    },
    /// List users
    UserList,
}

fn role(text: &str) -> Result<Role, String> {
    [Role::Mgmtd, Role::Meta, Role::Storage]
        .into_iter()
        .find(|r| r.name() == text)
        .ok_or_else(|| "it is one of mgmtd, meta, storage".into())
}
