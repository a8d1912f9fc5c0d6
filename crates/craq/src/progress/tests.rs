//! Updates that are refused here or behind us, and disks that hang: who is answered, what is taken back, what ends the target.

use super::*;
use crate::{ChunkBrief, Event, Forwarded, Ticket, Update};
use glowfs_types::routing::{ChainInfo, ChainMember, PublicState};
use glowfs_types::{ChainId, ChainVersion, NodeId, Redundancy, TargetId};

const V: ChainVersion = ChainVersion(5);

/// A store that has nothing.
struct Empty;
impl ChunkView for Empty {
    fn chunk(&self, _: ChunkId) -> ChunkBrief {
        ChunkBrief::default()
    }
    fn has_room(&self) -> bool {
        true
    }
}

fn step(r: &mut Replica, event: Event) -> Vec<Action> {
    let mut out = Vec::new();
    r.step(event, &Empty, &mut out);
    out
}
fn content(ticket: u64, version: u64) -> Event {
    content_under(V, ticket, version)
}
fn content_under(chain_version: ChainVersion, ticket: u64, version: u64) -> Event {
    let f = Forwarded {
        chain_version,
        chunk: ChunkId::default(),
        version: ChunkVersion(version),
        base: ChunkVersion(0),
        generation: 0,
        full: true,
        sync: false,
        update: Update::default(),
    };
    Event::Forward(Ticket(ticket), f)
}
fn stages(actions: &[Action]) -> bool {
    actions.iter().any(|a| matches!(a, Action::Stage { .. }))
}
fn forward(actions: &[Action]) -> Option<ForwardId> {
    actions.iter().find_map(|a| match a {
        Action::Forward { id, .. } => Some(*id),
        _ => None,
    })
}

fn chain(first: PublicState, second: PublicState) -> ChainInfo {
    let member = |(i, state)| ChainMember { target: TargetId(i), node: NodeId(i), state };
    ChainInfo {
        id: ChainId(1),
        version: V,
        activated: V,
        activated_serving: Vec::new(),
        members: vec![member((1, first)), member((2, second))],
        redundancy: Redundancy::Replicated,
        preferred: Vec::new(),
        lost: ChainVersion(0),
    }
}
fn replica(target: u64, chain: ChainInfo) -> Replica {
    let mut r = Replica::new(TargetId(target), ChainVersion(0), &[], &[]);
    step(&mut r, Event::Chain(Some(chain)));
    step(&mut r, Event::Adopted(V));
    r
}

/// The only serving target cannot stage an update (no room, or what it builds on is damaged) while another one is being brought
/// up to date: the client hears it, and the chunk goes on.
#[test]
fn what_the_only_server_refuses_is_not_left_pending() {
    let mut r = replica(1, chain(PublicState::Serving, PublicState::Syncing));
    let chunk = ChunkId::default();
    let write = |ticket| {
        let (ticket, update) = (Ticket(ticket), Update::default());
        Event::Update { ticket, chain_version: V, chunk, update }
    };
    for (ticket, status) in [(1, Status::Corrupt), (2, Status::NoSpace)] {
        assert!(stages(&step(&mut r, write(ticket))));
        let refused = step(&mut r, Event::Staged(chunk, ChunkVersion(1), Err(status)));
        assert!(refused.contains(&Action::Reply(Ticket(ticket), Err(status))), "{refused:?}");
        step(&mut r, Event::Discarded(chunk, Ok(())));
    }
    let done = step(&mut r, write(3));
    assert!(stages(&done), "{done:?}");
    let staged = step(&mut r, Event::Staged(chunk, ChunkVersion(1), Ok(())));
    assert!(staged.iter().any(|a| matches!(a, Action::Forward { .. })), "{staged:?}");
}

/// The bytes of an update went wrong on their way to a serving successor, and our own stage is refused: nothing is left to send.
#[test]
fn what_can_neither_be_staged_nor_sent_again_ends_the_target() {
    let mut r = replica(1, chain(PublicState::Serving, PublicState::Serving));
    let (chunk, ticket) = (ChunkId::default(), Ticket(1));
    let update = Event::Update { ticket, chain_version: V, chunk, update: Update::default() };
    let sent = step(&mut r, update);
    let id = forward(&sent).expect("sent as it came");
    let paused = step(&mut r, Event::Answer(id, Err(Status::TimedOut)));
    let Some(&Action::Pause(timer)) = paused.first() else { panic!("{paused:?}") };
    let id = forward(&step(&mut r, Event::Timer(timer))).expect("sent again");
    let paused = step(&mut r, Event::Answer(id, Err(Status::Corrupt)));
    let Some(&Action::Pause(timer)) = paused.first() else { panic!("{paused:?}") };
    step(&mut r, Event::Staged(chunk, ChunkVersion(1), Err(Status::NoSpace)));
    let ended = step(&mut r, Event::Timer(timer));
    assert!(ended.contains(&Action::Failed(Status::NoSpace)), "{ended:?}");
}

