//! `fsck`: checks the whole metadata, and mends it with `--repair`.

use crate::output::Output;
use crate::progress::ProgressLine;
use anyhow::{Context, Result, bail};
use glowfs_client::Client;
use glowfs_namespace::fsck::{self, Progress, Report};
use glowfs_types::routing::{NodeStatus, Role, RoutingInfo};
use glowfs_types::wire::fsck::{Finding, Fsck, FsckReply};
use glowfs_types::wire::method;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, IsTerminal};

/// Checks after a repair; each repair can show what another problem has hidden.
const ROUNDS: u32 = 8;
/// Findings shown to people, of each kind.
const SHOWN: usize = 20;

/// What `fsck` is asked to do.
#[derive(Clone, Copy)]
pub struct Wish {
    /// Mend what is found.
    pub repair: bool,
    /// Without a question.
    pub yes: bool,
}

#[derive(Serialize)]
struct Row {
    problem: &'static str,
    inode: u64,
    text: String,
    cure: String,
}

#[derive(Serialize, Default)]
struct Shown {
    records: u64,
    inodes: u64,
    directories: u64,
    names: u64,
    /// What is wrong now.
    problems: Vec<Row>,
    /// Problems beyond those.
    more: u64,
    /// Inodes that kept changing while they were looked at, or have too many names.
    undecided: Vec<u64>,
    /// What was wrong and is mended.
    mended: u64,
    /// What could not be mended, and why.
    failed: Vec<String>,
}

impl Shown {
    fn take(&mut self, report: &Report) {
        self.records = report.records;
        self.inodes = report.inodes;
        self.directories = report.directories;
        self.names = report.names;
        self.more = report.more;
        self.undecided = report.undecided.iter().map(|i| i.0).collect();
        let row = |f: &Finding| Row {
            problem: f.problem.name(),
            inode: f.inode.0,
            text: f.text.clone(),
            cure: f.cure.clone(),
        };
        self.problems = report.findings.iter().map(row).collect();
    }
    fn wrong(&self) -> u64 {
        self.problems.len() as u64 + self.more
    }
}

/// `fsck`. An error if something is wrong at the end.
pub async fn run(out: Output, client: &Client, routing: &RoutingInfo, wish: Wish) -> Result<()> {
    let metas = routing.nodes.values().filter(|n| n.role == Role::Meta);
    let mut active = metas.filter(|n| n.status == NodeStatus::Active).map(|n| n.id);
    let node = active.next().context("no metadata service is active")?;
    let ask = async |q: Fsck| client.node_call::<_, FsckReply>(node, method::FSCK, &q).await;
    let mut line = ProgressLine::new(client.rt());
    let mut progress = |p: Progress| line.show(p.step, p.done, p.of);
    let mut shown = Shown::default();
    // What was agreed to. A repair can show what another problem has hidden: that is asked for anew.
    let mut agreed = BTreeSet::new();
    for round in 0..ROUNDS {
        let report = fsck::check(client.rt(), &ask, &mut progress).await?;
        shown.take(&report);
        let curable = report.findings.iter().filter(|f| !f.cure.is_empty()).count();
        if !wish.repair || curable == 0 || round + 1 == ROUNDS {
            break;
        }
        let new = not_agreed(&report.findings, &agreed);
        if !wish.yes && !new.is_empty() {
            eprint!("{}", people(&shown));
            if !agrees(curable)? {
                break;
            }
            agreed.extend(new);
        }
        let done = fsck::mend(&ask, &report.findings, &mut progress).await?;
        shown.mended += done.mended;
        shown.failed = done.failed.iter().map(|(f, e)| format!("{}: {e}", f.text)).collect();
        if done.mended == 0 && done.changed == 0 {
            break;
        }
    }
    drop(line);
    out.either(&shown, people)?;
    verdict(&shown, wish)
}

