//! A test of the tests: plants one known bug after the other and runs simulator seeds until it is found.
//! `cargo run -p glowfs-sim --features mutants --example mutants -- [SEEDS [NAME...]]`; see `./mutants`. Fails if one survives.

use glowfs_rt::Duration;
use glowfs_sim::cluster::{Corner, Faults, Plan, run_seed};
use glowfs_types::mutant::{Mutant, plant};

/// The faults that a bug is most likely to show under; the run is the same otherwise.
fn plan(mutant: Mutant) -> Plan {
    let all = Faults::ALL;
    let corner = match mutant {
        Mutant::ActivationIgnored => Some(Corner::Squeeze),
        Mutant::DedupeForgotten => Some(Corner::Mute),
        Mutant::DedupeNotPersisted => Some(Corner::MuteAndKill),
        Mutant::LeaseFromReply => Some(Corner::LateAnswers),
        Mutant::ChainVersionUnchecked => Some(Corner::LateForwards),
        Mutant::CacheTrusted => Some(Corner::FailedFlushes),
        Mutant::RoutingBeforeCommit | Mutant::PrimaryOutlivesLease => Some(Corner::CutPrimary),
        _ => None,
    };
    let faults = match mutant {
        _ if corner.is_some() => Faults { corners: 10, ..Faults::NONE },
        Mutant::MissingFlush | Mutant::SyncWithoutFlush => Faults { all: 6, ..all },
        Mutant::ChecksumUnchecked => Faults { disks: 10, ..all },
        Mutant::LeaseUnchecked => Faults { freezes: 8, ..all },
        Mutant::ResyncSkipsRemoved => Faults { storages: 12, ..all },
        _ => all,
    };
    Plan { faults, corner, time: Duration::from_secs(10), ..Plan::default() }
}

/// Runs a seed; what was found, in one line.
fn find(seed: u64, plan: Plan) -> Option<String> {
    let run = std::panic::AssertUnwindSafe(|| run_seed(seed, plan));
    match std::panic::catch_unwind(run) {
        Ok(report) => {
            report.problems.first().map(|p| p.lines().next().unwrap_or_default().to_owned())
        }
        Err(_) => Some("a panic".to_owned()),
    }
}

/// Ends the program: a word that means nothing must not plant all bugs.
fn refuse(why: &str) -> ! {
    eprintln!("mutants: {why}. Usage: mutants [SEEDS [NAME...]]");
    std::process::exit(2)
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
    let wanted = |m: &Mutant| args.len() < 2 || args[1..].iter().any(|a| a == m.name());
    let mut survivors = Vec::new();
    for mutant in Mutant::ALL.iter().copied().filter(wanted) {
        let began = std::time::Instant::now();
        let found = (1..=most).find_map(|seed| {
            plant(Some(mutant));
            let how = find(seed, plan(mutant))?;
            plant(None);
            // A control: the seed must be good without the bug.
            if let Some(other) = find(seed, plan(mutant)) {
                println!("seed {seed} fails without any planted bug: {other}");
                return None;
            }
            Some((seed, how))
        });
        plant(None);
        let seconds = began.elapsed().as_secs_f64();
        match found {
            Some((seed, how)) => {
                let how: String = how.chars().take(150).collect();
                println!("{:<24} found at seed {seed} after {seconds:.0} s: {how}", mutant.name());
            }
            None => {
                println!("{:<24} SURVIVED {most} seeds ({seconds:.0} s)", mutant.name());
                survivors.push(mutant.name());
            }
        }
    }
    if !survivors.is_empty() {
        eprintln!("not found: {}", survivors.join(", "));
        std::process::exit(1);
    }
}
