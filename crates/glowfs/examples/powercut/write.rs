//! The writer. A name goes through steps: 1 made under `n` (written aside, fsynced, renamed into place), 2 moved to `x`, 3 removed, 4 made
//! again, and so on, each followed by an fsync of the directory. Blocks are written over and over in pieces of up to 16.
//!
//! A step of a name begins only when the acknowledgement of the one before has certainly left the guest; so what the
//! host knows is at most one step behind.

use crate::check::observe;
use crate::content::*;
use rustix::io::ioctl_fionread;
use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

type Done = Result<(), Box<dyn Error>>;

/// Standard output, and which lines have left.
struct Out {
    lines: u64,
    /// All lines up to this one were taken by the reader of the pipe,
    taken: u64,
    /// and up to this one before a later one was taken: they were passed on.
    gone: u64,
    acks: u64,
}

impl Out {
    /// Prints an acknowledgement; returns the number of its line.
    fn ack(&mut self, what: &str) -> u64 {
        self.acks += 1;
        self.lines += 1;
        println!("#{} A {what}", self.acks);
        let _ = std::io::stdout().flush();
        self.look();
        self.lines
    }
    fn look(&mut self) {
        if ioctl_fionread(std::io::stdout()).unwrap_or(0) == 0 && self.taken < self.lines {
            self.gone = self.taken;
            self.taken = self.lines;
        }
    }
}

static OUT: Mutex<Out> = Mutex::new(Out { lines: 0, taken: 0, gone: 0, acks: 0 });

fn out() -> std::sync::MutexGuard<'static, Out> {
    OUT.lock().unwrap_or_else(|e| e.into_inner())
}

/// Writes until the power goes.
pub fn run(dir: &Path, seed: u64, fsync: bool) -> Done {
    fs::create_dir_all(dir)?;
    File::open(dir.parent().ok_or("no parent")?)?.sync_all()?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|t| scope.spawn(move || thread(dir, t, seed, fsync).map_err(|e| e.to_string())))
            .collect();
        for t in threads {
            t.join().map_err(|_| "a writer panicked")??;
        }
        Ok(())
    })
}

struct BlockFile {
    file: File,
    generations: Vec<u64>,
    /// Written, not yet fsynced: first block, blocks, generation.
    unsynced: Vec<(u64, u64, u64)>,
}

fn thread(root: &Path, t: u64, seed: u64, fsync: bool) -> Done {
    let dir = root.join(format!("t{t}"));
    fs::create_dir_all(&dir)?;
    File::open(root)?.sync_all()?;
    let found = observe(root, t)?;
    let mut files = Vec::new();
    for f in 0..FILES {
        let path = dir.join(format!("b{f}"));
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        file.sync_all()?;
        let generations = found.blocks[f as usize].clone();
        files.push(BlockFile { file, generations, unsynced: vec![] });
    }
    File::open(&dir)?.sync_all()?;
    let mut names: Vec<(u64, u64)> = found.names.iter().map(|step| (*step, 0)).collect();
    let mut rng = Rng::new(seed ^ (t << 40));
    loop {
        if rng.below(3) > 0 {
            let f = rng.below(FILES);
            blocks(&mut files[f as usize], t, f, &mut rng, fsync)?;
            continue;
        }
        let n = rng.below(NAMES);
        let (step, line) = names[n as usize];
        let known = {
            let mut out = out();
            out.look();
            out.gone >= line
        };
        if known {
            advance(&dir, t, n, step + 1)?;
            names[n as usize] = (step + 1, out().ack(&format!("N {t} {n} {}", step + 1)));
        }
    }
}

fn blocks(f: &mut BlockFile, t: u64, number: u64, rng: &mut Rng, fsync: bool) -> Done {
    let first = rng.below(BLOCKS);
    let count = 1 + rng.below(16.min(BLOCKS - first));
    let range = first as usize..(first + count) as usize;
    let generation = f.generations[range.clone()].iter().max().unwrap_or(&0) + 1;
    let bytes: Vec<u8> =
        (first..first + count).flat_map(|b| block(place(t, number, b), generation)).collect();
    f.file.write_all_at(&bytes, first * BLOCK as u64)?;
    f.generations[range].fill(generation);
    f.unsynced.push((first, count, generation));
    if fsync {
        if rng.below(2) == 0 {
            return Ok(());
        }
        if rng.below(2) == 0 { f.file.sync_all()? } else { f.file.sync_data()? }
    }
    for (first, count, generation) in f.unsynced.drain(..) {
        out().ack(&format!("B {t} {number} {first} {count} {generation}"));
    }
    Ok(())
}

/// Takes a name to its next step, durably.
fn advance(dir: &Path, t: u64, n: u64, step: u64) -> Done {
    let (name, moved) = (dir.join(format!("n{n}")), dir.join(format!("x{n}")));
    match step % 3 {
        1 => {
            let aside = dir.join(format!("tmp{n}"));
            let mut file = File::create(&aside)?;
            file.write_all(&named(t, n, step))?;
            file.sync_all()?;
            fs::rename(aside, name)?;
        }
        2 => fs::rename(name, moved)?,
        _ => fs::remove_file(moved)?,
    }
    Ok(File::open(dir)?.sync_all()?)
}
