//! Stamped keys stand in the order of the commits.

use super::{WORKERS, begin};
use crate::{Engine, STAMP_BYTES};
use glowfs_rt::Rt;
use glowfs_types::{Error, Result, Status};
use std::collections::BTreeMap;
use std::rc::Rc;

pub(super) async fn stamps(engine: &Rc<dyn Engine>) -> Result<()> {
    let mut last = 0;
    for i in 0..5u8 {
        let tx = begin(engine);
        for j in 0..3u8 {
            tx.put_versionstamped(b"stamp/", vec![], vec![i, j])?;
        }
        let version = tx.commit(false).await?;
        ensure!(version > last, "versions do not grow");
        last = version;
    }
    let tx = begin(engine);
    let page = tx.get_range(b"stamp/", b"stamp0", 100, false).await?;
    let got: Vec<_> = page.entries.iter().map(|(_, v)| v.clone()).collect();
    let want: Vec<_> = (0..5u8).flat_map(|i| (0..3u8).map(move |j| vec![i, j])).collect();
    ensure!(got == want, "stamped keys are not in commit order");
    let bytes: Vec<_> = page.entries.iter().map(|(k, _)| k.len() - b"stamp/".len()).collect();
    let same = bytes.iter().all(|n| STAMP_BYTES.contains(n) && *n == bytes[0]);
    ensure!(same, "stamps have {bytes:?} bytes");
    Ok(())
}

/// Stamps of transactions that commit at once differ, and stand in the order of the commits.
pub(super) async fn concurrent_stamps(rt: &Rt, engine: &Rc<dyn Engine>) -> Result<()> {
    let mut tasks = Vec::new();
    for i in 0..WORKERS as u8 {
        let (rt2, engine) = (rt.clone(), engine.clone());
        tasks.push(rt.spawn(async move {
            let mut versions = Vec::new();
            for j in 0..8u8 {
                let tx = begin(&engine);
                tx.put_versionstamped(b"stamps/", b"/x".to_vec(), vec![i, j])?;
                versions.push((vec![i, j], tx.commit(false).await?));
                rt2.yield_now().await;
            }
            Ok::<_, Error>(versions)
        }));
    }
    let mut versions = BTreeMap::new();
    for task in tasks {
        versions.extend(task.await?);
    }
    let page = begin(engine).get_range(b"stamps/", b"stamps0", 1000, false).await?;
    let order: Vec<_> = page.entries.iter().filter_map(|(_, v)| versions.get(v)).collect();
    ensure!(order.len() == versions.len(), "{} of {} stamps", order.len(), versions.len());
    ensure!(order.is_sorted(), "stamps are not in commit order: {order:?}");
    Ok(())
}

/// For engines whose stamps are their versions: the stamp of a commit is its version.
pub async fn stamps_are_versions(engine: &Rc<dyn Engine>) -> Result<()> {
    let tx = begin(engine);
    tx.put_versionstamped(b"stampv/", vec![], vec![])?;
    let version = tx.commit(false).await?;
    let page = begin(engine).get_range(b"stampv/", b"stampv0", 1000, true).await?;
    let newest = page.entries.first().and_then(|(k, _)| k.get(7..15).map(<[u8]>::to_vec));
    ensure!(newest == Some(version.to_be_bytes().to_vec()), "the stamp is not the commit version");
    Ok(())
}
