//! Linearizability of names that many clients change, from a recorded history.
//!
//! Names of several directories are one object, for a rename moves a file from one to another at once; its state is what each name leads to. The judge searches an order of all operations
//! that explains each answer and keeps to time (Wing and Gong, «Testing and verifying concurrent objects», 1993; with what was tried already remembered, as Lowe has it). Whoever has no answer yet, or never gets one,
//! may have done what it asked for at any time since. Answers say which inode they are about, and each is made once, so there are few orders to try: of some hundred operations the search looks at
//! some thousand places, and is given up, which counts as a failure, at [`PLACES_MAX`].

use std::collections::HashSet;

/// Places in the search, at most.
const PLACES_MAX: usize = 1_000_000;
/// Operations without an answer, at most: a bit each.
const OPEN_MAX: usize = 64;
/// The moment of something that has not ended.
const NEVER: u64 = u64::MAX;
/// What a name leads to that nobody has seen: of the operation of that number.
const UNSEEN: u64 = 1 << 63;
/// What a name leads to of which nobody knows: something, or anything, nothing included.
const SOMETHING: u64 = u64::MAX - 1;
const ANYTHING: u64 = u64::MAX;

/// What was asked; names are numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A file, if there is none of that name.
    Make(usize),
    /// That a name goes.
    Unlink(usize),
    /// That a file is called by another name, in place of whatever has it.
    Rename(usize, usize),
    /// Where a name leads.
    Lookup(usize),
    /// Where these names lead, all those of a directory.
    List(Vec<usize>),
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Made, as this inode.
    Made(u64),
    /// Removed, or renamed.
    Done,
    /// The name was there already, or it was not there.
    Refused,
    /// Where the names lead.
    Found(Vec<Option<u64>>),
}

#[derive(Clone, Debug)]
struct Op {
    begin: u64,
    end: u64,
    asked: Asked,
    answer: Option<Answer>,
}

impl Op {
    /// It has told how things were, and changed nothing.
    fn only_tells(&self) -> bool {
        matches!(self.answer, Some(Answer::Refused | Answer::Found(_)))
    }
    /// It tells nothing any more.
    fn forget(&mut self) {
        (self.asked, self.answer) = (Asked::List(Vec::new()), Some(Answer::Found(Vec::new())));
    }
    fn may_change(&self) -> bool {
        !matches!(self.asked, Asked::Lookup(_) | Asked::List(_))
    }
}

/// What each name leads to; 0: nothing.
type State = Vec<u64>;

/// Whether a name may lead there, by what is known of it.
fn may_be(known: u64, told: u64) -> bool {
    known == told || known == ANYTHING || (known == SOMETHING && told != 0)
}

/// Where the search is.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    /// So many of the answered operations, in the order in which they began, have happened; and these behind them.
    first: usize,
    more: Vec<usize>,
    /// Of those without an answer, which have.
    open: u64,
    state: State,
}

/// The operations on some names, none of which leads anywhere in the beginning. Moments are ticks: numbers in the order in which things happened.
#[derive(Clone, Debug)]
pub struct NameHistory {
    names: usize,
    ops: Vec<Op>,
    /// What was begun before this moment may tell of what is gone ([`NameHistory::lose_unacknowledged`]).
    lost: u64,
    /// The same, and what it has done may be gone as well ([`NameHistory::lose_answered`]).
    undone: u64,
    /// What the names lead to in the beginning.
    start: u64,
}

