use crate::{About, Action, ChunkBrief, ChunkView, Event, Forwarded, Replica, Ticket, Update};
use glowfs_types::routing::{ChainInfo, ChainMember, PublicState};
use glowfs_types::{
    ChainId, ChainVersion, ChunkId, ChunkVersion, NodeId, Redundancy, Status, TargetId,
};

/// A store in which each chunk has that version.
struct Has(u64);
impl ChunkView for Has {
    fn chunk(&self, _: ChunkId) -> ChunkBrief {
        let (committed, exists) = (ChunkVersion(self.0), self.0 > 0);
        ChunkBrief { committed, exists, ..ChunkBrief::default() }
    }
    fn has_room(&self) -> bool {
        true
    }
}

const V: ChainVersion = ChainVersion(5);
const CHUNK: ChunkId =
    ChunkId { volume: glowfs_types::VolumeId(1), data: glowfs_types::DataId(1), index: 1 };

fn step(r: &mut Replica, event: Event, has: u64) -> Vec<Action> {
    let mut out = Vec::new();
    r.step(event, &Has(has), &mut out);
    out
}

fn chain(version: u64, activated: u64, states: &[PublicState]) -> ChainInfo {
    let member = |(i, state): (u64, &PublicState)| ChainMember {
        target: TargetId(i),
        node: NodeId(i),
        state: *state,
    };
    ChainInfo {
        id: ChainId(1),
        version: ChainVersion(version),
        activated: ChainVersion(activated),
        activated_serving: Vec::new(),
        members: (1..).zip(states).map(member).collect(),
        redundancy: Redundancy::Replicated,
        preferred: Vec::new(),
        lost: ChainVersion(0),
    }
}

/// The second one learns of the chain in these states, and adopts it.
fn adopt(r: &mut Replica, version: ChainVersion, states: &[PublicState]) -> Vec<Action> {
    step(r, Event::Chain(Some(chain(version.0, version.0, states))), 0);
    step(r, Event::Adopted(version), 0)
}

fn second(states: &[PublicState]) -> Replica {
    let mut r = Replica::new(TargetId(2), ChainVersion(0), &[], &[]);
    adopt(&mut r, V, states);
    r
}

/// A version comes to it through the chain.
fn comes(r: &mut Replica, version: u64) -> Vec<Action> {
    let f = Forwarded {
        chain_version: V,
        chunk: CHUNK,
        version: ChunkVersion(version),
        base: ChunkVersion(version - 1),
        generation: 0,
        full: false,
        sync: false,
        update: Update { vouches: true, ..Update::default() },
    };
    let begun = step(r, Event::Forward(Ticket(version), f), version - 1);
    assert!(begun.iter().any(|a| matches!(a, Action::Stage { .. })), "{begun:?}");
    let staged = Event::Staged(CHUNK, ChunkVersion(version), Ok(()));
    [begun, step(r, staged, version)].concat()
}

/// Somebody has read that version.
fn tell(r: &mut Replica, ticket: u64, version: u64) -> Vec<Action> {
    let (ticket, version) = (Ticket(ticket), ChunkVersion(version));
    step(r, Event::Tell { ticket, chain_version: V, chunk: CHUNK, version }, version.0)
}

fn word(version: u64) -> Event {
    let about = About { chunk: CHUNK, version: ChunkVersion(version), generation: 0 };
    Event::Vouched(V, vec![about])
}

use PublicState::{Offline, Serving, Syncing};

/// A chunk that is written all the time could not be read behind its head: there never was a moment in which nothing waited for a word.
#[test]
fn what_was_read_is_told_whatever_came_since() {
    let mut r = second(&[Serving, Serving]);
    comes(&mut r, 1);
    let asks = |version| Action::AskPredecessor(CHUNK, ChunkVersion(version));
    assert_eq!(tell(&mut r, 11, 1), [asks(1)]);
    comes(&mut r, 2);
    assert_eq!(tell(&mut r, 12, 2), [asks(2)]);
    let asked = |r: &Replica, version| r.unvouched_of(CHUNK, ChunkVersion(version));
    assert_eq!(asked(&r, 1).map(|a| a.version), Some(ChunkVersion(1)), "not of the newest");
    assert_eq!(step(&mut r, word(1), 2), [Action::ReadNow(Ticket(11)), asks(2)]);
    assert_eq!(asked(&r, 1), None);
    comes(&mut r, 3);
    assert_eq!(step(&mut r, word(2), 3), [Action::ReadNow(Ticket(12))]);
    assert_eq!(r.may_tell(V, CHUNK, ChunkVersion(2)), Ok(true));
    assert_eq!(r.may_tell(V, CHUNK, ChunkVersion(3)), Ok(false));
    assert_eq!(tell(&mut r, 13, 3), [asks(3)]);
    let late = step(&mut r, Event::ReadExpired(Ticket(13), CHUNK), 3);
    assert_eq!(late, [Action::ReadRefused(Ticket(13), Status::Pending)]);
    assert_eq!(step(&mut r, word(3), 3), []);
}

