//! The trash: `trash list|restore|purge`.

use crate::output::{Output, bytes, plain};
use anyhow::{Result, anyhow, bail};
use glowfs_client::Client;
use glowfs_types::InodeId;
use glowfs_types::wire::meta::Name;
use glowfs_types::wire::trash::{Trash, TrashEntry, TrashId, TrashWish};
use serde::Serialize;
use std::collections::BTreeSet;

/// So many files are asked for one by one, each with a page of what comes after it; of more the whole list is read.
const FEW_IDS: usize = 16;

/// Which files of the trash are meant.
pub struct Which<'a> {
    /// These.
    pub ids: &'a [TrashId],
    /// All that were below this path.
    pub below: Option<String>,
}

#[derive(Serialize)]
struct Row {
    id: String,
    path: String,
    length: u64,
    uid: u32,
    removed: i64,
    until: u64,
}

#[derive(Serialize)]
struct Done {
    id: String,
    path: String,
    done: bool,
    problem: Option<String>,
}

fn path_of(e: &TrashEntry) -> String {
    if e.path.is_empty() && e.name.is_empty() {
        return "? (its record cannot be read; `restore --to PATH` puts it back)".to_owned();
    }
    if e.path.is_empty() {
        return format!("?/{} (of directory {})", String::from_utf8_lossy(&e.name), e.parent);
    }
    String::from_utf8_lossy(&e.path).into_owned()
}

/// Refuses what was hardly meant: a path that is empty (as of a variable that is not set) would take in everything, and so
/// does `/`, which is refused where `everything` wants a word of its own.
fn check(which: &Which<'_>, everything: Option<&str>) -> Result<()> {
    let Some(below) = &which.below else { return Ok(()) };
    if below.is_empty() {
        bail!("--below has an empty path (a variable that is not set?): say which directory");
    }
    if let Some(word) = everything
        && below.trim_matches('/').is_empty()
    {
        bail!("--below {below} is everything: if you mean that, say {word} instead");
    }
    Ok(())
}

/// The id after which a list begins with this one, if it is there.
fn before(id: TrashId) -> Option<TrashId> {
    let TrashId { until, inode } = id;
    let earlier = || Some(TrashId { until: until.checked_sub(1)?, inode: InodeId(u64::MAX) });
    match inode.0.checked_sub(1) {
        Some(inode) => Some(TrashId { until, inode: InodeId(inode) }),
        None => earlier(),
    }
}

/// A file by its id, whatever else is in the trash.
async fn one(client: &Client, id: TrashId) -> Result<TrashEntry> {
    let page = client.trash(Trash { id: before(id), ..Trash::default() }).await?;
    let found = page.entries.into_iter().next().filter(|e| e.id == id);
    found.ok_or_else(|| not_there(id))
}

fn not_there(id: TrashId) -> anyhow::Error {
    anyhow!("{id} is not in the trash; see `glowfs admin trash list`")
}

async fn listed(client: &Client) -> Result<Vec<TrashEntry>> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = client.trash(Trash { id: after, ..Trash::default() }).await?;
        after = page.entries.last().map(|e| e.id);
        found.extend(page.entries);
        if !page.more || after.is_none() {
            return Ok(found);
        }
    }
}

async fn all(client: &Client, which: &Which<'_>) -> Result<Vec<TrashEntry>> {
    let ids: BTreeSet<_> = which.ids.iter().copied().collect();
    let mut found = Vec::new();
    if ids.is_empty() || ids.len() > FEW_IDS {
        found = listed(client).await?;
        found.retain(|e| ids.is_empty() || ids.contains(&e.id));
        let there: BTreeSet<_> = found.iter().map(|e| e.id).collect();
        if let Some(missing) = ids.iter().find(|id| !there.contains(id)) {
            return Err(not_there(*missing));
        }
    } else {
        for id in ids {
            found.push(one(client, id).await?);
        }
    }
    let below = which.below.as_ref().map(|b| format!("/{}", b.trim_matches('/')));
    let inside = |path: &[u8]| {
        below.as_ref().is_none_or(|b| {
            let rest = path.strip_prefix(b.trim_end_matches('/').as_bytes());
            rest.is_some_and(|r| r.is_empty() || r[0] == b'/')
        })
    };
    found.retain(|e| inside(&e.path));
    Ok(found)
}

