//! Commands on the configuration that running services follow.

use crate::output::Output;
use anyhow::{Context, Result, bail};
use glowfs_client::Client;
use glowfs_types::routing::Role;
use glowfs_types::wire::mgmtd::{ClusterConfig, ConfigItem};
use glowfs_types::wire::{Empty, method};
use glowfs_types::{ConfigVersion, NodeId};
use serde::Serialize;

#[derive(Serialize)]
struct Row {
    role: String,
    node: Option<u64>,
    version: u64,
    toml: String,
}

fn show(out: Output, config: &ClusterConfig) -> Result<()> {
    let mut rows: Vec<Row> = config
        .items
        .iter()
        .map(|i| Row {
            role: i.role.to_string(),
            node: None,
            version: i.version.0,
            toml: i.toml.clone(),
        })
        .collect();
    rows.extend(config.overrides.iter().map(|(node, toml)| Row {
        role: String::new(),
        node: Some(node.0),
        version: 0,
        toml: toml.clone(),
    }));
    out.rows(&rows, &["of", "version", "settings"], |r| {
        let of = r.node.map_or_else(|| r.role.clone(), |n| format!("node {n}"));
        let version = if r.node.is_some() { String::new() } else { r.version.to_string() };
        vec![of, version, r.toml.trim().replace('\n', "; ")]
    })
}

/// `get-config`.
pub async fn get(out: Output, client: &Client) -> Result<()> {
    let config: ClusterConfig =
        client.mgmtd(method::GET_CONFIG, &Empty {}).await.context("reading the configuration")?;
    show(out, &config)
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

/// `set-config`: changes some keys and leaves the others.
pub async fn set(out: Output, client: &Client, change: Change<'_>) -> Result<()> {
    let now: ClusterConfig =
        client.mgmtd(method::GET_CONFIG, &Empty {}).await.context("reading the configuration")?;
    let item = now.items.into_iter().find(|i| i.role == change.role);
    let mut new = ClusterConfig::default();
    match change.node {
        Some(node) => {
            let text = now.overrides.get(&node).map_or("", String::as_str);
            new.overrides.insert(node, edit(text, change.settings)?);
        }
        None => {
            let (version, text) =
                item.map_or((ConfigVersion(0), String::new()), |i| (i.version, i.toml));
            let toml = edit(&text, change.settings)?;
            new.items.push(ConfigItem { version, role: change.role, toml });
        }
    }
    let done: ClusterConfig =
        client.mgmtd(method::SET_CONFIG, &new).await.context("changing the configuration")?;
    show(out, &done)
}

fn edit(text: &str, settings: &[String]) -> Result<String> {
    let mut table: toml::Table = toml::from_str(text).context("the configuration in force")?;
    for setting in settings {
        let Some((key, value)) = setting.split_once('=') else {
            bail!("«{setting}» is not KEY=VALUE");
        };
        let (key, value) = (key.trim(), value.trim());
        if value.is_empty() {
            table.remove(key);
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
    fn keys_are_set_changed_and_taken_away() {
        let set = |text: &str, s: &[&str]| {
            edit(text, &s.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(
            set("a = 1\nb = 2\n", &["a=3", "b=", "c=x y"]).expect("TOML"),
            "a = 3\nc = \"x y\"\n"
        );
        assert!(set("", &["a"]).is_err());
    }
}
