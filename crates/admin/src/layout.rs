//! Layouts of directories.

use crate::args::NewLayout;
use crate::files::caller;
use crate::output::{Output, bytes};
use anyhow::{Context, Result, bail};
use glowfs_client::Client;
use glowfs_types::RequestId;
use glowfs_types::wire::meta::{OfXattr, SetXattr};
use serde::Serialize;

/// The attribute that it stands in.
const XATTR: &[u8] = b"glowfs.layout";

#[derive(Serialize)]
struct Row {
    path: String,
    chunk_bytes: u32,
    stripe: u32,
    table: u64,
    table_version: u64,
    durability: String,
    inline_bytes: u32,
}

/// `show-layout`.
pub async fn show(out: Output, client: &Client, path: &str) -> Result<()> {
    let a = client.resolve(&caller(client), path, true).await?;
    let Some(l) = a.layout else {
        bail!("{path} has no layout: it is neither a file nor a directory")
    };
    let row = Row {
        path: path.into(),
        chunk_bytes: l.chunk_bytes,
        stripe: l.stripe,
        table: l.table.0,
        table_version: l.table_version,
        durability: format!("{:?}", l.durability).to_lowercase(),
        inline_bytes: l.inline_bytes,
    };
    out.either(&row, |r| {
        let size = bytes(u64::from(r.chunk_bytes));
        let inline = match r.inline_bytes {
            0 => String::new(),
            n => format!(", small files up to {} with the metadata", bytes(u64::from(n))),
        };
        format!(
            "{}: chunks of {size}, stripe {} on table {}, durability {}{inline}\n",
            r.path, r.stripe, r.table, r.durability
        )
    })
}

/// `set-layout`.
pub async fn set(out: Output, client: &Client, new: &NewLayout) -> Result<()> {
    let path = new.path.as_str();
    let inode = client.resolve(&caller(client), path, true).await?.inode;
    let (request, name) = (RequestId(0), XATTR.to_vec().into());
    let caller = caller(client);
    if new.inherit {
        let q = OfXattr { caller, request, inode, name };
        client.removexattr(q).await.with_context(|| format!("layout of {path}"))?;
        return show(out, client, path).await;
    }
    let mut text = String::new();
    if let Some(size) = &new.chunk_size {
        text += &format!("chunk_bytes={size} ");
    }
    if let Some(stripe) = new.stripe {
        text += &format!("stripe={stripe} ");
    }
    if let Some(table) = new.table {
        text += &format!("table={table} ");
    }
    if let Some(size) = &new.inline_bytes {
        text += &format!("inline_bytes={size}");
    }
    if text.is_empty() {
        bail!("nothing to set: give --chunk-size, --stripe, --table, --inline-bytes or --inherit");
    }
    let q = SetXattr { caller, request, inode, name, value: text.into_bytes(), flags: 0 };
    client.setxattr(q).await.with_context(|| format!("layout of {path}"))?;
    show(out, client, path).await
}
