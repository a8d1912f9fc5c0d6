//! The rules of the file system over a key-value transaction.
//!
//! Every operation here reads and writes through one [`glowfs_kv::Transaction`] and nothing else: it is atomic and serializable
//! because the transaction is, and it may run several times before one commit counts. The clock, fresh ids and the placement
//! of new files come in through [`Env`].
//!
//! Guarantees: after any commit the tree is a tree (no cycle, no orphan without a record, no dentry without an inode),
//! link counts and usage are exact, and every data id that nobody can reach stands in the garbage queue.
//! Must never: do I/O of its own, or remember anything between two calls.

/// For what tests of this crate share with those beside it.
#[cfg(test)]
extern crate self as glowfs_namespace;

mod access;
mod acl;
mod alloc;
mod append;
mod attr;
mod context;
mod cuts;
mod emptying;
mod flags;
pub mod fsck;
mod gc;
mod inline;
pub mod kept;
mod keys;
mod layouts;
mod link;
mod list;
mod locking;
mod locks;
mod lost_found;
mod make;
mod name;
mod open;
mod privileges;
mod record;
mod removed;
mod rename;
mod reopen;
mod request;
mod trash;
mod tree;
mod xattr;

pub use alloc::{
    IdRange, RootSpec, bootstrap, next_data_id, skip_ids, skipped_data_ids, take_data_ids, take_ids,
};
pub use append::{AppendOutcome, append};
pub use attr::{getattr, lookup, readlink, setattr, statfs};
pub use context::{Context, Cut, Env, Usage, is_in_the_way};
pub use cuts::{cuts_begun, finish_cut, forget_cut, note_cut, pending_cut};
pub use emptying::{
    Emptied, LeavingPage, TreeEntry, empty, finish_leaving, forget_trees, leaving, leaving_entries,
};
pub use gc::{
    Garbage, GarbagePage, InodesPage, SessionEntry, SessionsPage, clients_with_sessions,
    data_of_garbage, data_of_inodes, drop_garbage, end_session, garbage, newest_garbage,
    sessions_of, sweep_requests, writers, written_by,
};
pub use inline::{Spill, abandon_spill, finish_spill, inline_read, inline_write, spill, spilling};
pub use keys::FORMAT;
pub use keys::trash_key;
pub use layouts::{LAYOUT_XATTR, layout_changed, layout_text};
pub use link::{link, unlink};
pub use list::readdir;
pub use locking::{Locked, LocksEnded, clients_with_locks, end_locks, lock, lock_test};
pub use locks::{AppendRight, Held, LockTable};
pub use make::{Made, make};
pub use open::{Opened, close, open, renew, sync, touch};
pub use record::Doom;
pub use removed::{Removed, RemovedPage, doom, erase_removed, removed, undoom};
pub use rename::{Renamed, rename};
pub use reopen::{Proven, reopen};
pub use request::{Once, refuse};
pub use trash::{trash, trash_expired, trash_purge, trash_restore};
pub use tree::{TreeCheck, TreePlace, TreeRemoved, check_tree, remove_tree, tree_place, trees};
pub use xattr::{getxattr, listxattr, removexattr, setxattr};
