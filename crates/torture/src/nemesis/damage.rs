//! Damage at rest: bytes flipped in the block files of a running storage node.

use crate::block::BLOCK;
use crate::cluster::Service;
use crate::random::Random;
use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Places of one strike.
const PLACES: usize = 16;
/// Tries to find a place that holds something.
const TRIES: usize = 400;

/// Flips bits in blocks of the node that hold something; how many. `moment` is called at each.
pub fn damage(node: &Service, random: &mut Random, mut moment: impl FnMut()) -> Result<usize> {
    let mut files: Vec<PathBuf> = vec![];
    for dir in &node.data {
        for entry in std::fs::read_dir(dir).with_context(|| format!("{}", dir.display()))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with("blocks-") {
                files.push(path);
            }
        }
    }
    files.sort();
    let mut done = 0;
    for _ in 0..TRIES {
        let Some(path) = random.pick(&files) else { break };
        let file = File::options().read(true).write(true).open(path)?;
        let blocks = file.metadata()?.len() / BLOCK as u64;
        let at = random.below(blocks) * BLOCK as u64;
        let mut block = vec![0; BLOCK];
        if file.read_exact_at(&mut block, at).is_err() || block.iter().all(|b| *b == 0) {
            continue;
        }
        // Only the flipped byte is written, so that a write of the service to the same block is hardly undone.
        let byte = random.below(BLOCK as u64);
        let flipped = block.get(byte as usize).copied().unwrap_or_default() ^ 0x40;
        file.write_all_at(&[flipped], at + byte)?;
        moment();
        done += 1;
        if done == PLACES {
            break;
        }
    }
    Ok(done)
}
