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
        /// Node id, and which of its disks, counted from 0 (`df` shows both)
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
        /// Where to write it; the file must not be there
        file: PathBuf,
        /// The configuration of a metadata service: it names the cluster and the engine
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Verify such a file, put its content into an engine, read it back
    ///
    /// Stop the services first.
    Load {
        /// What `meta dump` has written
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
        /// Really remove it; without this --replace is refused
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
        /// Chain id, as `list-chains` shows it
        chain: u64,
    },
    // Change.
    /// Change settings of running services, of a role or of one node
    SetConfig {
        /// storage or mgmtd; meta has nothing to set
        #[arg(value_parser = role)]
        role: Role,
        /// KEY=VALUE; KEY= takes it away. storage: sync_chunks, sync_targets, sync_bytes_per_s, sync_share_percent, sync_floor_percent,
        /// scrub_bytes_per_s; mgmtd: replace_after_ms, balance (true or false). What each does: docs/configuration.md#live-settings
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
        /// Only this node, by its id
        #[arg(long, value_name = "NODE")]
        node: Option<u64>,
    },
    /// Set the layout of what is made in a directory from now on
    SetLayout(NewLayout),
    /// Lay chains over the registered disks, as a new table
    CreateTable(NewTable),
    /// Lay more chains of a table, over the disks that carry least
    ///
    /// Files that are made from now on use them. Chains are never taken away.
    GrowTable(GrownTable),
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
        /// Node id, as `list-nodes` shows it
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
        /// Chain id, as `list-chains` shows it
        chain: u64,
        /// Target id of the member that is to serve; `explain-force` says what each would lose
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
    /// found but some inodes were not decided: they kept changing, or have very many names.
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
    UserAdd(NewUser),
    /// Change of a user what is named, and nothing else
    UserChange(ChangedUser),
    /// Remove a user; the files stay
    ///
    /// His token is void, and what he has open ends. Without --yes it only says who it would be.
    UserRemove {
        /// Numeric uid, as `user-list` shows it
        #[arg(value_parser = uids())]
        uid: u64,
        /// Do it; without it only say what would be done
        #[arg(long)]
        yes: bool,
    },
    /// List users
    UserList,
}

/// Of `set-layout`.
#[derive(Args, Debug)]
pub struct NewLayout {
    /// Path inside the file system
    pub path: String,
    /// Bytes in a chunk: a power of two, 64K to 64M
    #[arg(long, value_name = "BYTES")]
    pub chunk_size: Option<String>,
    /// Chains that a file is striped over
    #[arg(long, value_name = "CHAINS")]
    pub stripe: Option<u32>,
    /// Id of the chain table, as `list-chain-tables` shows it
    #[arg(long)]
    pub table: Option<u64>,
    /// Bytes up to which a file is kept with the metadata: at most 16K, 0 for none. All metadata services must know of this
    #[arg(long, value_name = "BYTES")]
    pub inline_bytes: Option<String>,
    /// Takes what the parent has
    #[arg(long, conflicts_with_all = ["chunk_size", "stripe", "table", "inline_bytes"])]
    pub inherit: bool,
}

/// Of `create-table`.
#[derive(Args, Debug)]
pub struct NewTable {
    /// Id of the new table
    #[arg(long, default_value_t = 1)]
    pub table: u64,
    /// Replicas of each chain: nodes that hold the same data
    #[arg(long)]
    pub replicas: u32,
    /// Chains to make: four a disk is a good number
    #[arg(long)]
    pub chains: u32,
    /// Only explain what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// Of `grow-table`.
#[derive(Args, Debug)]
pub struct GrownTable {
    /// Id of the table, as `list-chain-tables` shows it
    #[arg(long, default_value_t = 1)]
    pub table: u64,
    /// How many chains the table shall have in all
    #[arg(long)]
    pub chains: u32,
    /// Only explain what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// Of `user-add`.
#[derive(Args, Debug)]
pub struct NewUser {
    /// Numeric uid, that of the user on the machines that mount
    #[arg(value_parser = uids())]
    pub uid: u64,
    /// Name, for people only
    pub name: String,
    /// Groups, the primary one first
    #[arg(long, value_parser = crate::users::groups, default_value = "", value_name = "GID,...")]
    pub groups: Groups,
    /// May act as any user
    #[arg(long)]
    pub root: bool,
    /// May administer the cluster
    #[arg(long)]
    pub admin: bool,
}

/// Of `user-change`.
#[derive(Args, Debug)]
pub struct ChangedUser {
    /// Numeric uid, as `user-list` shows it
    #[arg(value_parser = uids())]
    pub uid: u64,
    /// Name, for people only
    #[arg(long)]
    pub name: Option<String>,
    /// Groups, all of them, the primary one first; '' for none
    #[arg(long, value_parser = crate::users::groups, value_name = "GID,...")]
    pub groups: Option<Groups>,
    /// May act as any user: true or false
    #[arg(long, value_name = "BOOL")]
    pub root: Option<bool>,
    /// May administer the cluster: true or false
    #[arg(long, value_name = "BOOL")]
    pub admin: Option<bool>,
    /// Print a new token, once; the old one is void at once, and needs --yes: without it only say who uses it
    #[arg(long)]
    pub new_token: bool,
    /// Make the new token, and void the old one
    #[arg(long, requires = "new_token")]
    pub yes: bool,
}

fn role(text: &str) -> Result<Role, String> {
    [Role::Mgmtd, Role::Meta, Role::Storage]
        .into_iter()
        .find(|r| r.name() == text)
        .ok_or_else(|| "it is storage or mgmtd; meta has nothing to set".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> clap::Command {
        AdminArgs::augment_args(clap::Command::new("admin"))
    }

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn what_is_no_uid_is_refused_by_every_command_on_users() {
        for (words, good) in [
            (&["admin", "user-add", "4294967295", "nobody"][..], false),
            (&["admin", "user-change", "4294967295", "--admin", "true"], false),
            (&["admin", "user-remove", "4294967295"], false),
            (&["admin", "user-remove", "4294967294"], true),
        ] {
            assert_eq!(command().try_get_matches_from(words).is_ok(), good, "{words:?}");
        }
    }
}