/// What an update builds on is damaged here, so those behind it cannot be staged either; the successor's answer to one of those comes first. The
/// reason is the damage: with that the target comes back when its chain goes on without it.
#[test]
fn a_target_ends_for_what_refused_the_first_update() {
    let mut r = replica(1, chain(PublicState::Serving, PublicState::Serving));
    let chunk = ChunkId::default();
    let mut write = |ticket| {
        let (ticket, update) = (Ticket(ticket), Update::default());
        let sent = step(&mut r, Event::Update { ticket, chain_version: V, chunk, update });
        forward(&sent).expect("sent as it came")
    };
    let (_, second) = (write(1), write(2));
    for (version, status) in [(1, Status::Corrupt), (2, Status::VersionGap)] {
        step(&mut r, Event::Staged(chunk, ChunkVersion(version), Err(status)));
    }
    let ended = step(&mut r, Event::Answer(second, Ok(0)));
    assert!(ended.contains(&Action::Failed(Status::Corrupt)), "{ended:?}");
}

/// A disk that hangs never says that a stage ended: who waits is answered all the same, and nobody after that waits.
#[test]
fn nobody_waits_for_a_disk_that_failed() {
    let mut r = replica(1, chain(PublicState::Serving, PublicState::Serving));
    let chunk = ChunkId::default();
    let write = |ticket| {
        let (ticket, update) = (Ticket(ticket), Update::default());
        Event::Update { ticket, chain_version: V, chunk, update }
    };
    assert!(stages(&step(&mut r, write(1))));
    step(&mut r, Event::Read { ticket: Ticket(2), chain_version: V, chunk });
    let refused = |ticket| Action::Reply(Ticket(ticket), Err(Status::NotServing));
    let ended = step(&mut r, Event::DiskFailed);
    assert!(ended.contains(&refused(1)), "{ended:?}");
    assert!(ended.contains(&Action::ReadRefused(Ticket(2), Status::NotServing)), "{ended:?}");
    assert!(ended.contains(&Action::Failed(Status::DiskFailed)), "{ended:?}");
    assert_eq!(step(&mut r, Event::DiskFailed), []);
    assert_eq!(step(&mut r, write(3)), [refused(3)]);
    assert_eq!(step(&mut r, Event::Staged(chunk, ChunkVersion(1), Ok(()))), []);
}

/// A syncing target without room refuses a content. When the same one comes again it must be stored, not taken for a duplicate:
/// the chain commits on the answer, and the target would serve without it.
#[test]
fn what_a_syncing_target_refused_it_has_not() {
    let mut r = replica(2, chain(PublicState::Serving, PublicState::Syncing));
    let (chunk, version) = (ChunkId::default(), ChunkVersion(7));
    assert!(stages(&step(&mut r, content(1, 7))));
    let refused = step(&mut r, Event::Staged(chunk, version, Err(Status::NoSpace)));
    assert!(refused.contains(&Action::Reply(Ticket(1), Err(Status::NoSpace))), "{refused:?}");
    step(&mut r, Event::Discarded(chunk, Ok(())));
    let again = step(&mut r, content(2, 7));
    assert!(stages(&again), "{again:?}");
    let done = step(&mut r, Event::Staged(chunk, version, Ok(())));
    assert!(done.iter().any(|a| matches!(a, Action::Reply(Ticket(2), Ok(_)))), "{done:?}");
    // Now it has it.
    let twice = step(&mut r, content(3, 7));
    assert!(!stages(&twice), "{twice:?}");
    assert!(matches!(twice[..], [Action::Reply(Ticket(3), Ok(_))]), "{twice:?}");
}

