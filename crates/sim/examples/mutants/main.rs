//! A test of the tests: plants one known bug after the other and runs simulator seeds until the right judge has found it.
//! `cargo run -p glowfs-sim --features mutants --example mutants -- [SEEDS [NAME...]]`; see `./mutants`. Fails if one survives.

mod cases;

use cases::{Case, Runs, case};
use glowfs_sim::cluster::run_seed;
use glowfs_types::mutant::{Mutant, plant};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[global_allocator]
static MEMORY: glowfs_sim::memory::Memory = glowfs_sim::memory::Memory;

/// Characters of one thing that is wrong.
const CHARS: usize = 160;
/// So many of them in a line.
const NAMED_MAX: usize = 4;

thread_local!(static PANIC: RefCell<String> = const { RefCell::new(String::new()) });

/// Everything that is wrong in a run, each in one line.
fn problems(seed: u64, case: &Case) -> Vec<String> {
    let run = AssertUnwindSafe(|| match case.runs {
        Runs::Random(plan) => run_seed(seed, plan).problems,
        Runs::Scene(scene) => {
            scene(seed);
            Vec::new()
        }
    });
    let found = catch_unwind(run).unwrap_or_else(|_| vec![PANIC.take()]);
    found.iter().map(|p| p.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn short(text: &str) -> String {
    text.chars().take(CHARS).collect()
}

fn line(wrong: &[String]) -> String {
    let first: Vec<_> = wrong.iter().take(NAMED_MAX).map(|p| short(p)).collect();
    format!("{} ({} in all)", first.join(" | "), wrong.len())
}

/// Ends the program: a word that means nothing must not plant all bugs.
fn refuse(why: &str) -> ! {
    eprintln!("mutants: {why}. Usage: mutants [SEEDS [NAME...]]");
    std::process::exit(2)
}

/// Runs seeds until the bug is found for what it is; a seed that fails in another way says nothing of the judge that is meant, and does not count.
fn find(mutant: Mutant, most: u64) -> Option<(u64, String)> {
    let (name, case) = (mutant.name(), case(mutant));
    (1..=most).find_map(|seed| {
        plant(Some(mutant));
        let planted = problems(seed, &case);
        plant(None);
        if planted.is_empty() {
            return None;
        }
        let Some(found) = planted.iter().find(|p| case.is_found(p)) else {
            println!("{name:<24} seed {seed} fails in another way: {}", line(&planted));
            return None;
        };
        // A control: the seed must be good without the bug.
        let control = problems(seed, &case);
        if !control.is_empty() {
            println!("{name:<24} seed {seed} fails without the bug, too: {}", line(&control));
            return None;
        }
        Some((seed, short(found)))
    })
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let most: u64 = args.first().map_or(300, |a| {
        a.parse().unwrap_or_else(|_| refuse(&format!("«{a}» is no number of seeds")))
    });
    if let Some(unknown) = args.iter().skip(1).find(|a| Mutant::ALL.iter().all(|m| m.name() != *a))
    {
        let all: Vec<_> = Mutant::ALL.iter().map(|m| m.name()).collect();
        refuse(&format!("there is no bug «{unknown}»; there are: {}", all.join(", ")));
    }
    // What a scene asserts is one of the ways to be found.
    std::panic::set_hook(Box::new(|info| PANIC.set(info.to_string())));
    let wanted = |m: &Mutant| args.len() < 2 || args[1..].iter().any(|a| a == m.name());
    let mut survivors = Vec::new();
    for mutant in Mutant::ALL.iter().copied().filter(wanted) {
        let (name, began) = (mutant.name(), std::time::Instant::now());
        let found = find(mutant, most);
        let seconds = began.elapsed().as_secs_f64();
        match found {
            Some((seed, how)) => {
                println!("{name:<24} found at seed {seed} after {seconds:.0} s: {how}");
            }
            None => {
                println!("{name:<24} SURVIVED {most} seeds ({seconds:.0} s)");
                survivors.push(name);
            }
        }
    }
    if !survivors.is_empty() {
        eprintln!("not found: {}", survivors.join(", "));
        std::process::exit(1);
    }
}
