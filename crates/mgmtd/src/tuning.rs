//! The configuration that running services follow: checked before it is stored, and put together for each node.

use crate::state::State;
use glowfs_types::routing::Role;
use glowfs_types::tuning::{MgmtdTuning, StorageTuning};
use glowfs_types::wire::mgmtd::{ClusterConfig, ConfigItem};
use glowfs_types::{ConfigVersion, Error, NodeId, Result, Status};

/// The longest configuration of a role or override of a node, in bytes.
const CONFIG_BYTES_MAX: usize = 64 << 10;

/// Refuses what the services of a role would not understand.
pub fn check_config(role: Role, text: &str) -> Result<()> {
    if text.len() > CONFIG_BYTES_MAX {
        return Err(Error::new(
            Status::TooLarge,
            format!("a configuration is at most {CONFIG_BYTES_MAX} bytes"),
        ));
    }
    let bad = |e: &dyn std::fmt::Display| {
        Error::new(Status::InvalidArgument, format!("configuration of {role}: {e}"))
    };
    match role {
        Role::Storage => toml::from_str::<StorageTuning>(text)
            .map_err(|e| bad(&e))?
            .validate()
            .map_err(|e| bad(&e.message)),
        Role::Mgmtd => toml::from_str::<MgmtdTuning>(text).map(drop).map_err(|e| bad(&e)),
        // No other role has anything to set yet.
        _ => match toml::from_str::<toml::Table>(text).map_err(|e| bad(&e))?.keys().next() {
            Some(key) => {
                Err(bad(&format_args!("«{key}» is not known; this role has nothing to set")))
            }
            None => Ok(()),
        },
    }
}

/// An override laid over the configuration of a role; a text that cannot be read counts as empty.
fn overlay(base: &str, over: &str) -> String {
    let table = |text| toml::from_str::<toml::Table>(text).unwrap_or_default();
    let mut all = table(base);
    all.extend(table(over));
    toml::to_string(&all).unwrap_or_default()
}

/// What this build knows of a text that a newer one may have taken: a setting that it does not know, or not in that form, changes nothing, and the others hold.
fn understood(text: &str) -> MgmtdTuning {
    let mut settings: toml::Table = toml::from_str(text).unwrap_or_default();
    settings.retain(|key, value| {
        let alone = toml::Table::from_iter([(key.to_owned(), value.clone())]);
        alone.try_into::<MgmtdTuning>().is_ok()
    });
    settings.try_into().unwrap_or_default()
}

impl State {
    /// The configuration of a node, if it is newer than `have`.
    pub fn config_for(&self, node: NodeId, role: Role, have: ConfigVersion) -> Option<ConfigItem> {
        let item = self.config_of(role).filter(|c| c.version > have)?;
        let toml = match self.overrides.get(&node) {
            Some(over) => overlay(&item.toml, over),
            None => item.toml.clone(),
        };
        Some(ConfigItem { toml, ..item.clone() })
    }

    /// The settings of mgmtd itself that were changed since its configuration file was read.
    pub fn mgmtd_tuning(&self) -> MgmtdTuning {
        self.config_of(Role::Mgmtd).map(|i| understood(&i.toml)).unwrap_or_default()
    }

    /// The items that a change makes, with their next versions. An override of a node counts as a change of its role, so
    /// that the node hears of it.
    pub fn next_configs(&self, new: &ClusterConfig) -> Result<Vec<ConfigItem>> {
        let mut out = Vec::with_capacity(new.items.len());
        for item in &new.items {
            let now = self.config_of(item.role).map_or(ConfigVersion(0), |c| c.version);
            if item.version != now {
                return Err(Error::new(
                    Status::Conflict,
                    format!(
                        "the configuration of {} has version {now}, the change is based on {}: read it again",
                        item.role, item.version
                    ),
                ));
            }
            out.push(ConfigItem { version: now.next(), ..item.clone() });
        }
        for (node, text) in &new.overrides {
            let role = self.nodes.get(node).map(|n| n.value.role).ok_or_else(|| {
                Error::new(Status::NotFound, format!("node {node} is not known; see list-nodes"))
            })?;
            if role == Role::Mgmtd {
                return Err(Error::new(
                    Status::InvalidArgument,
                    "what mgmtd follows is of the whole cluster; leave --node out",
                ));
            }
            check_config(role, text)?;
            if out.iter().all(|i| i.role != role) {
                let now = self.config_of(role).cloned();
                let now = now.unwrap_or(ConfigItem {
                    version: ConfigVersion(0),
                    role,
                    toml: String::new(),
                });
                out.push(ConfigItem { version: now.version.next(), ..now });
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_impossible_settings_are_refused() {
        assert!(check_config(Role::Storage, "sync_bytes_per_s = 1000").is_ok());
        for text in ["sync_byte_per_s = 1", "sync_chunks = 0", "sync_chunks = \"x\"", "["] {
            assert!(check_config(Role::Storage, text).is_err(), "{text}");
        }
        assert!(check_config(Role::Mgmtd, "replace_after_ms = 0").is_ok());
        assert!(check_config(Role::Mgmtd, "replace_after = 0").is_err());
        assert!(check_config(Role::Meta, "").is_ok());
        assert!(check_config(Role::Meta, "x = 1").is_err());
    }

    /// Adding a field without its key here does not compile, or fails.
    #[test]
    fn all_keys_are_named() {
        let storage = StorageTuning {
            sync_chunks: Some(1),
            sync_bytes_per_s: Some(1),
            sync_share_percent: Some(1),
            scrub_bytes_per_s: Some(1),
            sync_targets: Some(1),
            sync_floor_percent: Some(1),
        };
        let mgmtd = MgmtdTuning { replace_after_ms: Some(1), balance: Some(true) };
        assert_eq!(keys(&toml::to_string(&storage).expect("TOML")), StorageTuning::KEYS);
        assert_eq!(keys(&toml::to_string(&mgmtd).expect("TOML")), MgmtdTuning::KEYS);
    }

    /// One unknown key took all other settings along: a standby of an older release copied what is away, though that was switched off.
    #[test]
    fn what_a_newer_build_has_set_leaves_the_rest_in_force() {
        let tuning = understood("replace_after_ms = 0\nbalance = \"at night\"\nnew = 7");
        assert_eq!((tuning.replace_after_ms, tuning.balance), (Some(0), None));
        assert_eq!(understood("["), MgmtdTuning::default());
    }

    fn keys(text: &str) -> Vec<&str> {
        text.lines().filter_map(|l| Some(l.split_once(" = ")?.0)).collect()
    }

    #[test]
    fn an_override_lies_over_the_rest() {
        let text = overlay("sync_chunks = 2\nsync_bytes_per_s = 5", "sync_chunks = 3");
        let tuning: StorageTuning = toml::from_str(&text).expect("TOML");
        assert_eq!((tuning.sync_chunks, tuning.sync_bytes_per_s), (Some(3), Some(5)));
    }
}
