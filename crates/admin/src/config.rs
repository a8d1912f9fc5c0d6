//! Commands on the configuration that running services follow.

use crate::output::Output;
use anyhow::{Context, Result, bail};
use glowfs_client::Client;
use glowfs_rt::Duration;
use glowfs_types::routing::{Role, RoutingInfo};
use glowfs_types::tuning::{MgmtdTuning, StorageTuning};
use glowfs_types::wire::mgmtd::{ClusterConfig, ConfigItem};
use glowfs_types::wire::{Empty, method};
use glowfs_types::{ConfigVersion, NodeId};
use serde::Serialize;

/// Attempts at a change that others get ahead of.
const ATTEMPTS_MAX: u32 = 20;
/// The longest pause before the next one.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Serialize)]
struct Row {
    /// Absent if it is not known of the node.
    role: Option<String>,
    node: Option<u64>,
    /// An override has none.
    version: Option<u64>,
    toml: String,
}

fn rows(config: &ClusterConfig, routing: &RoutingInfo) -> Vec<Row> {
    let mut rows: Vec<Row> = config
        .items
        .iter()
        .map(|i| Row {
            role: Some(i.role.to_string()),
            node: None,
            version: Some(i.version.0),
            toml: i.toml.clone(),
        })
        .collect();
    rows.extend(config.overrides.iter().map(|(node, toml)| Row {
        role: routing.nodes.get(node).map(|n| n.role.to_string()),
        node: Some(node.0),
        version: None,
        toml: toml.clone(),
    }));
    rows
}

fn show(out: Output, config: &ClusterConfig, routing: &RoutingInfo) -> Result<()> {
    out.rows(&rows(config, routing), &["of", "version", "settings"], |r| {
        let role = || r.role.clone().unwrap_or_default();
        let of = r.node.map_or_else(role, |n| format!("node {n}"));
        let version = r.version.map_or_else(String::new, |v| v.to_string());
        vec![of, version, r.toml.trim().replace('\n', "; ")]
    })
}

/// `get-config`.
pub async fn get(out: Output, client: &Client, routing: &RoutingInfo) -> Result<()> {
    let config: ClusterConfig =
        client.mgmtd(method::GET_CONFIG, &Empty {}).await.context("reading the configuration")?;
    show(out, &config, routing)
}

/// What `set-config` is asked to do.
pub struct Change<'a> {
    /// Of all nodes of this role.
    pub role: Role,
    /// Only of this node.
    pub node: Option<NodeId>,
    /// `KEY=VALUE`; an empty value takes the key away.
    pub settings: &'a [String],
}

/// `set-config`: changes some keys and leaves the others. What others have changed since it was read is read again.
pub async fn set(
    out: Output,
    client: &Client,
    routing: &RoutingInfo,
    change: Change<'_>,
) -> Result<()> {
    if let Some(node) = change.node.and_then(|n| routing.nodes.get(&n))
        && node.role != change.role
    {
        bail!("node {} is of {}, not of {}", node.id, node.role, change.role);
    }
    for attempt in 1.. {
        let now: ClusterConfig = client
            .mgmtd(method::GET_CONFIG, &Empty {})
            .await
            .context("reading the configuration")?;
        let new = edited(&now, &change)?;
        match client.mgmtd_once(method::SET_CONFIG, &new).await {
            Ok(done) => return show(out, &done, routing),
            // Changed meanwhile, or not answered: what stands there now says more.
            Err(e) if e.status.is_retriable() && attempt < ATTEMPTS_MAX => {
                let pause = client.rt().random() % PAUSE.as_nanos() as u64;
                client.rt().sleep(Duration::from_nanos(pause)).await;
            }
            Err(e) => return Err(e).context("changing the configuration"),
        }
    }
    Ok(())
}

/// What is sent to mgmtd, which refuses it if the configuration of the role is not that of `now` any more. An override of a node
/// counts as a change of its role, so it goes with the role's item as it was read.
fn edited(now: &ClusterConfig, change: &Change<'_>) -> Result<ClusterConfig> {
    let none = ConfigItem { version: ConfigVersion(0), role: change.role, toml: String::new() };
    let mut item = now.items.iter().find(|i| i.role == change.role).cloned().unwrap_or(none);
    let mut new = ClusterConfig::default();
    match change.node {
        Some(node) => {
            let text = now.overrides.get(&node).map_or("", String::as_str);
            new.overrides.insert(node, edit(text, change.role, change.settings)?);
        }
        None => item.toml = edit(&item.toml, change.role, change.settings)?,
    }
    new.items.push(item);
    Ok(new)
}

