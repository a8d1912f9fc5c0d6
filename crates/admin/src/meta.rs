//! `meta dump|load|skip-ids`: all metadata as a file, and back, and the ids of an older copy. They open the engine themselves, so they need no cluster that runs.

use crate::args::{AdminArgs, Command, MetaCommand};
use crate::output::{Output, bytes};
use crate::part::Part;
use crate::progress::ProgressLine;
use anyhow::{Context, Result, bail};
use glowfs_kv::dump::format::{Header, Summary};
use glowfs_kv::{
    Embedded, Engine, EngineConfig, RunOptions, Transaction, dump, run_transaction_with,
};
use glowfs_meta::{MetaConfig, VOLUME, open_engine};
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

/// Whether a command works without a cluster.
pub fn offline(args: &AdminArgs) -> bool {
    matches!(args.command, Command::Meta { .. })
}

/// Runs such a command.
pub async fn run(rt: &Rt, args: &AdminArgs) -> Result<()> {
    let out = Output { json: args.json };
    match &args.command {
        Command::Meta { command: MetaCommand::Dump { online, file, config } } => {
            let mut config = read_config(config)?;
            if *online && matches!(config.engine, EngineConfig::Embedded { .. }) {
                config.engine = EngineConfig::Remote { addresses: config.listen.clone() };
            }
            write(rt, out, file, &config).await
        }
        Command::Meta { command: MetaCommand::Load { file, config, dry_run, replace, yes } } => {
            if *replace && !*yes && !*dry_run {
                bail!("--replace removes all that is in the engine; say --yes as well");
            }
            load(rt, out, file, &read_config(config)?, (*dry_run, *replace)).await
        }
        Command::Meta { command: MetaCommand::SkipIds { config } } => {
            skip(rt, out, &read_config(config)?).await
        }
        _ => bail!("this command needs a cluster"),
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

async fn skip(rt: &Rt, out: Output, config: &MetaConfig) -> Result<()> {
    must_be_there(config)?;
    let (engine, embedded) = open_engine(rt, config, "meta-skip-ids", None).await?;
    let options = RunOptions { idempotent: true, ..RunOptions::durable() };
    let work = async |tx: &Transaction| {
        dump::check_whole(tx).await?;
        skip_ids(tx, VOLUME, &[], None).await
    };
    let skipped = run_transaction_with(rt, &engine, options, work).await;
    close(embedded).await?;
    skipped.context("skipping ids")?;
    out.either(&serde_json::json!({ "done": "skipped" }), |_| {
        "skipped: new files get ids that no file had\n".to_owned()
    })
}

async fn write(rt: &Rt, out: Output, file: &Path, config: &MetaConfig) -> Result<()> {
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
    let (header, sum) = verify(rt, &part.path)?;
    part.name(file)?;
    show(out, &header, &sum, "dumped and verified")
}

fn open(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    Ok(BufReader::with_capacity(FILE_BYTES, file))
}

fn verify(rt: &Rt, file: &Path) -> Result<(Header, Summary)> {
    let mut line = ProgressLine::new(rt);
    let found = dump::verify(open(file)?, |n| line.show("verifying keys", n, 0));
    found.with_context(|| format!("{}", file.display()))
}

async fn load(
    rt: &Rt,
    out: Output,
    file: &Path,
    config: &MetaConfig,
    (dry_run, replace): (bool, bool),
) -> Result<()> {
    let (header, sum) = verify(rt, file)?;
    if header.cluster != config.cluster()? {
        let (of, want) = (header.cluster, &config.cluster_id);
        bail!("{} is of cluster {of}, the configuration of {want}", file.display());
    }
    if dry_run {
        return show(out, &header, &sum, "verified");
    }
    if let EngineConfig::Embedded { dir } = &config.engine {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    }
    let (engine, embedded) = open_engine(rt, config, "meta-load", Some(header.version)).await?;
    let loaded = load_into(rt, &engine, file, replace, &sum).await;
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
    // What was made since it was dumped has left chunks behind.
    let skip = async |tx: &Transaction| skip_ids(tx, VOLUME, &[], None).await.map(|_| ());
    Ok(dump::finish(rt, engine, skip).await?)
}
