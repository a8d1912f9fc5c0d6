//! What of a running service can be changed through the cluster's configuration, without a restart.
//!
//! One table of TOML for each role (`glowfs admin set-config`). mgmtd refuses unknown keys and impossible values before
//! it stores them, the services read the same definition. A key that is absent means what the service's own
//! configuration file says.

use crate::{Error, Result, Status};
use serde::{Deserialize, Serialize};

/// Live settings of a storage node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StorageTuning {
    /// Chunks that one resync sends at once, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_chunks: Option<u32>,
    /// Bound on the bytes per second that the resyncs of a node send together; 0 is no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_bytes_per_s: Option<u64>,
    /// Share of its time, in per cent from 1 to 100, that a resync may work at most while clients are being served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_share_percent: Option<u8>,
    /// Bound on the bytes per second and disk that the scrub reads; 0 is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scrub_bytes_per_s: Option<u64>,
    /// How many targets of a node may send a resync at once, at least 1. (Storage nodes of releases that do not know this key take nothing of a table with it.)
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_targets: Option<u32>,
    /// Share of its time, in per cent from 1 to 100, that a resync works at least while clients are being served. (The same of it.)
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_floor_percent: Option<u8>,
}

/// Live settings of mgmtd; of the whole cluster, whichever mgmtd is primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MgmtdTuning {
    /// How long a replica may be away, or wait in vain to be brought up to date, before another one is made elsewhere, in ms; 0: for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_after_ms: Option<u64>,
    /// Whether what is stored moves onto disks that carry less than others for their size. None, or false: it stays where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance: Option<bool>,
}

impl StorageTuning {
    /// All keys.
    pub const KEYS: [&str; 6] = [
        "sync_chunks",
        "sync_bytes_per_s",
        "sync_share_percent",
        "scrub_bytes_per_s",
        "sync_targets",
        "sync_floor_percent",
    ];

    /// Checks what the types cannot say.
    pub fn validate(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::new(Status::InvalidArgument, what));
        if self.sync_chunks == Some(0) {
            return bad("sync_chunks: 0 would stop every resync; the least is 1");
        }
        if self.sync_targets == Some(0) {
            return bad("sync_targets: 0 would stop every resync; the least is 1");
        }
        let out_of_range = |p: Option<u8>| p.is_some_and(|p| !(1..=100).contains(&p));
        if out_of_range(self.sync_share_percent) {
            return bad("sync_share_percent: it is a share from 1 to 100");
        }
        if out_of_range(self.sync_floor_percent) {
            return bad("sync_floor_percent: it is a share from 1 to 100");
        }
        Ok(())
    }
}

impl MgmtdTuning {
    /// All keys.
    pub const KEYS: [&str; 2] = ["replace_after_ms", "balance"];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_values_are_refused() {
        assert!(StorageTuning::default().validate().is_ok());
        assert!(StorageTuning { sync_chunks: Some(0), ..Default::default() }.validate().is_err());
        assert!(StorageTuning { sync_targets: Some(0), ..Default::default() }.validate().is_err());
        for (percent, good) in [(0, false), (1, true), (100, true), (101, false)] {
            let tuning = StorageTuning { sync_share_percent: Some(percent), ..Default::default() };
            assert_eq!(tuning.validate().is_ok(), good, "{percent} %");
            let tuning = StorageTuning { sync_floor_percent: Some(percent), ..Default::default() };
            assert_eq!(tuning.validate().is_ok(), good, "{percent} %");
        }
    }
}
