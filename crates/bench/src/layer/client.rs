//! The client library on a cluster of our own: with one storage service and one replica it shows the service, with three the chain.

use super::{Given, LOADS};
use crate::cluster::Access;
use crate::drive::{drive, scatter};
use crate::row::Row;
use anyhow::{Context, Result, ensure};
use glowfs_client::{Client, ClientConfig, FileAccess, OpenFile};
use glowfs_rt::{Buf, Rt};
use glowfs_types::RequestId;
use glowfs_types::wire::meta::{Caller, InodeKind, Make, Name, OpenFlags, ROOT_INODE};
use std::pin::Pin;
use std::rc::Rc;

/// See the module. The limit is the disk with the same load, divided by the copies.
pub async fn client(
    rt: &Rt,
    layer: &'static str,
    cluster: &Access,
    copies: u32,
    given: Given,
) -> Result<Vec<Row>> {
    with_file(rt, cluster, given.size, async |file| {
        let mut rows = vec![];
        let way = if copies == 1 { "1 replica" } else { "replicas" };
        for (what, bytes, depth) in LOADS {
            let mut plan = given.plan(layer, what, way, bytes, depth);
            plan.who = cluster.who.clone();
            let row = drive(rt, &plan, file.operation(rt, what, bytes)).await?;
            given.done(&mut rows, given.limited(row, f64::from(copies)));
        }
        Ok(rows)
    })
    .await
}

/// Makes a file of `size` bytes over the client library, and lets `work` have it.
pub(super) async fn with_file<T>(
    rt: &Rt,
    cluster: &Access,
    size: u64,
    work: impl AsyncFnOnce(FileLoad) -> Result<T>,
) -> Result<T> {
    let config = ClientConfig {
        mgmtd: cluster.mgmtd.clone(),
        token: cluster.token.clone(),
        description: "glowfs bench".into(),
        ..ClientConfig::default()
    };
    let client =
        Client::connect(rt, config.on_this_host()).await.context("reaching the cluster")?;
    let result = match FileLoad::new(rt, &client, size).await {
        Ok(file) => work(file).await,
        Err(e) => Err(e),
    };
    client.close().await;
    result
}

/// Loads on one file.
#[derive(Clone)]
pub(super) struct FileLoad {
    file: Rc<OpenFile>,
    size: u64,
    data: Buf,
}

impl FileLoad {
    async fn new(rt: &Rt, client: &Rc<Client>, size: u64) -> Result<Self> {
        let file = make(client).await?;
        let mut data = rt.alloc(1 << 20);
        data.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 7 + i / 4096) as u8);
        let data = data.freeze();
        for at in (0..size).step_by(data.len()) {
            file.write(at, data.clone()).await.context("filling the file")?;
        }
        Ok(Self { file, size, data })
    }

    /// Reads or writes so many bytes (at most 1 MiB) at scattered places.
    pub(super) fn operation(
        &self,
        rt: &Rt,
        what: &'static str,
        bytes: u64,
    ) -> impl Fn(u64) -> Pin<Box<dyn Future<Output = Result<()>>>> + 'static {
        let (rt, this, places) = (rt.clone(), self.clone(), self.size / bytes);
        move |n| {
            let (rt, this) = (rt.clone(), this.clone());
            Box::pin(async move {
                let at = scatter(n, places) * bytes;
                if what == "read" {
                    let got = this.file.read(at, rt.alloc(bytes as usize)).await.0?;
                    ensure!(got == bytes as usize, "a short read");
                } else {
                    this.file.write(at, this.data.slice(0..bytes as usize)).await?;
                }
                Ok(())
            })
        }
    }
}

async fn make(client: &Rc<Client>) -> Result<Rc<OpenFile>> {
    let caller = Caller::default();
    let flags = OpenFlags {
        read: true,
        write: true,
        truncate: false,
        append: false,
        inline: false,
        exec: false,
        session: client.new_session(),
    };
    let make = Make {
        caller: caller.clone(),
        request: RequestId(0),
        parent: ROOT_INODE,
        name: Name::from(b"bench-client".to_vec()),
        kind: InodeKind::File,
        mode: 0o644,
        open: Some(flags),
        exclusive: true,
        ..Make::default()
    };
    let opened = client.make(make).await?.open.context("the file was made and not opened")?;
    Ok(client.open_file(&opened, FileAccess { caller, read: true, write: true, exec: false })?)
}