/// A chunk that its store refused very often under one chain version could not be read behind its head any more.
#[test]
fn a_word_counts_however_often_the_chunk_was_taken_back() {
    let mut r = second(&[Serving, Serving]);
    let f = Forwarded {
        chain_version: V,
        chunk: CHUNK,
        version: ChunkVersion(1),
        base: ChunkVersion(0),
        generation: 0,
        full: false,
        sync: false,
        update: Update { vouches: true, ..Update::default() },
    };
    for n in 0..=u64::from(u16::MAX) {
        step(&mut r, Event::Forward(Ticket(n), f), 0);
        step(&mut r, Event::Staged(CHUNK, ChunkVersion(1), Err(Status::NoSpace)), 0);
        step(&mut r, Event::Discarded(CHUNK, Ok(())), 0);
    }
    comes(&mut r, 1);
    tell(&mut r, 11, 1);
    let about = r.unvouched_of(CHUNK, ChunkVersion(1)).expect("it came");
    let told = step(&mut r, Event::Vouched(V, vec![about]), 1);
    assert_eq!(told, [Action::ReadNow(Ticket(11))]);
}

/// That a chain version is active is heard when a newer one is known: who waits is told nothing by that.
#[test]
fn nobody_is_told_under_a_view_that_is_over() {
    let mut r = second(&[Serving, Serving]);
    comes(&mut r, 1);
    tell(&mut r, 11, 1);
    let alone = |version, activated| chain(version, activated, &[Offline, Serving]);
    step(&mut r, Event::Chain(Some(alone(6, 5))), 1);
    assert_eq!(step(&mut r, Event::Adopted(ChainVersion(6)), 1), [Action::Report]);
    step(&mut r, Event::Chain(Some(alone(7, 5))), 1);
    assert_eq!(step(&mut r, Event::Chain(Some(alone(6, 6))), 1), []);
    step(&mut r, Event::Adopted(ChainVersion(7)), 1);
    let told = step(&mut r, Event::Chain(Some(alone(7, 7))), 1);
    assert_eq!(told, [Action::ReadNow(Ticket(11))]);
}

/// What comes all the time under load kept a resync from its end.
#[test]
fn a_resync_waits_for_the_word_on_what_came_before_it_only() {
    let mut r = second(&[Serving, Serving, Syncing]);
    let sent = comes(&mut r, 1);
    assert!(r.may_finish_sync(), "the third one gets it through the chain");
    let id = sent.iter().find_map(|a| match a {
        Action::Forward { id, .. } => Some(*id),
        _ => None,
    });
    step(&mut r, Event::Answer(id.expect("sent when it was staged"), Ok(0)), 0);
    step(&mut r, Event::Committed(CHUNK, ChunkVersion(1), Ok(())), 1);
    assert!(r.is_quiet());
    adopt(&mut r, ChainVersion(6), &[Serving, Serving, Syncing]);
    assert!(!r.may_finish_sync(), "a resync would bring it, and nothing would wait for the word");
    let about = About { chunk: CHUNK, version: ChunkVersion(1), generation: 0 };
    step(&mut r, Event::Vouched(ChainVersion(6), vec![about]), 1);
    assert!(r.may_finish_sync());
}

#[test]
fn who_has_failed_or_is_taken_out_tells_nothing() {
    let mut r = second(&[Serving, Serving]);
    comes(&mut r, 1);
    tell(&mut r, 11, 1);
    let refused = Action::ReadRefused(Ticket(11), Status::NotServing);
    let mut out = r.clone();
    assert!(step(&mut out, Event::DiskFailed, 1).contains(&refused));
    assert_eq!(out.may_tell(V, CHUNK, ChunkVersion(1)), Err(Status::NotServing));
    assert!(adopt(&mut r, ChainVersion(6), &[Serving, Offline]).contains(&refused));
    assert_eq!(r.may_tell(V, CHUNK, ChunkVersion(1)), Err(Status::WrongChainVersion));
    // What it had taken note of goes with that, and what was read before stays untold.
    adopt(&mut r, ChainVersion(7), &[Serving, Syncing]);
    assert_eq!(r.unvouched_chunks(), 0);
    assert_eq!(tell(&mut r, 12, 1), [Action::ReadRefused(Ticket(12), Status::WrongChainVersion)]);
}

/// What is said of a chain version counts under the next one, too, and under that a member of an older release may serve.
#[test]
fn nobody_says_for_one_that_is_brought_up_to_date_that_it_waits() {
    assert!(second(&[Serving, Serving]).shows_nothing_early(), "nobody is behind");
    let mut r = second(&[Serving, Serving, Syncing]);
    assert!(!r.shows_nothing_early(), "it has not said so");
    step(&mut r, Event::SuccessorAsks(V), 0);
    assert!(r.shows_nothing_early());
}