impl NameHistory {
    /// Nothing happened yet.
    pub fn new(names: usize) -> Self {
        Self { names, ops: Vec::new(), lost: 0, undone: 0, start: 0 }
    }
    /// Something is asked for; the number of the operation.
    pub fn begin(&mut self, asked: Asked, now: u64) -> usize {
        self.ops.push(Op { begin: now, end: NEVER, asked, answer: None });
        self.ops.len() - 1
    }
    /// It is answered.
    pub fn end(&mut self, op: usize, answer: Answer, now: u64) {
        let (lost, undone) = (self.lost, self.undone);
        let Some(op) = self.ops.get_mut(op) else { return };
        if op.begin < undone && op.may_change() {
            // It may have happened before that, and be gone; or it was done again.
            return;
        }
        (op.end, op.answer) = (now, Some(answer));
        if op.begin < lost && op.only_tells() {
            // It may tell of what was lost.
            op.forget();
        }
    }
    /// What holds the names lost what was not acknowledged yet, though it may have been seen: it may be done again, by its repetition, or be there still. All that was acknowledged is
    /// there. What was heard of names since the first of those operations began does not count any more; until now it is judged.
    pub fn lose_unacknowledged(&mut self, now: u64) -> Result<(), String> {
        let verdict = self.check();
        self.lost = now;
        let under_way = |o: &&Op| o.end == NEVER && o.may_change();
        if let Some(since) = self.ops.iter().filter(under_way).map(|o| o.begin).min() {
            for o in self.ops.iter_mut().filter(|o| o.end != NEVER && o.end > since) {
                if o.only_tells() {
                    o.forget();
                }
            }
        }
        verdict
    }
    /// The same where what was acknowledged may be gone as well: until now it is judged, and from now on names lead to anything until somebody tells. (That what is gone are the newest
    /// changes is judged where a client is alone: `names`.)
    pub fn lose_answered(&mut self, now: u64) -> Result<(), String> {
        let verdict = self.check();
        (self.lost, self.undone, self.start) = (now, now, ANYTHING);
        self.ops.iter_mut().filter(|o| o.end != NEVER).for_each(Op::forget);
        verdict
    }
    /// Operations that may have changed a name while another one did so: without them nothing is proven.
    pub fn contended(&self) -> usize {
        let mut spans: Vec<_> =
            self.ops.iter().filter(|o| o.may_change()).map(|o| (o.begin, o.end)).collect();
        spans.sort_unstable();
        spans.windows(2).filter(|w| w[1].0 < w[0].1).count()
    }
    /// What is wrong, if anything.
    pub fn check(&self) -> Result<(), String> {
        Search::new(self)?.run()
    }
}

struct Search<'a> {
    answered: Vec<&'a Op>,
    open: Vec<&'a Op>,
    /// Inodes that were seen, and that nobody was told to have made.
    strangers: Vec<u64>,
    start: State,
}

impl<'a> Search<'a> {
    fn new(history: &'a NameHistory) -> Result<Self, String> {
        let (mut answered, mut open): (Vec<&Op>, Vec<&Op>) =
            history.ops.iter().partition(|o| o.end != NEVER);
        answered.sort_by_key(|o| o.begin);
        // Who only asked how things are, and was not told, says nothing.
        open.retain(|o| o.may_change());
        if open.len() > OPEN_MAX {
            return Err(format!("{} operations have no answer", open.len()));
        }
        let told = |o: &&Op| -> Vec<u64> {
            match &o.answer {
                Some(Answer::Found(all)) => all.iter().flatten().copied().collect(),
                _ => Vec::new(),
            }
        };
        let made: HashSet<u64> = answered
            .iter()
            .filter_map(
                |o| if let Some(Answer::Made(inode)) = o.answer { Some(inode) } else { None },
            )
            .collect();
        let mut strangers: Vec<u64> =
            answered.iter().flat_map(told).filter(|i| !made.contains(i)).collect();
        strangers.sort_unstable();
        strangers.dedup();
        Ok(Self { answered, open, strangers, start: vec![history.start; history.names] })
    }

    /// The states after an operation, if it can come now.
    fn after(&self, op: &Op, number: usize, state: &State) -> Vec<State> {
        let with = |changes: &[(usize, u64)]| {
            let mut next = state.clone();
            changes.iter().for_each(|(name, to)| next[*name] = *to);
            vec![next]
        };
        let if_so = |so: bool, changes: &[(usize, u64)]| if so { with(changes) } else { vec![] };
        let nothing = |n: &usize| matches!(state[*n], 0 | ANYTHING);
        let something = |n: &usize| state[*n] != 0;
        // That of which nobody knows what it is.
        let some = |n: &usize| if state[*n] == ANYTHING { SOMETHING } else { state[*n] };
        match (&op.asked, &op.answer) {
            (Asked::Make(n), Some(Answer::Made(inode))) => if_so(nothing(n), &[(*n, *inode)]),
            (Asked::Make(n), Some(Answer::Refused)) => if_so(something(n), &[(*n, some(n))]),
            (Asked::Make(n), None) if nothing(n) => {
                let made = self.strangers.iter().copied().chain([UNSEEN | number as u64]);
                made.filter(|i| !state.contains(i)).flat_map(|i| with(&[(*n, i)])).collect()
            }
            (Asked::Unlink(n), Some(Answer::Done) | None) => if_so(something(n), &[(*n, 0)]),
            (Asked::Rename(from, to), Some(Answer::Done) | None) => {
                if_so(something(from), &[(*from, 0), (*to, some(from))])
            }
            (Asked::Unlink(n) | Asked::Rename(n, _), Some(Answer::Refused)) => {
                if_so(nothing(n), &[(*n, 0)])
            }
            (Asked::Lookup(n), Some(Answer::Found(found))) => {
                let told = found.first().map(|f| f.unwrap_or(0));
                told.map_or_else(Vec::new, |f| if_so(may_be(state[*n], f), &[(*n, f)]))
            }
            (Asked::List(all), Some(Answer::Found(found))) => {
                let told = || all.iter().zip(found).map(|(n, f)| (*n, f.unwrap_or(0)));
                let changes: Vec<_> = told().collect();
                if_so(told().all(|(n, f)| may_be(state[n], f)), &changes)
            }
            // What is no answer to that question.
            _ => vec![],
        }
    }

