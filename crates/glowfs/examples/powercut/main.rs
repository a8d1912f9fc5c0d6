//! What runs inside the guest of `scripts/powercut`: writes what describes itself, says what was acknowledged, and checks it after the power
//! came back. And, on the host: replays a log of a virtual disk without what was not flushed.
//!
//! - `powercut write DIR SEED fsync|disk`: writes until the power goes. Lines `#N A ...` say what must survive.
//! - `powercut check DIR FILE`: every acknowledgement in FILE is true; prints what it found as further acknowledgements: what
//!   was seen after a recovery must not go away again.
//! - `powercut stop DIR`: stops the ext4 or xfs of DIR dead.
//! - `powercut replay BASE LOG OUT SEED`: OUT = BASE and every write of LOG (dm-log-writes format) up to the last flush,
//!   and a random part of what came after.

mod check;
mod content;
mod disk_log;
mod write;

use glowfs_torture::shutdown::{self, Memory};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["write", dir, seed, mode] if matches!(mode, "fsync" | "disk") => {
            write::run(Path::new(dir), number(seed), mode == "fsync")
        }
        ["check", dir, acks] => check::run(Path::new(dir), Path::new(acks)),
        ["stop", dir] => shutdown::stop(Path::new(dir), Memory::Lost).map_err(Into::into),
        ["replay", base, log, out, seed] => {
            disk_log::replay(Path::new(base), Path::new(log), Path::new(out), number(seed))
        }
        _ => Err(
            "usage: powercut write DIR SEED fsync|disk | check DIR FILE | stop DIR | replay BASE LOG OUT SEED"
                .into(),
        ),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("BAD {e}");
            ExitCode::FAILURE
        }
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or(1)
}
