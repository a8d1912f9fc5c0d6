//! `meta dump|load|skip-ids`: all metadata as a file, and back, and the ids of an older copy. They open the engine themselves, so they need no cluster that runs.

use crate::args::{AdminArgs, Command, MetaCommand};
use crate::output::{Output, bytes};
use crate::part::Part;
use crate::progress::ProgressLine;
use anyhow::{Context, Result, bail};
use glowfs_kv::dump::format::{Header, Reader, Summary};
use glowfs_kv::{
    Embedded, Engine, EngineConfig, RunOptions, Transaction, dump, run_transaction_with,
};
use glowfs_meta::{MetaConfig, VOLUME, open_engine};
use glowfs_mgmtd::skip_targets;
use glowfs_namespace::skip_ids;
use glowfs_rt::Rt;
use glowfs_types::Status;
use serde::Serialize;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;
use std::rc::Rc;

/// Bytes read from or written to the file at once.
const FILE_BYTES: usize = 1 << 20;

#[derive(Serialize)]
struct Shown {
    cluster: String,
    version: u64,
    taken_ns: u64,
    entries: u64,
    bytes: u64,
    /// BLAKE3.
    digest: String,
    /// What was done with it.
    done: &'static str,
}

/// The key of mgmtd's record of the cluster (docs/formats/mgmtd.md). Where it is not, there is no cluster's metadata: another cluster id or another etcd was named than the
/// services have, and a good dump would be replaced by nothing.
const CLUSTER_RECORD: &[u8] = b"mgmtd/cluster/";

/// How a dump is loaded.
#[derive(Clone, Copy, Default)]
struct How {
    /// Only verified.
    dry_run: bool,
    /// What is there is removed first.
    replace: bool,
    /// Also one without a record of the cluster.
    any: bool,
}

/// Whether a command works without a cluster.
pub fn offline(args: &AdminArgs) -> bool {
    matches!(args.command, Command::Meta { .. })
}

/// Runs such a command.
pub async fn run(rt: &Rt, args: &AdminArgs) -> Result<()> {
    let out = Output { json: args.json };
    match &args.command {
        Command::Meta { command: MetaCommand::Dump { online, without_cluster, file, config } } => {
            let mut config = read_config(config)?;
            if *online && matches!(config.engine, EngineConfig::Embedded { .. }) {
                config.engine = EngineConfig::Remote { addresses: config.listen.clone() };
            }
            write(rt, out, file, &config, *without_cluster).await
        }
        Command::Meta {
            command: MetaCommand::Load { file, config, dry_run, without_cluster, replace, yes },
        } => {
            if *replace && !*yes && !*dry_run {
                bail!("--replace removes all that is in the engine; say --yes as well");
            }
            let how = How { dry_run: *dry_run, replace: *replace, any: *without_cluster };
            load(rt, out, file, &read_config(config)?, how).await
        }
        Command::Meta { command: MetaCommand::SkipIds { config } } => {
            skip_in(rt, out, &read_config(config)?).await
        }
        _ => {
            bail!("this command needs a cluster: --mgmtd HOST:PORT --token-file FILE, or --dev DIR")
        }
    }
}

fn read_config(path: &Path) -> Result<MetaConfig> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {shown}"))?;
    let config: MetaConfig = toml::from_str(&text)
        .with_context(|| format!("{shown} is not the configuration of a metadata service"))?;
    config.validate()?;
    Ok(config)
}

fn show(out: Output, header: &Header, sum: &Summary, done: &'static str) -> Result<()> {
    let shown = Shown {
        cluster: header.cluster.to_string(),
        version: header.version,
        taken_ns: header.taken_ns,
        entries: sum.entries,
        bytes: sum.bytes,
        digest: sum.digest.iter().map(|b| format!("{b:02x}")).collect(),
        done,
    };
    out.either(&shown, |s| {
        let size = bytes(s.bytes);
        format!(
            "{}: {} keys, {size}, cluster {}, digest {}\n",
            s.done, s.entries, s.cluster, s.digest
        )
    })
}

async fn close(embedded: Option<Embedded>) -> Result<()> {
    match embedded {
        Some(engine) => Ok(engine.close().await.context("closing the engine")?),
        None => Ok(()),
    }
}

