//! Commands on users and their tokens.

use crate::args::{ChangedUser, NewUser};
use crate::cluster::sessions;
use crate::output::{Output, plain, print};
use anyhow::{Context, Result, anyhow, bail};
use glowfs_client::{Client, ClientConfig};
use glowfs_types::wire::mgmtd::{
    ClientSession, UserAdd, UserAddReply, UserChange, UserChangeReply, UserInfo, UserList,
    UserRemove,
};
use glowfs_types::wire::{Empty, method};
use glowfs_types::{Status, UserId};
use serde::Serialize;

/// Clients that are named one by one.
const CLIENTS_NAMED_MAX: usize = 8;

#[derive(Serialize)]
struct UserRow {
    uid: u64,
    name: String,
    groups: Vec<u32>,
    root: bool,
    admin: bool,
    service: bool,
}

impl From<UserInfo> for UserRow {
    fn from(u: UserInfo) -> Self {
        Self {
            uid: u.user.0,
            name: u.name,
            groups: u.groups,
            root: u.root,
            admin: u.admin,
            service: u.service,
        }
    }
}

/// Groups of a user, as one argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Groups(pub Vec<u32>);

impl From<&NewUser> for UserInfo {
    fn from(new: &NewUser) -> Self {
        Self {
            user: UserId(new.uid),
            name: new.name.clone(),
            groups: new.groups.0.clone(),
            root: new.root,
            admin: new.admin,
            service: false,
        }
    }
}

impl From<&ChangedUser> for UserChange {
    fn from(new: &ChangedUser) -> Self {
        Self {
            user: UserId(new.uid),
            name: new.name.clone(),
            groups: new.groups.as_ref().map(|g| g.0.clone()),
            root: new.root,
            admin: new.admin,
            new_token: new.new_token,
            token: None,
        }
    }
}

/// `user-list`.
pub async fn list(out: Output, client: &Client) -> Result<()> {
    let list: UserList =
        client.mgmtd(method::USER_LIST, &Empty {}).await.context("listing users")?;
    rows(out, &list.users.into_iter().map(UserRow::from).collect::<Vec<_>>())
}