/// `trash list`.
pub async fn list(out: Output, client: &Client, which: Which<'_>) -> Result<()> {
    check(&which, None)?;
    let found = all(client, &which).await?;
    let rows: Vec<Row> = found
        .iter()
        .map(|e| Row {
            id: e.id.to_string(),
            path: path_of(e),
            length: e.len,
            uid: e.uid,
            removed: e.removed.secs,
            until: e.id.until,
        })
        .collect();
    out.either(&rows, |rows| {
        let mut text = String::new();
        for r in rows {
            text += &format!("{}  {}  uid {}  {}\n", r.id, bytes(r.length), r.uid, plain(&r.path));
        }
        text + &format!("{} files\n", rows.len())
    })
}

/// `trash restore`: puts files back; with `to` one file, to that path.
pub async fn restore(
    out: Output,
    client: &Client,
    which: Which<'_>,
    to: Option<&str>,
    dry_run: bool,
) -> Result<()> {
    if which.ids.is_empty() && which.below.is_none() {
        bail!("say what: ids, as `trash list` shows them, or --below PATH");
    }
    check(&which, None)?;
    let found = all(client, &which).await?;
    if to.is_some() && found.len() != 1 {
        bail!("--to takes one file; these are {}", found.len());
    }
    let to = to.map(|t| t.as_bytes().to_vec().into());
    each(out, client, found, TrashWish::Restore, to, dry_run).await
}

/// `trash purge`: removes files for good; without `yes` it only says which.
pub async fn purge(
    out: Output,
    client: &Client,
    which: Which<'_>,
    all_of_it: bool,
    yes: bool,
) -> Result<()> {
    if which.ids.is_empty() && which.below.is_none() && !all_of_it {
        bail!("say what: ids, as `trash list` shows them, --below PATH, or --all");
    }
    check(&which, Some("--all"))?;
    let found = all(client, &which).await?;
    each(out, client, found, TrashWish::Purge, None, !yes).await
}

async fn each(
    out: Output,
    client: &Client,
    found: Vec<TrashEntry>,
    wish: TrashWish,
    to: Option<Name>,
    dry_run: bool,
) -> Result<()> {
    let mut rows = Vec::new();
    for e in found {
        let mut row = Done { id: e.id.to_string(), path: path_of(&e), done: false, problem: None };
        if !dry_run {
            let ask = Trash { wish, id: Some(e.id), to: to.clone() };
            match client.trash(ask).await {
                Ok(reply) => {
                    row.done = true;
                    if !reply.path.is_empty() {
                        row.path = String::from_utf8_lossy(&reply.path).into_owned();
                    }
                }
                Err(e) => row.problem = Some(e.to_string()),
            }
        }
        rows.push(row);
    }
    let failed = rows.iter().filter(|r| r.problem.is_some()).count();
    out.either(&rows, |rows| {
        let mut text = String::new();
        for r in rows {
            let outcome = match (&r.problem, r.done, wish) {
                (Some(problem), ..) => problem.as_str(),
                (_, true, TrashWish::Purge) => "gone",
                (_, true, _) => "restored",
                (_, false, TrashWish::Purge) => "would go for good; --yes does it",
                _ => "would be restored",
            };
            text += &format!("{}  {}: {outcome}\n", r.id, plain(&r.path));
        }
        text + &format!("{} files\n", rows.len())
    })?;
    if failed > 0 {
        bail!("{failed} of {} failed", rows.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One by its id is asked for by the page that begins with it: others may be in the way of a list of all.
    #[test]
    fn a_list_from_before_an_id_begins_with_it() {
        let id = |until, inode| TrashId { until, inode: InodeId(inode) };
        for (id, expected) in [
            (id(7, 9), Some(id(7, 8))),
            (id(7, 0), Some(id(6, u64::MAX))),
            (id(0, 1), Some(id(0, 0))),
            (id(0, 0), None),
        ] {
            assert_eq!(before(id), expected);
            assert!(expected < Some(id));
        }
    }

    /// `--below "$DIR"` without DIR is not the whole trash.
    #[test]
    fn everything_is_meant_only_if_it_is_said() {
        let below = |b: Option<&str>| Which { ids: &[], below: b.map(str::to_owned) };
        for everything in [None, Some("--all")] {
            assert!(check(&below(Some("")), everything).is_err());
            for fine in [None, Some("/a"), Some("a"), Some("/a/b/")] {
                check(&below(fine), everything).expect("a directory");
            }
        }
        for root in ["/", "//"] {
            let e = check(&below(Some(root)), Some("--all")).expect_err("everything");
            assert!(e.to_string().contains("say --all"), "{e}");
            check(&below(Some(root)), None).expect("a restore of everything hurts nobody");
        }
    }
}
