//! What mgmtd knows of a cluster in which an operation never ends: the chains that lack somebody, and the nodes that are not alive.

use crate::hand::Hand;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;
use std::sync::Mutex;

/// How long one question may take, in seconds.
const ASK_BOUND: &str = "15";
/// What mgmtd says of a node that lives.
const ALIVE: [&str; 3] = ["active", "primary", "standby"];
/// The most lines about one kind of things.
const NAMED_MAX: usize = 20;

/// Asks for it, with a hand of its own: the other one may be at work on what never ends.
pub struct View {
    hand: Mutex<Hand>,
    admin: Vec<String>,
}

impl View {
    /// Of the dev cluster in `cluster`; `top` takes the output of commands. Call before any file of a mount is open.
    pub fn new(glowfs: &Path, top: &Path, cluster: &Path) -> Result<Self> {
        let text = |p: &Path| p.to_string_lossy().into_owned();
        let words = ["timeout", "-k", "5", ASK_BOUND];
        let mut admin: Vec<String> = words.map(String::from).into();
        admin.extend([text(glowfs), "admin".into(), "--json".into(), "--dev".into()]);
        admin.push(text(cluster));
        Ok(Self { hand: Mutex::new(Hand::new(top, "view")?), admin })
    }
    /// Each thing that is not as it should be, in words; also that it cannot be known.
    pub fn ailing(&self) -> Vec<String> {
        let chains = self.ask("list-chains").and_then(|rows| lacking(&rows));
        let nodes = self.ask("list-nodes").and_then(|rows| away(&rows));
        [chains, nodes]
            .into_iter()
            .flat_map(|r| r.unwrap_or_else(|e| vec![format!("{e:#}")]))
            .collect()
    }
    fn ask(&self, what: &str) -> Result<Value> {
        let mut argv = self.admin.clone();
        argv.push(what.into());
        let mut hand = self.hand.lock().unwrap_or_else(|e| e.into_inner());
        let text = hand.run(&argv).with_context(|| format!("mgmtd does not answer {what}"))?;
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }
}

/// Chains that are not complete.
fn lacking(rows: &Value) -> Result<Vec<String>> {
    let rows = rows.as_array().context("no list of chains")?;
    let member = |m: &Value| {
        let state = m["state"].as_str().unwrap_or("?");
        format!("target {} at node {} is {state}", m["target"], m["node"])
    };
    let chain = |c: &Value| {
        let members: Vec<_> = c["members"].as_array().into_iter().flatten().map(member).collect();
        let status = c["status"].as_str().unwrap_or("?");
        let (id, version, active) = (&c["id"], &c["version"], &c["activated"]);
        format!(
            "chain {id} is {status}, version {version} ({active} active): {}",
            members.join(", ")
        )
    };
    let all: Vec<_> = rows.iter().filter(|c| c["status"] != "complete").map(chain).collect();
    Ok(shown(all, || format!("all {} chains are complete", rows.len())))
}

/// Nodes that do not live.
fn away(rows: &Value) -> Result<Vec<String>> {
    let rows = rows.as_array().context("no list of nodes")?;
    let node = |n: &Value| {
        let word = |field: &str| n[field].as_str().unwrap_or("?").to_owned();
        format!("node {} ({}) is {}", n["id"], word("role"), word("status"))
    };
    let all: Vec<_> =
        rows.iter().filter(|n| !ALIVE.iter().any(|s| n["status"] == *s)).map(node).collect();
    Ok(shown(all, || format!("all {} nodes are alive", rows.len())))
}

fn shown(mut all: Vec<String>, none: impl Fn() -> String) -> Vec<String> {
    if all.is_empty() {
        return vec![none()];
    }
    let more = all.len().saturating_sub(NAMED_MAX);
    all.truncate(NAMED_MAX);
    if more > 0 {
        all.push(format!("and {more} more"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_as_it_should_be_is_named() {
        let member = |target: u64, state: &str| json!({"target": target, "node": 1000 + target, "state": state});
        let chains = json!([
            {"id": 1, "version": 3, "activated": 3, "status": "complete", "members": [member(1, "serving")]},
            {"id": 2, "version": 9, "activated": 8, "status": "degraded",
                "members": [member(3, "serving"), member(4, "offline")]},
        ]);
        let said = lacking(&chains).expect("rows");
        assert_eq!(said.len(), 1, "{said:?}");
        for part in
            ["chain 2 is degraded, version 9 (8 active)", "target 4 at node 1004 is offline"]
        {
            assert!(said[0].contains(part), "{part}: {said:?}");
        }
        let node =
            |id: u64, role: &str, status: &str| json!({"id": id, "role": role, "status": status});
        let mut nodes = vec![
            node(1, "mgmtd", "primary"),
            node(2, "mgmtd", "standby"),
            node(9, "meta", "active"),
        ];
        assert_eq!(away(&json!(nodes)).expect("rows"), ["all 3 nodes are alive"]);
        nodes.push(node(1004, "storage", "failed"));
        assert_eq!(away(&json!(nodes)).expect("rows"), ["node 1004 (storage) is failed"]);
        assert!(lacking(&json!({})).is_err(), "no answer is no good news");
    }
}
