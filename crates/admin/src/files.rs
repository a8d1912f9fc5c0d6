//! Commands on files of the cluster, without a mount.

use crate::everyone::ask_all;
use crate::output::{Output, bytes};
use anyhow::{Result, anyhow, bail};
use glowfs_client::{Client, FileAccess};
use glowfs_types::VolumeId;
use glowfs_types::routing::{NodeInfo, RoutingInfo};
use glowfs_types::wire::meta::{
    AtimeRule, Caller, InodeKind, OfInode, Open, OpenFlags, ROOT_INODE, ReadDir,
};
use serde::Serialize;
use std::io::Write;
use std::rc::Rc;

/// Entries of a directory asked for at once.
pub(crate) const PAGE_ENTRIES: u32 = 1000;
/// Bytes read at once by `cat`.
const CAT_BYTES: usize = 4 << 20;

pub(crate) fn caller(client: &Client) -> Caller {
    Caller { client: client.id(), volume: VolumeId(1), ..Caller::default() }
}

fn kind(k: InodeKind) -> &'static str {
    match k {
        InodeKind::File => "file",
        InodeKind::Directory => "directory",
        InodeKind::Symlink => "symlink",
        InodeKind::Fifo => "fifo",
        InodeKind::Socket => "socket",
        InodeKind::CharDevice => "char-device",
        InodeKind::BlockDevice => "block-device",
    }
}

#[derive(Serialize)]
struct StatRow {
    path: String,
    inode: u64,
    kind: &'static str,
    mode: String,
    uid: u32,
    gid: u32,
    nlink: u32,
    length: u64,
    mtime: f64,
    data_id: u64,
    chunk_bytes: Option<u32>,
    stripe: Option<u32>,
    table: Option<u64>,
    /// The chains that hold the file's first chunks, in order, each once.
    chains: Vec<u64>,
}

/// `stat`.
pub async fn stat(out: Output, client: &Client, routing: &RoutingInfo, path: &str) -> Result<()> {
    let a = client.resolve(&caller(client), path, false).await?;
    let layout = a.layout;
    let mut chains = vec![];
    if let (InodeKind::File, Some(l)) = (a.kind, layout.filter(|l| l.validate().is_ok()))
        && let Some(table) = routing.table(l.table, l.table_version)
        && !table.chains.is_empty()
    {
        let chunks = a.len.div_ceil(u64::from(l.chunk_bytes)).min(u64::from(l.stripe));
        let at = |i| table.chains[l.position(i, table.chains.len() as u32) as usize].0;
        chains = (0..chunks).map(at).collect();
        let mut seen = std::collections::BTreeSet::new();
        chains.retain(|c| seen.insert(*c));
    }
    let row = StatRow {
        path: path.into(),
        inode: a.inode.0,
        kind: kind(a.kind),
        mode: format!("{:04o}", a.mode & 0o7777),
        uid: a.uid,
        gid: a.gid,
        nlink: a.nlink,
        length: a.len,
        mtime: a.mtime.secs as f64 + f64::from(a.mtime.nanos) / 1e9,
        data_id: a.data.0,
        chunk_bytes: layout.map(|l| l.chunk_bytes),
        stripe: layout.map(|l| l.stripe),
        table: layout.map(|l| l.table.0),
        chains,
    };
    out.either(&row, |r| {
        let mut text = format!(
            "{}: {} inode {} mode {} uid {} gid {} links {} length {} ({})\n",
            r.path,
            r.kind,
            r.inode,
            r.mode,
            r.uid,
            r.gid,
            r.nlink,
            r.length,
            bytes(r.length)
        );
        if let (Some(c), Some(s), Some(t)) = (r.chunk_bytes, r.stripe, r.table) {
            text += &format!(
                "  data id {}, chunks of {}, stripe {s} on table {t}, chains {:?}\n",
                r.data_id,
                bytes(u64::from(c)),
                r.chains
            );
        }
        text
    })
}

#[derive(Serialize)]
struct LsRow {
    name: String,
    inode: u64,
    kind: &'static str,
    mode: String,
    uid: u32,
    gid: u32,
    length: u64,
}

