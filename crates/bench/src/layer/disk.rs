//! The disk below everything: direct I/O of one file through the runtime.

use super::{Given, LOADS};
use crate::drive::{drive, scatter};
use crate::row::Row;
use anyhow::{Context, Result, ensure};
use glowfs_rt::Rt;
use glowfs_rt::backend::OpenOptions;
use std::path::Path;

/// Other work on the machine must not lower the limit of what is above: the best of so many counts.
const TRIES: u32 = 3;

/// See the module.
pub async fn disk(rt: &Rt, dir: &Path, given: Given) -> Result<Vec<Row>> {
    let dir = rt.open_dir(dir)?;
    let file = dir.open("disk", OpenOptions { create: true, direct: true }).await?;
    let mut data = rt.alloc(1 << 20);
    data.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 7 + i / 4096) as u8);
    let data = data.freeze();
    for at in (0..given.size).step_by(1 << 20) {
        file.write(vec![data.clone()], at).await.context("filling the file")?;
    }
    let mut rows = vec![];
    for (what, bytes, depth) in LOADS {
        let plan = given.plan("disk", what, "direct", bytes, depth);
        let (rt2, file, data, places) =
            (rt.clone(), file.clone(), data.clone(), given.size / bytes);
        let op = move |n| {
            let (rt, file, data) = (rt2.clone(), file.clone(), data.clone());
            async move {
                let at = scatter(n, places) * bytes;
                if what == "read" {
                    let done = file.read(rt.alloc(bytes as usize), at).await.0?;
                    ensure!(done == bytes as usize, "a short read");
                } else {
                    file.write(vec![data.slice(0..bytes as usize)], at).await?;
                }
                Ok(())
            }
        };
        let mut best = drive(rt, &plan, op.clone()).await?;
        for _ in 1..TRIES {
            let again = drive(rt, &plan, op.clone()).await?;
            if again.ops_per_second > best.ops_per_second {
                best = again;
            }
        }
        given.done(&mut rows, best);
    }
    drop(file);
    dir.remove("disk").await?;
    Ok(rows)
}