fn rows(out: Output, rows: &[UserRow]) -> Result<()> {
    out.rows(rows, &["uid", "name", "groups", "root", "admin", "service"], |u| {
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
    // An mgmtd of an older release replaces who is there, whatever is asked.
    let there: UserList =
        client.mgmtd(method::USER_LIST, &Empty {}).await.context("listing users")?;
    if let Some(old) = there.users.iter().find(|u| u.user == user.user) {
        return Err(is_there(uid, &old.name));
    }
    let name = user.name.clone();
    // Ours, so that mgmtd knows an attempt that is repeated because its answer was lost. (One of an older release makes its own.)
    let ask = UserAdd { user, only_new: true, token: Some(new_token(client)) };
    match client.mgmtd::<_, UserAddReply>(method::USER_ADD, &ask).await {
        Ok(reply) => {
            out.either(&NewToken { uid, token: reply.token }, |t| format!("{}\n", t.token))
        }
        // By somebody else just now; with an older mgmtd also by an attempt of ours whose answer was lost.
        Err(e) if e.status == Status::Exists => Err(is_there(uid, &name)),
        Err(e) => Err(e).context("adding the user"),
    }
}

fn is_there(uid: u64, name: &str) -> anyhow::Error {
    let name = plain(name);
    anyhow!(
        "user {uid} is there already, as «{name}»: `user-change {uid}` changes what is named, with --new-token --yes it prints a new token"
    )
}

#[derive(Serialize)]
struct Changed {
    #[serde(flatten)]
    user: UserRow,
    /// If a new one was wanted.
    token: Option<String>,
}

/// `user-change`. A new token voids the one that mounts may use, so it wants `yes`.
pub async fn change(out: Output, client: &Client, mut change: UserChange, yes: bool) -> Result<()> {
    if change == (UserChange { user: change.user, ..UserChange::default() }) {
        bail!("nothing to change: give --name, --groups, --root, --admin or --new-token");
    }
    if change.new_token && !yes {
        let all = sessions(client).await?;
        bail!(ends(change.user, &all) + "; nothing was changed: --yes does it");
    }
    // Ours: if the answer is lost, who asked has it still. (An mgmtd of an older release makes its own.)
    change.token = change.new_token.then(|| new_token(client));
    let reply = match client.mgmtd::<_, UserChangeReply>(method::USER_CHANGE, &change).await {
        Ok(reply) => reply,
        Err(e) => match change.token {
            Some(token) => whether_changed(client, change.user, token, e).await?,
            None => return Err(too_old(e, "changing the user")),
        },
    };
    let changed = Changed { user: reply.user.into(), token: reply.token };
    if out.json {
        return out.value(&changed);
    }
    match changed.token {
        Some(token) => print(&format!("{token}\n")),
        None => rows(out, &[changed.user]),
    }
}

fn new_token(client: &Client) -> String {
    (0..4).map(|_| format!("{:016x}", client.rt().random())).collect()
}

/// Whom a new token cuts off, for people.
fn ends(user: UserId, all: &[ClientSession]) -> String {
    let mut of_user: Vec<_> = all.iter().filter(|c| c.user == user).collect();
    of_user.sort_by_key(|c| (&c.hostname, c.pid));
    let named: Vec<_> = of_user
        .iter()
        .take(CLIENTS_NAMED_MAX)
        .map(|c| format!("{} on {}", plain(&c.description), plain(&c.hostname)))
        .collect();
    let who = match (named.is_empty(), of_user.len() > named.len()) {
        (true, _) => String::new(),
        (false, more) => {
            format!(" ({}{})", named.join(", "), if more { ", ..." } else { "" })
        }
    };
    format!(
        "the token of user {user} would be void at once: {} clients{who} use it, and would hear EACCES within half a minute until they are mounted with the new one",
        of_user.len()
    )
}

/// The call failed: its answer may be lost, and an attempt that is repeated with a token which is void by now is refused. The new one tells.
async fn whether_changed(
    client: &Client,
    user: UserId,
    token: String,
    e: glowfs_types::Error,
) -> Result<UserChangeReply> {
    let refused =
        [Status::InvalidArgument, Status::NotFound, Status::UnknownMethod, Status::AccessDenied];
    if refused.contains(&e.status) {
        return Err(too_old(e, "changing the user"));
    }
    let config = ClientConfig { token: token.clone(), ..client.config().clone() };
    if let Ok(new) = Client::connect(client.rt(), config).await {
        let listed = new.mgmtd::<_, UserList>(method::USER_LIST, &Empty {}).await;
        new.close().await;
        let users = listed.map(|l| l.users).unwrap_or_default();
        if let Some(user) = users.into_iter().find(|u| u.user == user) {
            return Ok(UserChangeReply { user, token: Some(token) });
        }
    }
    Err(e).context(format!(
        "whether user {user} has a new token is not known; if the old one is void, it is {token} (an mgmtd of an older release has made another one, which nobody knows: change it once more, with the services' token)"
    ))
}

#[derive(Serialize)]
struct Removed {
    #[serde(flatten)]
    user: UserRow,
    removed: bool,
}

/// `user-remove`: without `yes` it only says who it would be.
pub async fn remove(out: Output, client: &Client, user: UserId, yes: bool) -> Result<()> {
    let there: UserList =
        client.mgmtd(method::USER_LIST, &Empty {}).await.context("listing users")?;
    let Some(info) = there.users.into_iter().find(|u| u.user == user) else {
        bail!("there is no user {user}; see `glowfs admin user-list`");
    };
    if yes {
        let ask = UserRemove { user };
        match client.mgmtd::<_, Empty>(method::USER_REMOVE, &ask).await {
            // Not found: by an attempt of ours whose answer was lost.
            Err(e) if e.status != Status::NotFound => {
                return Err(too_old(e, "removing the user"));
            }
            _ => {}
        }
    }
    out.either(&Removed { user: info.into(), removed: yes }, |r| {
        let (uid, name) = (r.user.uid, plain(&r.user.name));
        match r.removed {
            true => format!("user {uid} «{name}» and his token are removed; his files stay\n"),
            false => format!("user {uid} «{name}» would be removed; --yes does it\n"),
        }
    })
}

fn too_old(e: glowfs_types::Error, doing: &'static str) -> anyhow::Error {
    match e.status {
        Status::UnknownMethod => {
            anyhow!("mgmtd is of a release that cannot do this; update it first")
        }
        _ => anyhow::Error::from(e).context(doing),
    }
}

/// Parses groups as `--groups` takes them: numbers with commas; nothing for none.
pub fn groups(text: &str) -> Result<Groups, String> {
    let number = |g: &str| {
        g.trim().parse().map_err(|_| format!("«{g}» is no number of a group; write 1000,27"))
    };
    let text = text.trim();
    let all = if text.is_empty() { Ok(vec![]) } else { text.split(',').map(number).collect() };
    all.map(Groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::{ClientId, HostId};

    #[test]
    fn who_loses_his_token_is_told_which_mounts_use_it() {
        let session = |user, hostname: &str| ClientSession {
            client: ClientId(1),
            role: None,
            hostname: hostname.into(),
            host: HostId(0),
            pid: 1,
            description: "/mnt/glow".into(),
            release: String::new(),
            started_ns: 0,
            user: UserId(user),
            last_seen_ns: 0,
            extends: false,
        };
        let mut all = vec![session(0, "b"), session(7, "c"), session(0, "a")];
        let said = ends(UserId(0), &all);
        assert!(said.contains("2 clients (/mnt/glow on a, /mnt/glow on b) use it"), "{said}");
        assert!(ends(UserId(9), &all).contains("0 clients use it"));
        all.extend((0..20).map(|_| session(0, "d")));
        let said = ends(UserId(0), &all);
        assert!(said.contains("22 clients (/mnt/glow on a") && said.contains(", ...)"), "{said}");
    }
}