/// `ls`.
pub async fn ls(out: Output, client: &Client, path: &str) -> Result<()> {
    let a = client.resolve(&caller(client), path, true).await?;
    if a.kind != InodeKind::Directory {
        bail!("{path} is a {}, not a directory", kind(a.kind));
    }
    let mut rows = vec![];
    let mut after = 0;
    loop {
        let page = client
            .readdir(ReadDir {
                caller: caller(client),
                inode: a.inode,
                after,
                limit: PAGE_ENTRIES,
                attributes: true,
                atime: AtimeRule::default(),
            })
            .await?;
        let Some(last) = page.entries.last() else { break };
        after = last.cookie;
        for e in page.entries {
            let attr = e.attr.unwrap_or_default();
            rows.push(LsRow {
                name: String::from_utf8_lossy(&e.name).into_owned(),
                inode: e.inode.0,
                kind: kind(e.kind),
                mode: format!("{:04o}", attr.mode & 0o7777),
                uid: attr.uid,
                gid: attr.gid,
                length: attr.len,
            });
        }
        if page.end {
            break;
        }
    }
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    out.rows(&rows, &["mode", "uid", "gid", "length", "kind", "name"], |r| {
        vec![
            r.mode.clone(),
            r.uid.to_string(),
            r.gid.to_string(),
            r.length.to_string(),
            r.kind.into(),
            r.name.clone(),
        ]
    })
}

/// `cat`.
pub async fn cat(client: &Rc<Client>, path: &str) -> Result<()> {
    let a = client.resolve(&caller(client), path, true).await?;
    if a.kind != InodeKind::File {
        bail!("{path} is a {}, not a file", kind(a.kind));
    }
    let flags = OpenFlags { read: true, ..OpenFlags::default() };
    let query =
        Open { caller: caller(client), request: client.new_request(), inode: a.inode, flags };
    let reply = client.open(query).await?;
    let mut len = reply.attr.len;
    let access = FileAccess { caller: caller(client), read: true, write: false, exec: false };
    let file = client.open_file(&reply, access)?;
    let mut stdout = std::io::stdout().lock();
    let mut at = 0;
    while at < len {
        let want = (len - at).min(CAT_BYTES as u64) as usize;
        let (result, buf) = file.read(at, client.rt().alloc(want)).await;
        let found = result.map_err(|e| anyhow!("reading {path} at {at}: {e}"))?;
        if found < want {
            // A hole, or somebody has cut the file meanwhile: what is behind its end is none of it.
            len = len.min(client.resolve(&caller(client), path, true).await?.len);
        }
        let there = len.saturating_sub(at).min(want as u64) as usize;
        match stdout.write_all(buf.get(..there).unwrap_or(&[])) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            other => other?,
        }
        at += want as u64;
    }
    Ok(())
}

#[derive(Serialize)]
struct DiskRow {
    node: u64,
    /// Its place in the node's configuration, by which `drain` and `disk replace` go; absent if the node did not answer.
    disk: Option<usize>,
    path: String,
    store: String,
    capacity_bytes: u64,
    free_bytes: u64,
    used_bytes: u64,
    problem: Option<String>,
}

#[derive(Serialize)]
struct Df {
    total_bytes: u64,
    free_bytes: u64,
    inodes: u64,
    disks: Vec<DiskRow>,
}

/// `df`.
pub async fn df(out: Output, client: &Client, routing: &RoutingInfo) -> Result<()> {
    let fs = client.statfs(OfInode { caller: caller(client), inode: ROOT_INODE }).await?;
    let mut disks = vec![];
    let storages =
        routing.nodes.values().filter(|n| n.role == glowfs_types::routing::Role::Storage);
    for (node, answer) in ask_all(storages, |n: &NodeInfo| client.storage_info(n.id)).await {
        match answer {
            Ok(info) => disks.extend(info.disks.into_iter().enumerate().map(|(i, d)| DiskRow {
                node: node.id.0,
                disk: Some(i),
                path: d.path,
                store: d.store.to_string(),
                capacity_bytes: d.capacity_bytes,
                free_bytes: d.free_bytes,
                used_bytes: d.used_bytes,
                problem: d.problem,
            })),
            Err(e) => disks.push(DiskRow {
                node: node.id.0,
                disk: None,
                path: String::new(),
                store: String::new(),
                capacity_bytes: 0,
                free_bytes: 0,
                used_bytes: 0,
                problem: Some(e.to_string()),
            }),
        }
    }
    let df =
        Df { total_bytes: fs.total_bytes, free_bytes: fs.free_bytes, inodes: fs.inodes, disks };
    if out.json {
        return out.value(&df);
    }
    crate::output::print(&format!(
        "file system: {} for users, {} free, {} inodes\n\n",
        bytes(df.total_bytes),
        bytes(df.free_bytes),
        df.inodes
    ))?;
    let columns = ["disk", "capacity", "free", "chunks", "path", "store", "problem"];
    out.rows(&df.disks, &columns, |d| {
        vec![
            d.disk.map_or_else(|| d.node.to_string(), |i| format!("{}:{i}", d.node)),
            bytes(d.capacity_bytes),
            bytes(d.free_bytes),
            bytes(d.used_bytes),
            d.path.clone(),
            d.store.clone(),
            d.problem.clone().unwrap_or_else(|| "-".into()),
        ]
    })
}
