//! The checker of the whole metadata, as the last look at a run's names.

use glowfs_client::Client;
use glowfs_namespace::fsck;
use glowfs_rt::{Duration, Rt};
use glowfs_types::routing::Role;
use glowfs_types::wire::fsck::{Fsck, FsckReply};
use glowfs_types::wire::method;
use glowfs_types::{Error, Result, Status};

/// Attempts of one question: an active service may just have been told of a take-over.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);

/// Fails with what is wrong, if something is.
pub async fn clean(rt: &Rt, client: &Client) -> Result<()> {
    let ask = async |q: Fsck| {
        let mut attempt = 0;
        loop {
            let routing = client.routing();
            let meta = routing.nodes.values().find(|n| n.role == Role::Meta).map(|n| n.id);
            let meta = meta.ok_or_else(|| Error::new(Status::NotFound, "no metadata service"))?;
            match client.node_call::<_, FsckReply>(meta, method::FSCK, &q).await {
                Err(_) if attempt < ATTEMPTS => attempt += 1,
                other => return other,
            }
            rt.sleep(PAUSE).await;
        }
    };
    let report = fsck::check(rt, &ask, &mut |_| ()).await?;
    if report.findings.is_empty() {
        return Ok(());
    }
    let all = report.findings.iter().map(|f| format!("\n  {}: {}", f.problem.name(), f.text));
    Err(Error::new(Status::Corrupt, format!("fsck:{}", all.collect::<String>())))
}
