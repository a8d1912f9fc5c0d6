//! What must not be left in the metadata engine: sessions of clients that are gone, and anything of files that are.
//!
//! Left are, as they should be: the root directory, ranges of ids, sums, and for a while what requests did. mgmtd remembers the last clients that
//! have ended, so many at most (`mgmtd::state: DEAD_CLIENTS_MAX`).

use super::records;
use glowfs_kv::{Engine, Key};
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::meta::ROOT_INODE;
use glowfs_types::{ClientId, Error, Result, Status};
use std::rc::Rc;

/// How long the sessions of clients may stay that ended: until they are given up (20 s), and their files are closed.
const SESSIONS_END: Duration = Duration::from_secs(60);
/// How long everything else may stay that goes in the background.
const GONE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Keys by session and by client.
const SESSIONS: [(u8, &str); 2] = [(b'S', "sessions"), (b'T', "sessions of clients")];
/// Kinds of keys of which none may be left (docs/formats/namespace-keys.md).
const ALL: [(u8, &str); 14] = [
    SESSIONS[0],
    SESSIONS[1],
    (b'D', "names"),
    (b'C', "names in their order"),
    (b'B', "contents"),
    (b'X', "attributes"),
    (b'O', "files without names"),
    (b'G', "garbage"),
    (b'L', "locks"),
    (b'K', "clients with locks"),
    (b'W', "clients that wait for locks"),
    (b'Z', "trash"),
    (b'E', "trees"),
    (b'P', "truncates"),
];

/// Waits until no session is left: nobody has a file open.
pub async fn wait_sessions(rt: &Rt, engine: &Rc<dyn Engine>) -> Result<()> {
    wait(rt, SESSIONS_END, async || left(engine, &SESSIONS).await).await
}

/// Waits until nothing is left of files and clients but of the one that asks.
pub async fn wait_nothing(rt: &Rt, engine: &Rc<dyn Engine>, me: ClientId) -> Result<()> {
    wait(rt, GONE, async || all(engine, me).await).await
}

/// What there is of files and clients but of the one that asks, in words; a page of each kind at most.
pub async fn all(engine: &Rc<dyn Engine>, me: ClientId) -> Result<Vec<String>> {
    let mut found = left(engine, &ALL).await?;
    let root = records::inode(ROOT_INODE);
    let inodes = records::keys(engine, &records::key(b'I', &[])).await?;
    found.extend(inodes.iter().filter(|k| **k != root).map(|k| say("inodes", k)));
    let clients = records::keys(engine, CLIENTS).await?;
    let mine = [CLIENTS, &me.0.to_be_bytes()].concat();
    found.extend(clients.iter().filter(|k| **k != mine).map(|k| say("clients", k)));
    Ok(found)
}

/// Where mgmtd keeps the sessions of clients (docs/formats/mgmtd.md).
const CLIENTS: &[u8] = b"mgmtd/client/";

async fn left(engine: &Rc<dyn Engine>, kinds: &[(u8, &str)]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (kind, what) in kinds {
        let keys = records::keys(engine, &records::key(*kind, &[])).await?;
        found.extend(keys.iter().map(|k| say(what, k)));
    }
    Ok(found)
}

fn say(what: &str, key: &Key) -> String {
    let hex: String = key.iter().map(|b| format!("{b:02x}")).collect();
    format!("{what}: {hex}")
}

async fn wait(rt: &Rt, limit: Duration, look: impl AsyncFn() -> Result<Vec<String>>) -> Result<()> {
    let until = rt.now() + limit;
    loop {
        let found = look().await?;
        if found.is_empty() {
            return Ok(());
        }
        if rt.now() >= until {
            let what = format!("left in the engine after {limit:?}: {}", found.join(", "));
            return Err(Error::new(Status::Internal, what));
        }
        rt.sleep(LOOK_EVERY).await;
    }
}
