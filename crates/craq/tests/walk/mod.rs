//! Walks everything that can be reached from a state, to the end: for small worlds around a pure core (also used by the tests of `glowfs-cluster`).
//!
//! What it says when it comes back:
//!
//! - no check of a step or of a state failed, in any state;
//! - where nothing goes on without a further trouble, everything is at rest ([`World::at_rest`]);
//! - from every state there is a way without troubles to such a rest. So whoever lets things happen fairly gets there: nothing is stuck, and nothing goes in circles for ever.
//!
//! It ends only when nothing is left to look at: a bound that is hit is a failure. States are told apart by 64 bits of a hash; that any two of ten million states have
//! the same, so that something behind one of them may not be looked at, has a probability of 3 in a million.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is walked. States that behave alike should be equal: [`World::go`] leaves the world in a form that says no more than what matters.
pub trait World: Clone + Hash {
    /// What can happen next.
    type Choice: Clone + Debug;
    /// Everything that can happen next.
    fn choices(&self) -> Vec<Self::Choice>;
    /// Whether it is a trouble: nobody may count on that it happens.
    fn is_trouble(&self, choice: &Self::Choice) -> bool;
    /// It happens. Panics where that breaks a promise.
    fn go(&mut self, choice: &Self::Choice);
    /// Whether this is the end that everything must come to, as far as it can go without troubles. Panics, or says what is not as it should be.
    fn at_rest(&self) -> Result<(), String>;
    /// What must be so in this state.
    fn check(&self) {}
    /// Whether it counts as an end though things go on (clocks always do).
    fn is_end(&self) -> bool {
        false
    }
}

/// What a walk came to.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub states: usize,
    pub transitions: usize,
    pub ends: usize,
    /// Of one processor.
    pub seconds: f64,
}

/// What a walk found.
#[derive(Clone, Debug)]
pub struct Found {
    pub what: String,
    pub way: Vec<String>,
}

struct Frame<W: World> {
    world: W,
    choices: Vec<W::Choice>,
    at: usize,
    id: u32,
}

/// The walk so far.
struct Walk<W: World> {
    limit: usize,
    known: HashMap<u64, u32>,
    /// Steps without troubles, from and to.
    steps: Vec<(u32, u32)>,
    rests: Vec<u32>,
    frames: Vec<Frame<W>>,
    transitions: usize,
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

/// What this thread has had of a processor so far; 0 where that is not told.
fn processor_seconds() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    told.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

fn caught<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|e| said(&*e))
}

impl<W: World> Walk<W> {
    fn key(w: &W) -> u64 {
        let mut h = DefaultHasher::new();
        w.hash(&mut h);
        h.finish()
    }
    /// A state that was come to; it is looked at if it is new.
    fn meet(&mut self, world: W) -> Result<u32, String> {
        let next = self.known.len() as u32;
        match self.known.entry(Self::key(&world)) {
            Entry::Occupied(met) => return Ok(*met.get()),
            Entry::Vacant(new) => new.insert(next),
        };
        if self.known.len() > self.limit {
            return Err(format!("more than {} states: the walk is cut off", self.limit));
        }
        let choices = caught(|| {
            world.check();
            world.choices()
        })?;
        let end = world.is_end() || choices.iter().all(|c| world.is_trouble(c));
        self.frames.push(Frame { world, choices, at: 0, id: next });
        if end {
            let frame = self.frames.last().expect("just pushed");
            caught(|| frame.world.at_rest())?.map_err(|e| format!("an end without rest: {e}"))?;
            self.rests.push(next);
        }
        Ok(next)
    }
    fn walk(&mut self, start: W) -> Result<(), String> {
        self.meet(start)?;
        while let Some(frame) = self.frames.last_mut() {
            let Some(choice) = frame.choices.get(frame.at) else {
                self.frames.pop();
                continue;
            };
            frame.at += 1;
            let mut next = frame.world.clone();
            let (from, trouble) = (frame.id, frame.world.is_trouble(choice));
            caught(|| next.go(choice))?;
            self.transitions += 1;
            let to = self.meet(next)?;
            if !trouble {
                self.steps.push((from, to));
            }
        }
        Ok(())
    }
    /// Whether all states have a way to rest; if not, one that has none.
    fn without_rest(&self) -> Option<u32> {
        let states = self.known.len();
        // Where the steps to each state begin, in one list.
        let mut first = vec![0u32; states + 1];
        self.steps.iter().for_each(|(_, to)| first[*to as usize + 1] += 1);
        for i in 0..states {
            first[i + 1] += first[i];
        }
        let mut from = vec![0u32; self.steps.len()];
        let mut free = first.clone();
        for (a, b) in &self.steps {
            let place = &mut free[*b as usize];
            from[*place as usize] = *a;
            *place += 1;
        }
        let mut rests = vec![false; states];
        let mut stack = self.rests.clone();
        stack.iter().for_each(|i| rests[*i as usize] = true);
        while let Some(at) = stack.pop() {
            let range = first[at as usize] as usize..first[at as usize + 1] as usize;
            for a in &from[range] {
                if !std::mem::replace(&mut rests[*a as usize], true) {
                    stack.push(*a);
                }
            }
        }
        rests.iter().position(|r| !r).map(|i| i as u32)
    }
}

