//! Many clients in one directory, and on one file, beside the same clients in directories and on files of their own: native clients of
//! the client library, all in this process, on a `glowfs dev` cluster. By turns, with what the metadata services had to do again.
//!
//! `one_directory DIR [operations a client] [turns] [clients]`. It works in a directory of its own, and removes it at the end.

use anyhow::{Context, Result, bail};
use glowfs_bench::Processes;
use glowfs_client::{Client, ClientConfig};
use glowfs_dev::status::{self, Status};
use glowfs_rt::{Rt, real};
use glowfs_types::wire::meta::{Caller, InodeKind, Make, Name, ROOT_INODE, SetAttr};
use glowfs_types::wire::tree::RemoveTree;
use glowfs_types::{InodeId, RequestId};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::rc::Rc;

/// What is shown of each metadata service's metrics, by the operation.
const SHOWN: [(&str, &str); 6] = [
    ("glowfs_meta_transactions_total", "transactions"),
    ("glowfs_meta_transactions_again_total", "again"),
    ("glowfs_etcd_transactions_total", "etcd's"),
    ("glowfs_etcd_sums_again_total", "for sums"),
    ("glowfs_etcd_conflicts_total", "conflicts"),
    ("glowfs_etcd_reads_total", "reads"),
];

/// Each on its own, and then all together.
const ROWS: [&str; 4] =
    ["create: own directories", "create: one directory", "chmod: own files", "chmod: one file"];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(dir) = args.first().cloned() else {
        bail!("one_directory DIR [operations a client] [turns] [clients]");
    };
    let number = |at: usize, or: u64| args.get(at).map_or(Ok(or), |n| n.parse());
    let (each, turns, clients) = (number(1, 1000)?, number(2, 3)?, number(3, 16)?);
    let status = status::status(Path::new(&dir))?;
    let token = std::fs::read_to_string(&status.token_file)
        .with_context(|| format!("reading {}", status.token_file.display()))?;
    real::run(move |rt| async move {
        let mut all = Vec::new();
        for _ in 0..clients {
            let config = ClientConfig {
                mgmtd: status.mgmtd.clone(),
                token: token.trim().to_owned(),
                description: "one directory".into(),
                ..ClientConfig::default()
            };
            all.push(Client::connect(&rt, config.on_this_host()).await?);
        }
        let bench = Bench { rt, status, clients: all, each };
        let done = bench.run(turns).await;
        for client in &bench.clients {
            client.close().await;
        }
        done
    })
}

struct Bench {
    rt: Rt,
    status: Status,
    clients: Vec<Rc<Client>>,
    /// Operations of each client in a row.
    each: u64,
}

impl Bench {
    async fn run(&self, turns: u64) -> Result<()> {
        let name = format!("one-directory-{}", std::process::id());
        let top = self.make(0, ROOT_INODE, &name, InodeKind::Directory).await?;
        let counted: Vec<&str> = SHOWN.iter().map(|(_, shown)| *shown).collect();
        println!(
            "{:<24} {:>8} {:>8} {:>8}   {}",
            "row",
            "ops/s",
            "us meta",
            "us all",
            counted.join(", ")
        );
        let mut rates: BTreeMap<&str, f64> = BTreeMap::new();
        for turn in 0..turns {
            let place = self.make(0, top, &format!("turn-{turn}"), InodeKind::Directory).await?;
            let one = self.make(0, place, "one", InodeKind::Directory).await?;
            let file = self.make(0, place, "file", InodeKind::File).await?;
            let (mut own, mut files) = (Vec::new(), Vec::new());
            for c in 0..self.clients.len() {
                own.push(self.make(c, place, &format!("own-{c}"), InodeKind::Directory).await?);
                files.push(self.make(c, place, &format!("file-{c}"), InodeKind::File).await?);
            }
            let all = [
                self.creates(ROWS[0], |c| own[c]).await?,
                self.creates(ROWS[1], |_| one).await?,
                self.chmods(ROWS[2], |c| files[c]).await?,
                self.chmods(ROWS[3], |_| file).await?,
            ];
            for (row, rate) in ROWS.iter().zip(all) {
                *rates.entry(row).or_default() += rate;
            }
        }
        for pair in ROWS.chunks(2) {
            println!("{} / {}: {:.2}", pair[1], pair[0], rates[pair[1]] / rates[pair[0]]);
        }
        let tree = RemoveTree {
            caller: Caller::default(),
            request: RequestId(0),
            parent: ROOT_INODE,
            name: Name::from(name.into_bytes()),
            inode: top,
            check: false,
        };
        self.clients[0].remove_tree(tree).await?;
        Ok(())
    }

