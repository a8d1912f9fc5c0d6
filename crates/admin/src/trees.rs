//! `trees`: how far removed trees are.

use crate::output::{Output, bytes};
use anyhow::Result;
use glowfs_client::Client;
use glowfs_types::wire::meta::Caller;
use glowfs_types::wire::tree::{Tree, Trees};
use serde::Serialize;

#[derive(Serialize)]
struct Row {
    tree: u64,
    path: String,
    uid: u32,
    removed: i64,
    waiting: u64,
    files: u64,
    directories: u64,
    bytes: u64,
    kept: u64,
}

fn path_of(t: &Tree) -> String {
    if t.path.is_empty() {
        return format!("?/{} (of directory {})", String::from_utf8_lossy(&t.name), t.parent);
    }
    String::from_utf8_lossy(&t.path).into_owned()
}

/// Lists the trees that are being emptied.
pub async fn list(out: Output, client: &Client) -> Result<()> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = client.trees(Trees { caller: Caller::default(), after }).await?;
        found.extend(page.trees);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let row = |t: &Tree| Row {
        tree: t.tree.0,
        path: path_of(t),
        uid: t.uid,
        removed: t.removed.secs,
        waiting: t.waiting,
        files: t.files,
        directories: t.directories,
        bytes: t.bytes,
        kept: t.kept,
    };
    let rows: Vec<Row> = found.iter().map(row).collect();
    let columns = [
        "tree",
        "path",
        "uid",
        "directories left",
        "files gone",
        "directories gone",
        "bytes",
        "kept",
    ];
    out.rows(&rows, &columns, |r| {
        vec![
            r.tree.to_string(),
            r.path.clone(),
            r.uid.to_string(),
            r.waiting.to_string(),
            r.files.to_string(),
            r.directories.to_string(),
            bytes(r.bytes),
            r.kept.to_string(),
        ]
    })
}
