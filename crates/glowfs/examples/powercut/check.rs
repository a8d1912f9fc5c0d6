//! The checker: what is there, and whether every acknowledgement is true.

use crate::content::*;
use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// What one thread's directory holds.
pub struct Observed {
    /// Generations, by file and block.
    pub blocks: Vec<Vec<u64>>,
    /// The step of each name. For an absent one any that is 0 modulo 3, later than all before.
    pub names: Vec<u64>,
    /// Whether the name's file is there.
    pub present: Vec<bool>,
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, Box<dyn Error>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("{}: {e}", path.display()).into()),
    }
}

/// Reads everything of a thread.
pub fn observe(root: &Path, t: u64) -> Result<Observed, Box<dyn Error>> {
    let dir = root.join(format!("t{t}"));
    let mut o = Observed { blocks: vec![], names: vec![], present: vec![] };
    for f in 0..FILES {
        let path = dir.join(format!("b{f}"));
        let bytes = read(&path)?.unwrap_or_default();
        let mut generations = vec![0; BLOCKS as usize];
        for (b, piece) in bytes.chunks(BLOCK).enumerate().take(BLOCKS as usize) {
            generations[b] = generation(place(t, f, b as u64), piece).ok_or_else(|| {
                format!("{}: block {b} holds what nobody wrote there", path.display())
            })?;
        }
        o.blocks.push(generations);
    }
    for n in 0..NAMES {
        let (here, moved) = (read(&dir.join(format!("n{n}")))?, read(&dir.join(format!("x{n}")))?);
        let place = format!("t{t}/{n}");
        let step = |bytes: &[u8]| {
            step_of(t, n, bytes).filter(|s| s % 3 == 1).ok_or(format!("{place}: wrong content"))
        };
        let (step, present) = match (here, moved) {
            (Some(_), Some(_)) => return Err(format!("{place}: both names of a rename").into()),
            (Some(bytes), None) => (step(&bytes)?, true),
            (None, Some(bytes)) => (step(&bytes)? + 1, true),
            (None, None) => (0, false),
        };
        o.names.push(step);
        o.present.push(present);
    }
    // No step is used twice: an absent name goes on from the time of day, which no life of a name keeps up with.
    let ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
    let top = ms.next_multiple_of(3);
    for (step, present) in o.names.iter_mut().zip(&o.present) {
        if !present {
            *step = top;
        }
    }
    Ok(o)
}

#[derive(Default)]
struct Acked {
    /// (thread, file, block) -> generation.
    blocks: BTreeMap<(u64, u64, u64), u64>,
    /// (thread, name) -> the last acknowledged step.
    names: BTreeMap<(u64, u64), u64>,
}

fn acknowledged(text: &str) -> Acked {
    let mut acked = Acked::default();
    for line in text.lines() {
        let Some((_, what)) = line.split_once(" A ") else { continue };
        let mut words = what.split(' ');
        let kind = words.next();
        let n: Vec<u64> = words.filter_map(|w| w.parse().ok()).collect();
        match (kind, &n[..]) {
            (Some("B"), &[t, f, first, count, generation]) => {
                for b in first..first + count {
                    let known = acked.blocks.entry((t, f, b)).or_default();
                    *known = generation.max(*known);
                }
            }
            // Steps are acknowledged in order; what a check saw replaces what was known.
            (Some("N"), &[t, name, step]) => drop(acked.names.insert((t, name), step)),
            _ => {}
        }
    }
    acked
}

/// Checks every acknowledgement in `acks`, and prints what is there.
pub fn run(root: &Path, acks: &Path) -> Result<(), Box<dyn Error>> {
    let acked = acknowledged(&fs::read_to_string(acks)?);
    let (mut checked, mut lost, mut ahead) = (0u64, Vec::new(), 0u64);
    let mut lines = String::new();
    for t in 0..THREADS {
        let o = observe(root, t)?;
        for (f, generations) in o.blocks.iter().enumerate() {
            for (b, found) in generations.iter().enumerate() {
                let known = acked.blocks.get(&(t, f as u64, b as u64)).copied().unwrap_or(0);
                checked += u64::from(known > 0);
                ahead += u64::from(*found > known);
                if *found < known {
                    lost.push(format!(
                        "t{t}/b{f} block {b}: generation {found}, acknowledged {known}"
                    ));
                }
                if *found > 0 {
                    lines += &format!("#seen A B {t} {f} {b} 1 {found}\n");
                }
            }
        }
        for n in 0..NAMES {
            let (found, present) = (o.names[n as usize], o.present[n as usize]);
            let Some(&known) = acked.names.get(&(t, n)) else {
                if present {
                    lines += &format!("#seen A N {t} {n} {found}\n");
                }
                continue;
            };
            checked += 1;
            // The acknowledged step, or the one after it.
            let fine = match (present, known % 3) {
                (true, 0) => found > known && found % 3 == 1,
                (true, _) => found == known || found == known + 1,
                (false, 0) => true,
                (false, 2) => true,
                (false, _) => false,
            };
            if !fine {
                let there = if present { format!("step {found}") } else { "nothing".into() };
                lost.push(format!("t{t}/{n}: {there}, acknowledged step {known}"));
            }
            ahead += u64::from(present && found > known);
            lines += &match (present, known % 3) {
                (true, _) => format!("#seen A N {t} {n} {found}\n"),
                (false, 2) => format!("#seen A N {t} {n} {}\n", known + 1),
                (false, _) => String::new(),
            };
        }
    }
    print!("{lines}");
    println!("CHECKED {checked} acknowledged, {ahead} newer, {} lost", lost.len());
    if lost.is_empty() { Ok(()) } else { Err(format!("LOST {}", lost.join("; ")).into()) }
}
