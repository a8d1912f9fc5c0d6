//! What an operator is told about a chain that waits, and the forced way out.

use crate::{Chain, Proof};
use glowfs_types::routing::PublicState;
use glowfs_types::{Error, Result, Status, TargetId};
use std::fmt::Write;

/// What is said of a member whose store was put back ([`MemberRecord::put_back`](crate::MemberRecord)).
const PUT_BACK: &str =
    "an older state of its disk was put back, and may lack what was acknowledged since";

/// Why the chain is as it is, for people.
pub fn explain(chain: &Chain) -> String {
    let info = &chain.info;
    let mut out =
        format!("chain {} version {} (active: {})\n", info.id, info.version, info.activated);
    for m in &info.members {
        let record = chain.records.get(&m.target).copied().unwrap_or_default();
        let proof = match record.proof {
            _ if record.put_back => PUT_BACK,
            Proof::Holds => "holds every acknowledged write",
            Proof::Killed => "held every acknowledged write when its process was killed",
            Proof::Suspect => "held every acknowledged write before it was interrupted",
            Proof::None => "writes may have been acknowledged without it",
        };
        // Writing into a String cannot fail.
        let _ = writeln!(
            out,
            "  target {} on node {}: {}, last serving in version {}; {proof}",
            m.target, m.node, m.state, record.served
        );
    }
    // First: where nobody proves anything, nothing goes on by itself, whatever was put back.
    if info.head().is_none() && chain.records.values().all(|r| r.proof == Proof::None) {
        if chain.restored() {
            out.push_str(
                "  its targets know of newer versions than the metadata: older metadata was put back, or their disks hold a former file system (empty them only if this one has nothing on them yet)\n",
            );
        }
        out.push_str(
            "  nobody serves, and of no target is known that it holds every acknowledged write: it goes on when one is forced; explain-force says what that loses\n",
        );
    } else if chain.restored() {
        out.push_str(
            "  older metadata was put back: it went on since, and goes on by itself when all are there that hold every acknowledged write as far as is known\n",
        );
    } else if info.head().is_none() {
        out.push_str(
            "  nobody serves: it goes on by itself when a target that holds every acknowledged write returns\n",
        );
    }
    out
}

/// Exactly what would be lost if `target` were forced to serve.
pub fn explain_force(chain: &Chain, target: TargetId) -> Result<String> {
    let record = chain.records.get(&target).ok_or_else(|| not_a_member(chain, target))?;
    let info = &chain.info;
    if info.head().is_some() {
        return Ok(format!("chain {} is serving; there is nothing to force", info.id));
    }
    let others: Vec<String> = info
        .members
        .iter()
        .filter(|m| m.target != target)
        .filter(|m| chain.records.get(&m.target).is_some_and(|r| r.proof != Proof::None))
        .map(|m| m.target.to_string())
        .collect();
    Ok(match record.proof {
        Proof::Holds | Proof::Killed | Proof::Suspect if chain.restored() => format!(
            "target {target} holds every acknowledged write as far as the metadata that was put back tells: what chain {} acknowledged \
             since then under versions of which nobody here knows is lost; the members that are away may have it",
            info.id
        ),
        Proof::Holds => format!("target {target} holds every acknowledged write; nothing is lost"),
        Proof::Killed => format!(
            "target {target} held every acknowledged write until its process was killed, and its machine went on: nothing is lost \
             unless its disk failed then"
        ),
        Proof::Suspect => format!(
            "target {target} held every acknowledged write until it was interrupted: writes that it had not flushed \
             to its disk by then are lost where they were; targets that may still have them: {}",
            if others.is_empty() { "none".into() } else { others.join(", ") }
        ),
        Proof::None if record.put_back => format!(
            "of target {target} {PUT_BACK}: it has adopted chain versions up to that time only, and what chain {} acknowledged since then (up to version {}) is \
             lost; targets that have it: {}",
            info.id,
            info.activated,
            if others.is_empty() { "none".into() } else { others.join(", ") }
        ),
        Proof::None => format!(
            "target {target} was last serving in version {}; every write that chain {} acknowledged since then (up to \
             version {}) is lost; targets that have them: {}",
            record.served,
            info.id,
            info.activated,
            if others.is_empty() { "none".into() } else { others.join(", ") }
        ),
    })
}

/// Makes `target` the only serving member, whatever is lost. All others are brought up to date from it.
pub fn force(chain: &Chain, target: TargetId) -> Result<Chain> {
    if !chain.records.contains_key(&target) {
        return Err(not_a_member(chain, target));
    }
    if chain.info.head().is_some() {
        return Err(Error::new(
            Status::InvalidArgument,
            format!("chain {} is serving; there is nothing to force", chain.info.id),
        ));
    }
    let mut next = chain.clone();
    next.begin_version(chain.info.version);
    for m in &mut next.info.members {
        m.state = if m.target == target { PublicState::Serving } else { PublicState::Offline };
    }
    next.info.members.sort_by_key(|m| m.target != target);
    if chain.restored() {
        // What the stores have adopted counts no more.
        next.info.activated_serving = vec![target];
    }
    let proof = chain.records.get(&target).map(|r| r.proof);
    // Of a record that was put back nobody knows what came after it.
    if chain.restored() || !matches!(proof, Some(Proof::Holds | Proof::Killed)) {
        next.info.lost = next.info.version;
    }
    for (id, record) in &mut next.records {
        record.brought = None;
        record.proof = if *id == target { Proof::Holds } else { Proof::None };
        if *id == target {
            // Called upon: it stays.
            record.retired = false;
            record.put_back = false;
        }
    }
    next.note_serving();
    Ok(next)
}

fn not_a_member(chain: &Chain, target: TargetId) -> Error {
    Error::new(
        Status::InvalidArgument,
        format!("target {target} is not a member of chain {}", chain.info.id),
    )
}
