//! What one transaction sees and may do: its own writes, ranges, snapshots, many keys, limits.

use super::{begin, expect_status, put};
use crate::{Engine, Key, key_after};
use glowfs_types::wire::kv::{KEY_BYTES_MAX, TRANSACTION_BYTES_MAX, VALUE_BYTES_MAX};
use glowfs_types::{Error, Result, Status};
use std::rc::Rc;

pub(super) async fn own_writes(engine: &Rc<dyn Engine>) -> Result<()> {
    put(engine, b"own/a", b"1").await?;
    let tx = begin(engine);
    tx.put(b"own/b", b"2")?;
    ensure!(tx.get(b"own/b").await?.as_deref() == Some(b"2"), "own put is not seen");
    tx.clear(b"own/a")?;
    ensure!(tx.get(b"own/a").await?.is_none(), "own clear is not seen");
    tx.add(b"own/n", 5)?;
    tx.add(b"own/n", -2)?;
    ensure!(tx.get(b"own/n").await? == Some(3i64.to_le_bytes().to_vec()), "own add is not seen");
    tx.clear_range(b"own/b", b"own/c")?;
    ensure!(tx.get(b"own/b").await?.is_none(), "own clear_range is not seen");
    tx.put(b"own/bb", b"3")?;
    let page = tx.get_range(b"own/", b"own0", 10, false).await?;
    let keys: Vec<_> = page.entries.iter().map(|(k, _)| k.as_slice()).collect();
    ensure!(keys == [&b"own/bb"[..], b"own/n"] && !page.more, "range over own writes: {keys:?}");
    tx.commit(true).await?;
    let tx = begin(engine);
    let back = tx.get_range(b"own/", b"own0", 10, true).await?;
    let keys: Vec<_> = back.entries.iter().map(|(k, _)| k.as_slice()).collect();
    ensure!(keys == [&b"own/n"[..], b"own/bb"], "after the commit: {keys:?}");
    tx.commit(false).await.map(|_| ())
}

pub(super) async fn ranges(engine: &Rc<dyn Engine>) -> Result<()> {
    let tx = begin(engine);
    for i in 0..50u8 {
        tx.put([b"range/", &[i][..]].concat(), vec![i])?;
    }
    tx.commit(false).await?;
    for reverse in [false, true] {
        let tx = begin(engine);
        for i in (0..50u8).step_by(3) {
            tx.clear([b"range/", &[i][..]].concat())?;
        }
        tx.put([b"range/", &[7, 0][..]].concat(), b"own".to_vec())?;
        let mut want: Vec<Key> =
            (0..50u8).filter(|i| i % 3 != 0).map(|i| [b"range/", &[i][..]].concat()).collect();
        want.push([b"range/", &[7, 0][..]].concat());
        want.sort();
        if reverse {
            want.reverse();
        }
        let page = tx.get_range(b"range/", b"range0", 20, reverse).await?;
        let got: Vec<Key> = page.entries.into_iter().map(|(k, _)| k).collect();
        ensure!(got == want[..20] && page.more, "a page of 20, reverse {reverse}: {got:?}");
    }
    Ok(())
}

pub(super) async fn snapshots(engine: &Rc<dyn Engine>) -> Result<()> {
    put(engine, b"snap/a", b"old").await?;
    put(engine, b"snap/gone", b"there").await?;
    let reader = begin(engine);
    reader.read_version().await?;
    put(engine, b"snap/a", b"new").await?;
    put(engine, b"snap/b", b"late").await?;
    let tx = begin(engine);
    tx.clear(b"snap/gone")?;
    tx.commit(false).await?;
    ensure!(reader.get(b"snap/a").await?.as_deref() == Some(b"old"), "a snapshot moved");
    ensure!(reader.get(b"snap/gone").await?.is_some(), "a removal changed a snapshot");
    let page = reader.get_range(b"snap/", b"snap0", 10, false).await?;
    ensure!(page.entries.len() == 2, "an insertion changed a snapshot: {:?}", page.entries);
    reader.commit(false).await?;
    let now = begin(engine);
    ensure!(now.get(b"snap/gone").await?.is_none(), "a removed key is still there");
    Ok(())
}

/// A transaction of many small changes, some inside a range that it clears.
pub(super) async fn many_keys(engine: &Rc<dyn Engine>) -> Result<()> {
    const KEYS: u32 = 1000;
    let key = |i: u32| [&b"many/"[..], &i.to_be_bytes()].concat();
    for round in 0..2u32 {
        let tx = begin(engine);
        tx.clear_range(b"many/", b"many0")?;
        for i in 0..KEYS {
            tx.put(key(2 * i + round), round.to_be_bytes().to_vec())?;
        }
        tx.commit(false).await?;
        let mut found = Vec::new();
        let tx = begin(engine);
        loop {
            let from = found.last().map_or_else(|| b"many/".to_vec(), |k: &Key| key_after(k));
            let page = tx.get_range_snapshot(&from, b"many0", 700, false).await?;
            found.extend(page.entries.into_iter().map(|(k, _)| k));
            if !page.more {
                break;
            }
        }
        let want: Vec<_> = (0..KEYS).map(|i| key(2 * i + round)).collect();
        ensure!(found == want, "round {round}: {} keys of {KEYS} are there", found.len());
    }
    Ok(())
}

pub(super) async fn limits(engine: &Rc<dyn Engine>) -> Result<()> {
    let tx = begin(engine);
    tx.put(vec![1; KEY_BYTES_MAX], vec![2; VALUE_BYTES_MAX])?;
    tx.commit(false).await?;
    for (key, value) in [(KEY_BYTES_MAX + 2, 1), (1, VALUE_BYTES_MAX + 1)] {
        let tx = begin(engine);
        tx.put(vec![1; key], vec![2; value])?;
        expect_status(tx.commit(false).await, Status::TooLarge, "a key or value over its limit")?;
    }
    let tx = begin(engine);
    let mut result = Ok(());
    for i in 0..=(TRANSACTION_BYTES_MAX / VALUE_BYTES_MAX) as u8 {
        result = result.and(tx.put(vec![i], vec![0; VALUE_BYTES_MAX]));
    }
    expect_status(result, Status::TooLarge, "a transaction over its limit")
}