/// The second of two writes overtakes the first on its way, and is sent again when that is answered. The successor has no room by then: the client
/// hears it.
#[test]
fn what_came_out_of_order_once_is_refused_for_want_of_room() {
    let mut r = replica(1, chain(PublicState::Serving, PublicState::Serving));
    let chunk = ChunkId::default();
    let mut ids = Vec::new();
    for ticket in 1..=2 {
        let (ticket, update) = (Ticket(ticket), Update::default());
        let sent = step(&mut r, Event::Update { ticket, chain_version: V, chunk, update });
        ids.push(forward(&sent).expect("sent as it came"));
        step(&mut r, Event::Staged(chunk, ChunkVersion(ticket.0), Ok(())));
    }
    assert_eq!(step(&mut r, Event::Answer(ids[1], Err(Status::VersionGap))), []);
    let again = step(&mut r, Event::Answer(ids[0], Ok(0)));
    let again = forward(&again).expect("it is its turn");
    let refused = step(&mut r, Event::Answer(again, Err(Status::NoSpace)));
    assert!(refused.contains(&Action::Reply(Ticket(2), Err(Status::NoSpace))), "{refused:?}");
}

/// ... but not while a copy of it may still be under way: that one may find room.
#[test]
fn what_may_still_arrive_is_not_taken_back() {
    let mut r = replica(1, chain(PublicState::Serving, PublicState::Serving));
    let chunk = ChunkId::default();
    let (ticket, update) = (Ticket(1), Update::default());
    let sent = step(&mut r, Event::Update { ticket, chain_version: V, chunk, update });
    step(&mut r, Event::Staged(chunk, ChunkVersion(1), Ok(())));
    let mut id = forward(&sent).expect("sent as it came");
    for status in [Status::TimedOut, Status::VersionGap, Status::NoSpace] {
        let paused = step(&mut r, Event::Answer(id, Err(status)));
        let [Action::Pause(timer)] = paused[..] else { panic!("{paused:?}") };
        id = forward(&step(&mut r, Event::Timer(timer))).expect("sent again");
    }
}

/// A stage of one chain version ends under the next one, before that is active. What the chain has of the same number then is another content, if
/// those who sent the first one are gone: it must be stored, not taken for a duplicate.
#[test]
fn what_came_under_the_chain_version_before_is_not_received() {
    let syncing = || chain(PublicState::Serving, PublicState::Syncing);
    let mut r = replica(2, syncing());
    let (chunk, version, next) = (ChunkId::default(), ChunkVersion(7), ChainVersion(V.0 + 1));
    assert!(stages(&step(&mut r, content(1, 7))));
    step(&mut r, Event::Chain(Some(ChainInfo { version: next, ..syncing() })));
    step(&mut r, Event::Adopted(next));
    step(&mut r, Event::Staged(chunk, version, Ok(())));
    let active = ChainInfo { version: next, activated: next, ..syncing() };
    let dropped = step(&mut r, Event::Chain(Some(active)));
    assert!(dropped.contains(&Action::Discard(chunk, version)), "{dropped:?}");
    step(&mut r, Event::Discarded(chunk, Ok(())));
    let other = step(&mut r, content_under(next, 2, 7));
    assert!(stages(&other), "{other:?}");
}

/// The store's queue was full for the first of three updates. Those behind it were refused for its sake only, and go at once when it is stored.
#[test]
fn what_came_behind_one_that_found_the_queue_full_does_not_pause() {
    let mut r = replica(1, chain(PublicState::Serving, PublicState::Syncing));
    let chunk = ChunkId::default();
    for ticket in 1..=3 {
        let (ticket, update) = (Ticket(ticket), Update::default());
        step(&mut r, Event::Update { ticket, chain_version: V, chunk, update });
    }
    let mut staged = |version, result| {
        let actions = step(&mut r, Event::Staged(chunk, ChunkVersion(version), result));
        let again = actions.iter().filter_map(|a| match a {
            Action::StageAgain { version, pause, .. } => Some((version.0, *pause)),
            _ => None,
        });
        again.collect::<Vec<_>>()
    };
    assert_eq!(staged(1, Err(Status::Overloaded)), [(1, true)]);
    assert_eq!(staged(2, Err(Status::VersionGap)), []);
    assert_eq!(staged(3, Err(Status::Overloaded)), []);
    assert_eq!(staged(1, Ok(())), [(2, false)]);
    // Full again: now it is that one.
    assert_eq!(staged(2, Err(Status::Overloaded)), [(2, true)]);
    assert_eq!(staged(2, Ok(())), [(3, false)]);
    assert_eq!(staged(3, Ok(())), []);
}