/// An engine that is opened must not be a new one.
fn must_be_there(config: &MetaConfig) -> Result<()> {
    if let EngineConfig::Embedded { dir } = &config.engine
        && !std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
    {
        bail!("there is no metadata in {}", dir.display());
    }
    Ok(())
}

/// Leaves out what was given out since this metadata was copied: ids under which stores hold something, chunks or whole targets.
async fn skip(tx: &Transaction) -> glowfs_types::Result<()> {
    skip_ids(tx, VOLUME, &[], None).await?;
    skip_targets(tx).await
}

async fn skip_in(rt: &Rt, out: Output, config: &MetaConfig) -> Result<()> {
    must_be_there(config)?;
    let (engine, embedded) = open_engine(rt, config, "meta-skip-ids", None).await?;
    let options = RunOptions { idempotent: true, ..RunOptions::durable() };
    let work = async |tx: &Transaction| {
        dump::check_whole(tx).await?;
        skip(tx).await
    };
    let skipped = run_transaction_with(rt, &engine, options, work).await;
    close(embedded).await?;
    skipped.context("skipping ids")?;
    out.either(&serde_json::json!({ "done": "skipped" }), |_| {
        "skipped: new files and targets get ids that none had\n".to_owned()
    })
}

async fn write(rt: &Rt, out: Output, file: &Path, config: &MetaConfig, any: bool) -> Result<()> {
    let mut part = Part::new(file, || rt.random())?;
    must_be_there(config)?;
    let in_use = |e: glowfs_types::Error| match e.status {
        Status::Busy => e.context("--online dumps it while it is in use"),
        _ => e,
    };
    let (engine, embedded) = open_engine(rt, config, "meta-dump", None).await.map_err(in_use)?;
    let header = Header { cluster: config.cluster()?, taken_ns: rt.unix_ns(), version: 0 };
    let mut line = ProgressLine::new(rt);
    let writer = BufWriter::with_capacity(FILE_BYTES, &mut part.file);
    let written = dump::dump(&engine, header, writer, |n| line.show("dumping keys", n, 0)).await;
    drop(line);
    close(embedded).await?;
    written
        .map_err(anyhow::Error::from)
        .and_then(|_| Ok(part.file.sync_all()?))
        .context("dumping")?;
    // As it is on the disk, not as it was in memory.
    let (header, sum, of_cluster) = verify(rt, &part.path)?;
    if !of_cluster && !any {
        bail!(
            "no cluster has its metadata in this engine: are `cluster_id` and `[engine]` those of its services? Nothing was written (--without-cluster: dump it nevertheless)"
        );
    }
    part.name(file)?;
    show(out, &header, &sum, "dumped and verified")
}

fn open(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    Ok(BufReader::with_capacity(FILE_BYTES, file))
}

/// Reads a whole dump; also, whether it has the record of a cluster.
fn verify(rt: &Rt, file: &Path) -> Result<(Header, Summary, bool)> {
    let mut line = ProgressLine::new(rt);
    let mut read = || {
        let mut reader = Reader::new(open(file)?)?;
        let mut of_cluster = false;
        while let Some(block) = reader.next_block()? {
            of_cluster |= block.iter().any(|(key, _)| key == CLUSTER_RECORD);
            line.show("verifying keys", reader.entries(), 0);
        }
        anyhow::Ok((reader.header().clone(), reader.summary()?, of_cluster))
    };
    read().with_context(|| format!("{}", file.display()))
}

async fn load(rt: &Rt, out: Output, file: &Path, config: &MetaConfig, how: How) -> Result<()> {
    let (header, sum, of_cluster) = verify(rt, file)?;
    if header.cluster != config.cluster()? {
        let (of, want) = (header.cluster, &config.cluster_id);
        bail!("{} is of cluster {of}, the configuration of {want}", file.display());
    }
    if !of_cluster && !how.any {
        bail!(
            "{} has no record of a cluster: the engine that was dumped was not that of the services. Loaded, it would be a new, empty file system (--without-cluster: nevertheless)",
            file.display()
        );
    }
    if how.dry_run {
        return show(out, &header, &sum, "verified");
    }
    if let EngineConfig::Embedded { dir } = &config.engine {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    }
    let (engine, embedded) = open_engine(rt, config, "meta-load", Some(header.version)).await?;
    let loaded = load_into(rt, &engine, file, how.replace, &sum).await;
    close(embedded).await?;
    loaded?;
    show(out, &header, &sum, "loaded and read back")
}

