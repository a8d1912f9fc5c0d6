//! The transactional key-value interface that all metadata of GlowFS stands on, and its engines.
//!
//! - [`Engine`]: what an engine can do (multi-version reads, optimistic commit). [`Transaction`] and
//!   [`run_transaction`]: how everybody uses it.
//! - [`Memory`]: volatile, for tests. [`Embedded`]: durable, in one process. [`Remote`]: an engine that another
//!   process hosts; [`serve`] is that other side. [`Etcd`]: an etcd cluster. [`Fdb`]: a FoundationDB cluster.
//! - [`conformance`]: the suite that every engine passes.
//! - [`dump`]: the whole content of an engine as a file, and back. [`kept`]: what there is in one, kind by kind.
//!
//! Guarantees: transactions are serializable; a commit that was answered survives SIGKILL of the host process, and with
//! `durable` a loss of power. Must never: answer before that, or hide a byte of the log that it could not read.

mod config;
pub mod conformance;
pub mod dump;
pub mod embedded;
mod engine;
pub mod etcd;
pub mod fdb;
pub mod kept;
mod memory;
mod mvcc;
mod remote;
mod run;
pub mod serve;
mod stored_key;
mod transaction;

pub use config::EngineConfig;
pub use embedded::{Embedded, EmbeddedConfig};
pub use engine::{
    Engine, KEPT_FOR, Key, RangePage, STAMP_BYTES, Value, Version, key_after, prefix_end,
};
pub use etcd::{Etcd, EtcdConfig, VERSIONS_KEPT};
pub use fdb::{Fdb, FdbConfig};
pub use memory::Memory;
pub use remote::Remote;
pub use run::{
    RunOptions, Sent, is_tried_again, never_happens, run_transaction, run_transaction_telling,
    run_transaction_with,
};
pub use transaction::{Savepoint, Transaction};