/// The cures that nobody has agreed to yet.
fn not_agreed(findings: &[Finding], agreed: &BTreeSet<(String, String)>) -> Vec<(String, String)> {
    let curable = findings.iter().filter(|f| !f.cure.is_empty());
    let all = curable.map(|f| (f.text.clone(), f.cure.clone()));
    all.filter(|one| !agreed.contains(one)).collect()
}

fn verdict(shown: &Shown, wish: Wish) -> Result<()> {
    if shown.wrong() > 0 {
        let curable = shown.problems.iter().filter(|r| !r.cure.is_empty()).count();
        let way = if wish.repair || curable == 0 { "" } else { "; --repair mends them" };
        bail!("{} problems, {curable} of them can be mended{way}", shown.wrong());
    }
    match shown.undecided.len() {
        0 => Ok(()),
        n => Err(NotDecided(n).into()),
    }
}

/// Nothing wrong was found, but of so many inodes it is not known.
#[derive(Debug, thiserror::Error)]
#[error(
    "nothing wrong was found, but {0} inodes were not decided, for they kept changing or have very many names: check again"
)]
pub struct NotDecided(pub usize);

fn agrees(curable: usize) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("nobody to ask whether {curable} problems shall be mended; --yes mends them");
    }
    eprint!("mend {curable} problems as said? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "yes"))
}

fn people(s: &Shown) -> String {
    let mut text = format!(
        "{} records: {} inodes, {} of them directories, {} names\n",
        s.records, s.inodes, s.directories, s.names
    );
    let mut kinds: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in &s.problems {
        kinds.entry(row.problem).or_default().push(row);
    }
    for (kind, rows) in kinds {
        for r in rows.iter().take(SHOWN) {
            let cure = if r.cure.is_empty() { "cannot be mended here" } else { &r.cure };
            text += &format!("{kind}: {} -> {cure}\n", r.text);
        }
        if rows.len() > SHOWN {
            text += &format!("{kind}: {} more (all with --json)\n", rows.len() - SHOWN);
        }
    }
    if s.more > 0 {
        text += &format!("{} more problems: mend these first\n", s.more);
    }
    if !s.undecided.is_empty() {
        let n = s.undecided.len();
        text += &format!(
            "{n} inodes were not decided, for they kept changing or have very many names; check again\n"
        );
    }
    if s.mended > 0 {
        text += &format!("{} problems mended\n", s.mended);
    }
    for f in &s.failed {
        text += &format!("not mended: {f}\n");
    }
    text + if s.wrong() == 0 && s.undecided.is_empty() { "nothing is wrong\n" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_decided_is_not_called_sound() {
        let wish = Wish { repair: false, yes: false };
        let mut shown = Shown::default();
        assert!(verdict(&shown, wish).is_ok() && people(&shown).contains("nothing is wrong"));
        shown.undecided = vec![7, 9];
        assert!(!people(&shown).contains("nothing is wrong"), "{}", people(&shown));
        let e = verdict(&shown, wish).expect_err("not known");
        assert_eq!(crate::exit_code(&e), 3, "{e}");
        shown.more = 1;
        let e = verdict(&shown, wish).expect_err("wrong");
        assert_eq!(crate::exit_code(&e), 1, "what is wrong comes first: {e}");
    }

    #[test]
    fn what_nobody_has_been_shown_is_asked_for() {
        let one = |text: &str, cure: &str| Finding {
            text: text.into(),
            cure: cure.into(),
            ..Finding::default()
        };
        let mut agreed = BTreeSet::new();
        let first = [one("a", "b"), one("not to be mended", "")];
        let new = not_agreed(&first, &agreed);
        assert_eq!(new, [("a".into(), "b".into())]);
        agreed.extend(new);
        assert!(not_agreed(&first, &agreed).is_empty());
        let second = [one("a", "b"), one("a", "its contents go")];
        assert_eq!(not_agreed(&second, &agreed).len(), 1);
    }
}