/// The keys that a role knows. (mgmtd refuses others that are set; what is taken away it does not see.)
fn keys(role: Role) -> &'static [&'static str] {
    match role {
        Role::Storage => &StorageTuning::KEYS,
        Role::Mgmtd => &MgmtdTuning::KEYS,
        _ => &[],
    }
}

fn edit(text: &str, role: Role, settings: &[String]) -> Result<String> {
    let mut table: toml::Table = toml::from_str(text).context("the configuration in force")?;
    for setting in settings {
        let Some((key, value)) = setting.split_once('=') else {
            bail!("«{setting}» is not KEY=VALUE");
        };
        let (key, value) = (key.trim(), value.trim());
        if value.is_empty() {
            // One that is set may be of a newer release.
            if table.remove(key).is_none() && !keys(role).contains(&key) {
                bail!(
                    "{role} has no setting «{key}», and none of that name is set; it has: {}",
                    keys(role).join(", ")
                );
            }
            continue;
        }
        // As TOML where it is that (numbers, true, quoted text), else as plain text.
        let parsed: Option<toml::Table> = toml::from_str(&format!("v = {value}")).ok();
        let value = parsed.and_then(|mut t| t.remove("v")).unwrap_or_else(|| value.into());
        table.insert(key.to_owned(), value);
    }
    Ok(toml::to_string(&table)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_node_goes_with_the_version_that_was_read() {
        let node = NodeId(1001);
        let now = ClusterConfig {
            items: vec![ConfigItem {
                version: ConfigVersion(7),
                role: Role::Storage,
                toml: "sync_chunks = 1\n".into(),
            }],
            overrides: [(node, "sync_chunks = 2\n".to_owned())].into(),
        };
        let settings = ["sync_bytes_per_s=5".to_owned()];
        let change = Change { role: Role::Storage, node: Some(node), settings: &settings };
        let new = edited(&now, &change).expect("TOML");
        assert_eq!(new.items, now.items, "mgmtd compares it");
        assert_eq!(new.overrides[&node], "sync_bytes_per_s = 5\nsync_chunks = 2\n");
        let new = edited(&ClusterConfig::default(), &change).expect("TOML");
        assert_eq!((new.items.len(), new.items[0].version), (1, ConfigVersion(0)));
    }

    #[test]
    fn an_override_is_shown_with_the_role_of_its_node_and_without_a_version() {
        let toml = || "sync_chunks = 1\n".to_owned();
        let config = ClusterConfig {
            items: vec![ConfigItem {
                version: ConfigVersion(7),
                role: Role::Storage,
                toml: toml(),
            }],
            overrides: [(NodeId(1001), toml()), (NodeId(9), toml())].into(),
        };
        let node = crate::cluster::storage_node(1001);
        let routing = RoutingInfo { nodes: [(node.id, node)].into(), ..RoutingInfo::default() };
        let shown: Vec<_> = rows(&config, &routing)
            .iter()
            .map(|r| serde_json::to_value(r).expect("JSON"))
            .map(|r| (r["node"].as_u64(), r["role"].clone(), r["version"].clone()))
            .collect();
        let (storage, null) = (serde_json::json!("storage"), serde_json::Value::Null);
        let of_role = (None, storage.clone(), serde_json::json!(7));
        // A node that nobody knows may get one, too.
        let unknown = (Some(9), null.clone(), null.clone());
        assert_eq!(shown, [of_role, unknown, (Some(1001), storage, null)]);
    }

    #[test]
    fn keys_are_set_changed_and_taken_away() {
        let set = |text: &str, s: &[&str]| {
            let settings: Vec<_> = s.iter().map(|s| (*s).to_owned()).collect();
            edit(text, Role::Storage, &settings)
        };
        assert_eq!(
            set("a = 1\nb = 2\n", &["a=3", "b=", "c=x y"]).expect("TOML"),
            "a = 3\nc = \"x y\"\n"
        );
        assert!(set("", &["a"]).is_err());
        // Taken away again, or by somebody else: nothing is wrong. A word that was mistyped is.
        assert_eq!(set("", &["sync_chunks="]).expect("TOML"), "");
        assert!(set("", &["sync_chunk="]).is_err());
    }
}