    async fn creates(&self, row: &str, at: impl Fn(usize) -> InodeId) -> Result<f64> {
        self.measured(row, async |c, i| {
            self.make(c, at(c), &format!("of-{c}-{i}"), InodeKind::File).await.map(drop)
        })
        .await
    }

    async fn chmods(&self, row: &str, at: impl Fn(usize) -> InodeId) -> Result<f64> {
        self.measured(row, async |c, i| {
            let mode = Some(if i % 2 == 0 { 0o644 } else { 0o640 });
            let set = SetAttr { inode: at(c), mode, ..SetAttr::default() };
            self.clients[c].setattr(set).await.map(drop).map_err(Into::into)
        })
        .await
    }

    async fn make(
        &self,
        c: usize,
        parent: InodeId,
        name: &str,
        kind: InodeKind,
    ) -> Result<InodeId> {
        let make = Make {
            caller: Caller::default(),
            request: RequestId(0),
            parent,
            name: Name::from(name.as_bytes().to_vec()),
            kind,
            mode: 0o755,
            exclusive: true,
            ..Make::default()
        };
        Ok(self.clients[c].make(make).await?.attr.inode)
    }

    /// `work(client, number)`: one after the other for each client, all clients at once. Operations a second.
    async fn measured(
        &self,
        row: &str,
        work: impl AsyncFn(usize, u64) -> Result<()>,
    ) -> Result<f64> {
        let (meta, all) = (self.processes(|role| role == "meta"), self.processes(|_| true));
        let counted = self.counted()?;
        let (cpu_meta, cpu_all, begin) = (meta.others(), all.seconds(), self.rt.now());
        let work = &work;
        let clients = (0..self.clients.len()).map(|c| async move {
            for i in 0..self.each {
                work(c, i).await?;
            }
            Ok::<(), anyhow::Error>(())
        });
        for done in glowfs_rt::sync::join_all(clients).await {
            done.with_context(|| format!("row «{row}»"))?;
        }
        let seconds = self.rt.now().since(begin).as_secs_f64();
        let ops = (self.each * self.clients.len() as u64) as f64;
        let us = |after: f64, before: f64| (after - before) * 1e6 / ops;
        let (cpu_meta, cpu_all) = (us(meta.others(), cpu_meta), us(all.seconds(), cpu_all));
        let after = self.counted()?;
        let by_operation = |(a, b): (&f64, &f64)| format!("{:.3}", (a - b) / ops);
        let shown: Vec<String> = after.iter().zip(&counted).map(by_operation).collect();
        let rate = ops / seconds;
        println!("{row:<24} {rate:>8.0} {cpu_meta:>8.1} {cpu_all:>8.1}   {}", shown.join(", "));
        Ok(rate)
    }

    fn processes(&self, of: impl Fn(&str) -> bool) -> Processes {
        let services = self.status.services.iter().filter(|s| of(&s.role));
        Processes(services.filter_map(|s| s.pid).collect())
    }

    /// The sums of [`SHOWN`] over all metadata services.
    fn counted(&self) -> Result<Vec<f64>> {
        let mut sums = vec![0.0; SHOWN.len()];
        for service in self.status.services.iter().filter(|s| s.role == "meta") {
            let mut stream = TcpStream::connect(&service.http)?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            for line in text.lines() {
                let Some((name, value)) = line.split_once(' ') else { continue };
                if let Some(at) = SHOWN.iter().position(|(metric, _)| *metric == name) {
                    sums[at] += value.parse::<f64>().unwrap_or(0.0);
                }
            }
        }
        Ok(sums)
    }
}
