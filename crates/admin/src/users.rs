//! Commands on users and their tokens.

use crate::output::Output;
use anyhow::{Context, Result};
use glowfs_client::Client;
use glowfs_types::wire::mgmtd::{UserAdd, UserAddReply, UserInfo, UserList};
use glowfs_types::wire::{Empty, method};
use serde::Serialize;

#[derive(Serialize)]
struct UserRow {
    uid: u64,
    name: String,
    groups: Vec<u32>,
    root: bool,
    admin: bool,
    service: bool,
}

/// `user-list`.
pub async fn list(out: Output, client: &Client) -> Result<()> {
    let list: UserList =
        client.mgmtd(method::USER_LIST, &Empty {}).await.context("listing users")?;
    let rows: Vec<_> = list
        .users
        .into_iter()
        .map(|u| UserRow {
            uid: u.user.0,
            name: u.name,
            groups: u.groups,
            root: u.root,
            admin: u.admin,
            service: u.service,
        })
        .collect();
    out.rows(&rows, &["uid", "name", "groups", "root", "admin", "service"], |u| {
        let groups: Vec<_> = u.groups.iter().map(u32::to_string).collect();
        let yes = |b| if b { "yes" } else { "-" }.to_owned();
        vec![
            u.uid.to_string(),
            u.name.clone(),
            groups.join(","),
            yes(u.root),
            yes(u.admin),
            yes(u.service),
        ]
    })
}

#[derive(Serialize)]
struct NewToken {
    uid: u64,
    token: String,
}

/// `user-add`.
pub async fn add(out: Output, client: &Client, user: UserInfo) -> Result<()> {
    let uid = user.user.0;
    let reply: UserAddReply =
        client.mgmtd(method::USER_ADD, &UserAdd { user }).await.context("adding the user")?;
    out.either(&NewToken { uid, token: reply.token }, |t| format!("{}\n", t.token))
}