async fn load_into(
    rt: &Rt,
    engine: &Rc<dyn Engine>,
    file: &Path,
    replace: bool,
    verified: &Summary,
) -> Result<()> {
    let mut line = ProgressLine::new(rt);
    let of = |n| line.show("loading keys", n, 0);
    let sum = dump::load(rt, engine, open(file)?, replace, of).await?;
    dump::compare(engine, open(file)?, |n| line.show("reading keys back", n, 0)).await?;
    if sum != *verified {
        bail!("{} was changed while it was loaded; load again with --replace", file.display());
    }
    // What was made since it was dumped has left chunks and targets behind.
    Ok(dump::finish(rt, engine, skip).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_kv::dump::format::BlockWriter;
    use glowfs_rt::real;
    use glowfs_types::ClusterId;

    const CLUSTER: &str = "0123456789abcdef0123456789abcdef";

    /// A dump with this key, and the configuration of an engine that is not there yet.
    fn dump_with(dir: &Path, key: &[u8]) -> (std::path::PathBuf, MetaConfig) {
        let file = dir.join("some.dump");
        let cluster: ClusterId = CLUSTER.parse().expect("an id");
        let header = Header { cluster, taken_ns: 1, version: 5 };
        let to = File::create(&file).expect("made");
        let mut writer = BlockWriter::new(to, &header).expect("begun");
        writer.push(key, b"x").expect("written");
        writer.finish().expect("ended");
        std::fs::write(dir.join("token"), "secret").expect("a token");
        let text = format!(
            "node_id = 1\ncluster_id = \"{CLUSTER}\"\nmgmtd = [\"tcp://127.0.0.1:1\"]\nservice_token_file = \"{0}/token\"\n[engine]\nkind = \"embedded\"\ndir = \"{0}/engine\"\n",
            dir.display()
        );
        (file, toml::from_str(&text).expect("a configuration"))
    }

    /// Another id of a cluster in the configuration names an empty part of etcd; a dump of that replaced good ones.
    #[test]
    fn what_has_no_record_of_a_cluster_is_neither_loaded_nor_dumped_without_being_told() {
        real::run(|rt| async move {
            let dir = tempfile::tempdir().expect("a directory");
            let (file, config) = dump_with(dir.path(), b"other");
            let out = Output { json: true };
            for how in [How::default(), How { dry_run: true, ..How::default() }] {
                let e = load(&rt, out, &file, &config, how).await.expect_err("no cluster");
                assert!(e.to_string().contains("no record of a cluster"), "{e:#}");
            }
            assert!(!dir.path().join("engine").exists(), "nothing was made");
            let told = How { any: true, ..How::default() };
            load(&rt, out, &file, &config, told).await.expect("told");
            let again = dir.path().join("again.dump");
            let e = write(&rt, out, &again, &config, false).await.expect_err("no cluster");
            assert!(e.to_string().contains("no cluster has its metadata"), "{e:#}");
            assert!(!again.exists());
            write(&rt, out, &again, &config, true).await.expect("told");
        });
    }

    #[test]
    fn a_dump_of_a_cluster_is_loaded_and_dumped() {
        real::run(|rt| async move {
            let dir = tempfile::tempdir().expect("a directory");
            let (file, config) = dump_with(dir.path(), CLUSTER_RECORD);
            let out = Output { json: true };
            load(&rt, out, &file, &config, How::default()).await.expect("loaded");
            let again = dir.path().join("again.dump");
            write(&rt, out, &again, &config, false).await.expect("dumped");
            assert_eq!(
                gone(&again),
                1,
                "the ids of targets that were made since are not given out"
            );
            skip_in(&rt, out, &config).await.expect("skipped");
            let third = dir.path().join("third.dump");
            write(&rt, out, &third, &config, false).await.expect("dumped");
            assert_eq!(gone(&third), 2);
        });
    }

    /// How many targets count as removed in a dump.
    fn gone(file: &Path) -> usize {
        let mut reader = Reader::new(open(file).expect("opened")).expect("begun");
        let mut count = 0;
        while let Some(block) = reader.next_block().expect("read") {
            count += block.iter().filter(|(key, _)| key.starts_with(b"mgmtd/gone/")).count();
        }
        count
    }
}