/// Walks everything, at most `limit` states; more is a failure.
pub fn walk<W: World>(start: W, limit: usize) -> Result<Figures, Found> {
    let began = processor_seconds();
    let mut w = Walk::<W> {
        limit,
        known: HashMap::new(),
        steps: Vec::new(),
        rests: Vec::new(),
        frames: Vec::new(),
        transitions: 0,
    };
    if let Err(what) = w.walk(start.clone()) {
        let way = w
            .frames
            .iter()
            .filter_map(|f| Some(format!("{:?}", f.choices.get(f.at.checked_sub(1)?)?)));
        return Err(Found { what, way: way.collect() });
    }
    if let Some(stuck) = w.without_rest() {
        let way = way_to(start, stuck, &w.known);
        return Err(Found { what: "no way to rest without a further trouble".into(), way });
    }
    Ok(Figures {
        states: w.known.len(),
        transitions: w.transitions,
        ends: w.rests.len(),
        seconds: processor_seconds() - began,
    })
}

/// The way on which a state was met first, found once more: states are numbered in the order in which they are met.
fn way_to<W: World>(start: W, stuck: u32, known: &HashMap<u64, u32>) -> Vec<String> {
    let mut again = Walk::<W> {
        limit: known.len(),
        known: HashMap::new(),
        steps: Vec::new(),
        rests: Vec::new(),
        frames: Vec::new(),
        transitions: 0,
    };
    // One state less than is needed to be let in ends the walk just there.
    again.limit = stuck as usize;
    let _ = again.walk(start);
    let way = again
        .frames
        .iter()
        .filter_map(|f| Some(format!("{:?}", f.choices.get(f.at.checked_sub(1)?)?)));
    way.collect()
}

/// A walk that must find nothing. Says its figures.
pub fn all_is_well<W: World>(what: &str, start: W, limit: usize) -> Figures {
    match walk(start, limit) {
        Ok(f) => {
            println!(
                "{what}: {} states, {} transitions, {} ends, {:.1} s; nothing left to look at",
                f.states, f.transitions, f.ends, f.seconds
            );
            f
        }
        Err(found) => {
            panic!("{what}: {}\nthe way there:\n  {}", found.what, found.way.join("\n  "))
        }
    }
}

/// A walk through a world with a planted fault: it must be found, and for the right reason.
pub fn is_found<W: World>(start: W, limit: usize, reason: &str) {
    match walk(start, limit) {
        Ok(f) => panic!("a planted fault was not found: {f:?}"),
        Err(found) => assert!(
            found.what.contains(reason),
            "found for another reason than «{reason}»: {}\n  {}",
            found.what,
            found.way.join("\n  ")
        ),
    }
}
