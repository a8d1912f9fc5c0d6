//! Which engine a service of a cluster keeps the metadata in: one section of its configuration, of metadata services and of mgmtd alike.
//!
//! Guarantees: an engine that cannot be meant (no address, no member) is refused with the key that says so. Opens what other processes host; the embedded
//! engine is opened by the service that hosts it, for only that one knows whether its directory may be formatted.

use crate::etcd::TXN_OPS_DEFAULT;
use crate::{Engine, Etcd, EtcdConfig, Fdb, FdbConfig, Remote, VERSIONS_KEPT};
use glowfs_net::Connector;
use glowfs_rt::Rt;
use glowfs_types::{ClusterId, Error, Result, Status};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::rc::Rc;

/// Which engine keeps the metadata (`[engine]`, by `kind`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum EngineConfig {
    /// In the process of this metadata service, and served to mgmtd and to other metadata services.
    Embedded {
        /// Its directory. An empty one is formatted only when the service is told to.
        dir: PathBuf,
    },
    /// The embedded engine of another metadata service.
    Remote {
        /// Where that service listens.
        addresses: Vec<String>,
    },
    /// An etcd cluster.
    Etcd {
        /// Its members: `http://HOST:PORT`.
        endpoints: Vec<String>,
        /// The `--max-txn-ops` of its members.
        #[serde(default = "txn_ops")]
        txn_ops_max: u32,
    },
    /// A FoundationDB cluster.
    #[serde(rename = "foundationdb")]
    FoundationDb {
        /// Its cluster file; this process must be able to write to it, too.
        cluster_file: PathBuf,
        /// FoundationDB's client library, if it is not found as `libfdb_c.so`.
        #[serde(default)]
        library: Option<PathBuf>,
    },
}

fn txn_ops() -> u32 {
    TXN_OPS_DEFAULT
}

impl EngineConfig {
    /// Checks what the types cannot say. The error begins with the key.
    pub fn validate(&self) -> std::result::Result<(), String> {
        match self {
            Self::Remote { addresses } if addresses.is_empty() => {
                Err("engine.addresses: none; name the metadata service that hosts the engine"
                    .into())
            }
            Self::Etcd { endpoints, .. } if endpoints.is_empty() => {
                Err("engine.endpoints: none; name the members of etcd".into())
            }
            _ => Ok(()),
        }
    }

    /// Opens an engine that other processes host. `name`: no other process that runs may have it in etcd or FoundationDB. `connector` is asked for only
    /// where services of the cluster are talked to. Refused is the embedded engine.
    pub fn open(
        &self,
        rt: &Rt,
        cluster: ClusterId,
        name: &str,
        connector: impl FnOnce() -> Rc<Connector>,
    ) -> Result<Rc<dyn Engine>> {
        match self {
            Self::Embedded { dir } => Err(Error::new(
                Status::InvalidArgument,
                format!(
                    "the engine in {} is opened by the metadata service that hosts it; others have kind = \"remote\" and that service's addresses",
                    dir.display()
                ),
            )),
            Self::Remote { addresses } => {
                Ok(Rc::new(Remote::new(rt, connector(), addresses.clone())))
            }
            Self::Etcd { endpoints, txn_ops_max } => {
                let etcd = EtcdConfig {
                    endpoints: endpoints.clone(),
                    cluster,
                    name: name.to_owned(),
                    txn_ops_max: *txn_ops_max,
                    versions_kept: VERSIONS_KEPT,
                };
                Ok(Rc::new(Etcd::new(rt, &etcd).map_err(|e| e.context("engine.endpoints"))?))
            }
            Self::FoundationDb { cluster_file, library } => {
                let fdb = FdbConfig {
                    cluster_file: cluster_file.clone(),
                    library: library.clone(),
                    cluster,
                    name: name.to_owned(),
                };
                Ok(Rc::new(Fdb::open(rt, &fdb).map_err(|e| e.context("engine"))?))
            }
        }
    }
}
