//! What is a conflict of two transactions, and what is none.

use super::{begin, expect_status, put};
use crate::Engine;
use glowfs_types::{Error, Result, Status};
use std::rc::Rc;

pub(super) async fn conflicts(engine: &Rc<dyn Engine>) -> Result<()> {
    put(engine, b"con/a", b"0").await?;
    put(engine, b"con/z", b"0").await?;
    // Each: what the transaction reads, and what another one does meanwhile.
    for case in 0..6 {
        let tx = begin(engine);
        match case {
            0 | 1 | 5 => drop(tx.get(b"con/a").await?),
            2 => drop(tx.get(b"con/missing").await?),
            3 => drop(tx.get_range(b"con/", b"con0", 10, false).await?),
            _ => drop(tx.get_range(b"con/", b"con0", 10, true).await?),
        }
        let other = begin(engine);
        match case {
            0 => other.put(b"con/a", b"1")?,
            1 => other.add(b"con/a", 1)?,
            2 => other.put(b"con/missing", b"1")?,
            3 => other.put(b"con/phantom", b"1")?,
            4 => other.clear(b"con/z")?,
            _ => other.add_write_conflict(b"con/", b"con0")?,
        }
        other.commit(false).await?;
        tx.put(b"con/out", b"x")?;
        expect_status(tx.commit(false).await, Status::Conflict, &format!("conflict case {case}"))?;
    }
    // Write skew: both read both, each writes one.
    let (one, two) = (begin(engine), begin(engine));
    for tx in [&one, &two] {
        tx.get(b"skew/a").await?;
        tx.get(b"skew/b").await?;
    }
    one.put(b"skew/a", b"1")?;
    two.put(b"skew/b", b"1")?;
    one.commit(false).await?;
    expect_status(two.commit(false).await, Status::Conflict, "write skew")
}

/// What was read and is removed meanwhile is a conflict, however it was read and removed.
pub(super) async fn removals(engine: &Rc<dyn Engine>) -> Result<()> {
    let all: [&[u8]; 5] = [b"rem/a", b"rem/b", b"rem/c", b"rem/d", b"rem/e"];
    for case in 0..8 {
        let fill = begin(engine);
        for key in all {
            fill.put(key, b"0")?;
        }
        fill.commit(false).await?;
        let tx = begin(engine);
        match case {
            0 | 1 => drop(tx.get(b"rem/c").await?),
            2 => drop(tx.get_all(&[b"rem/x".to_vec(), b"rem/c".to_vec()]).await?),
            // A page: up to and with the last entry that was seen.
            3 | 4 => drop(tx.get_range(b"rem/", b"rem0", 3, false).await?),
            5 => drop(tx.get_range(b"rem/", b"rem0", 3, true).await?),
            6 => tx.add_read_conflict(b"rem/b", b"rem/d")?,
            _ => drop(tx.get_range(b"rem/", b"rem0", 10, false).await?),
        }
        // `add_read_conflict` needs a version to compare with.
        tx.read_version().await?;
        let other = begin(engine);
        match case {
            1 => other.clear_range(b"rem/", b"rem0")?,
            3 => other.clear_range(b"rem/bb", b"rem/cc")?,
            _ => other.clear(b"rem/c")?,
        }
        other.commit(false).await?;
        if case == 7 {
            // Removed and back again: still not what was read.
            put(engine, b"rem/c", b"0").await?;
        }
        tx.put(b"rem/out", b"x")?;
        expect_status(tx.commit(false).await, Status::Conflict, &format!("removal case {case}"))?;
    }
    // What lies behind a page may go.
    let tx = begin(engine);
    tx.get_range(b"rem/", b"rem0", 2, false).await?;
    let other = begin(engine);
    other.clear(b"rem/d")?;
    other.commit(false).await?;
    tx.put(b"rem/out", b"x")?;
    tx.commit(false).await.map(|_| ())
}

pub(super) async fn no_conflicts(engine: &Rc<dyn Engine>) -> Result<()> {
    put(engine, b"free/a", b"0").await?;
    let tx = begin(engine);
    tx.get_snapshot(b"free/a").await?;
    tx.get_range(b"free/", b"free/a", 10, false).await?;
    tx.add(b"free/n", 1)?;
    let other = begin(engine);
    other.put(b"free/a", b"1")?;
    other.add(b"free/n", 1)?;
    other.commit(false).await?;
    tx.commit(false).await?;
    let tx = begin(engine);
    ensure!(tx.get(b"free/n").await? == Some(2i64.to_le_bytes().to_vec()), "adds were lost");
    // A page that stopped early does not conflict behind its last entry.
    let tx = begin(engine);
    tx.get_range(b"free/", b"free0", 1, false).await?;
    put(engine, b"free/zz", b"1").await?;
    tx.put(b"free/out", b"1")?;
    tx.commit(false).await?;
    Ok(())
}
