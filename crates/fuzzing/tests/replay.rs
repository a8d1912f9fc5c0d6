//! The kept corpus, replayed: what the fuzzer found once stays found. `SAVE_SEEDS=1` writes the seeds into the corpus.

use glowfs_fuzzing::TARGETS;
use std::path::{Path, PathBuf};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

#[test]
fn every_seed_and_the_corpus() {
    for target in TARGETS {
        for seed in (target.seeds)() {
            (target.run)(&seed);
        }
        let mut inputs = 0;
        let dir = corpus().join(target.name);
        let mut files: Vec<_> = std::fs::read_dir(&dir)
            .into_iter()
            .flatten()
            .map(|e| e.expect("an entry of the corpus").path())
            .collect();
        files.sort();
        for file in files {
            eprintln!("{}", file.display());
            (target.run)(&std::fs::read(&file).expect("a file of the corpus"));
            inputs += 1;
        }
        println!("{}: {inputs} inputs", target.name);
    }
}

/// Random bytes after each seed: a little fuzzing without a fuzzer.
#[test]
fn damaged_seeds() {
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    for target in TARGETS {
        let seeds = (target.seeds)();
        for round in 0..150 {
            let mut input = seeds[round % seeds.len()].clone();
            for _ in 0..1 + random() % 3 {
                if input.len() > 1 {
                    let at = 1 + random() % (input.len() - 1);
                    input[at] ^= 1 << (random() % 8);
                }
            }
            (target.run)(&input);
        }
    }
}

#[test]
fn the_seeds_are_written() {
    if std::env::var_os("SAVE_SEEDS").is_none() {
        return;
    }
    for target in TARGETS {
        let dir = corpus().join(target.name);
        std::fs::create_dir_all(&dir).expect("the corpus");
        for (i, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(dir.join(format!("seed-{i:03}")), seed).expect("a seed");
        }
    }
}