    fn run(&self) -> Result<(), String> {
        let start = Place { first: 0, more: Vec::new(), open: 0, state: self.start.clone() };
        let (mut known, mut stack) = (HashSet::from([start.clone()]), vec![start]);
        let mut farthest: Option<Place> = None;
        while let Some(place) = stack.pop() {
            if place.first == self.answered.len() {
                return Ok(());
            }
            if known.len() > PLACES_MAX {
                return Err(format!("not decided after {PLACES_MAX} places"));
            }
            // What was pushed last is tried first: without need nothing happens that was never answered.
            for next in self.next(&place) {
                if known.insert(next.clone()) {
                    stack.push(next);
                }
            }
            let far = |p: &Place| (p.first, p.more.len());
            if farthest.as_ref().is_none_or(|f| far(f) < far(&place)) {
                farthest = Some(place);
            }
        }
        Err(farthest.map_or_else(String::new, |f| self.story(&f)))
    }

    /// Where the search can go from a place.
    fn next(&self, place: &Place) -> Vec<Place> {
        let left = || (place.first..self.answered.len()).filter(|i| !place.more.contains(i));
        // Of those that are left, one comes first that began before any of them ended.
        let mut first_end = NEVER;
        let window: Vec<usize> = left()
            .take_while(|i| {
                let op = self.answered[*i];
                let comes = op.begin < first_end;
                first_end = first_end.min(op.end);
                comes
            })
            .collect();
        let mut out = Vec::new();
        for (bit, op) in self.open.iter().enumerate() {
            if place.open & 1 << bit == 0 && op.begin < first_end {
                let states = self.after(op, bit, &place.state).into_iter();
                out.extend(states.map(|state| Place {
                    open: place.open | 1 << bit,
                    state,
                    ..place.clone()
                }));
            }
        }
        for i in window.into_iter().rev().filter(|i| self.answered[*i].begin < first_end) {
            let states = self.after(self.answered[i], 0, &place.state).into_iter();
            out.extend(states.map(|state| self.with(place, i, state)));
        }
        out
    }

    /// An answered operation has happened.
    fn with(&self, place: &Place, i: usize, state: State) -> Place {
        let mut next = Place { state, ..place.clone() };
        next.more.push(i);
        next.more.sort_unstable();
        while next.more.first() == Some(&next.first) {
            next.more.remove(0);
            next.first += 1;
        }
        next
    }

    fn story(&self, place: &Place) -> String {
        let stuck = self.next_op(place).map_or_else(String::new, |o| format!("{o:?}"));
        let near = place.first.saturating_sub(12)..(place.first + 12).min(self.answered.len());
        let around: Vec<_> = self.answered[near].iter().map(|o| format!("\n  {o:?}")).collect();
        let open: Vec<_> = self.open.iter().map(|o| format!("\n  {o:?}")).collect();
        format!(
            "no order explains {stuck}; the names lead to {:?} before; near it:{}\nwithout an answer:{}",
            place.state,
            around.concat(),
            open.concat()
        )
    }
    fn next_op(&self, place: &Place) -> Option<&Op> {
        let left = (place.first..self.answered.len()).filter(|i| !place.more.contains(i));
        left.map(|i| self.answered[i]).min_by_key(|o| o.end)
    }
}

#[cfg(test)]
mod tests;
