//! All of it, in order.

use crate::args::{BenchArgs, Layer};
use crate::cluster::{self, Cluster};
use crate::cpu::Processes;
use crate::fio::{self, Place, Sweeping};
use crate::layer::{self, Given};
use crate::page;
use crate::progress::Progress;
use crate::row::{Machine, Report, Row};
use anyhow::{Context, Result, ensure};
use glowfs_rt::real;
use glowfs_rt::signal::Termination;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Whether a report can be written to this file, found out before it is measured for an hour. Nothing is changed.
fn writable(file: &Path) -> Result<()> {
    let there = file.symlink_metadata();
    // A pipe or a device is not opened before it is written to: its other end would notice.
    if there.as_ref().is_ok_and(|m| !m.is_file() && !m.is_dir() && !m.is_symlink()) {
        return Ok(());
    }
    let open = File::options().write(true).create(true).truncate(false).open(file);
    open.with_context(|| format!("{} cannot be written", file.display()))?;
    if there.is_err() {
        std::fs::remove_file(file).with_context(|| format!("removing {} again", file.display()))?;
    }
    Ok(())
}

/// Measures what was asked for and writes the report.
pub fn run(args: &BenchArgs) -> Result<()> {
    let json = args.json.iter().filter(|f| f.as_os_str() != "-");
    json.chain(&args.html).try_for_each(|f| writable(f))?;
    let report = match &args.from {
        Some(file) => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("reading {}", file.display()))?;
            serde_json::from_str(&text)
                .with_context(|| format!("{} is no result of a benchmark", file.display()))?
        }
        None => measure(args)?,
    };
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&report)?;
        if file.as_os_str() == "-" {
            println!("{text}");
        } else {
            std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
        }
    }
    if let Some(file) = &args.html {
        std::fs::write(file, page::page(&report))
            .with_context(|| format!("writing {}", file.display()))?;
        eprintln!("{}", file.display());
    }
    Ok(())
}

fn measure(args: &BenchArgs) -> Result<Report> {
    ensure!(
        args.seconds > 0.0 && args.seconds < 1e6 && args.fio_seconds > 0,
        "a measurement takes some time"
    );
    ensure!(args.size >= 64 << 20, "--size: at least 64M");
    let bounded = |all: &[u32]| all.iter().all(|n| (1..=4096).contains(n));
    ensure!(bounded(&args.depths) && bounded(&args.jobs), "--depths, --jobs: from 1 to 4096");
    // What comes last is looked for first: it would be missed after all else was measured.
    if args.wants(Layer::Sweep) {
        fio::find()?;
        if let Some(engine) = &args.fio_engine {
            ensure!(engine.is_file(), "--fio-engine: there is no file {}", engine.display());
        }
    }
    let dir = tempfile::Builder::new().prefix("glowfs-bench.").tempdir_in(&args.dir);
    let dir = dir.with_context(|| format!("--dir {}", args.dir.display()))?;
    end_on_signal(dir.path().to_owned())?;
    let progress = Progress::new();
    let mut report = Report {
        format: 1,
        version: env!("CARGO_PKG_VERSION").into(),
        optimised: !cfg!(debug_assertions),
        unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        seconds: [args.seconds, f64::from(args.fio_seconds)],
        machine: Machine::here(),
        rows: vec![],
    };
    let m = &report.machine;
    progress.part(&format!("{} x {}, Linux {}, load {}", m.cores, m.cpu, m.kernel, m.load));
    if !report.optimised {
        progress.part("This is a build without optimisation: the figures say little.");
    }
    let done = alone(args, dir.path(), &progress, &mut report.rows)
        .and_then(|()| on_clusters(args, dir.path(), &progress, &mut report.rows));
    cluster::leave_to_interrupt();
    done.map(|()| report)
}

/// Ctrl-C or SIGTERM: ends the clusters, removes the directory, ends. (Made before other threads are: they inherit the mask.)
fn end_on_signal(dir: PathBuf) -> Result<()> {
    let termination = Termination::new()?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        if real::run(|rt| async move { termination.wait(&rt).await }).is_err() {
            return;
        }
        eprintln!("\nending the clusters of the benchmark ...");
        cluster::interrupt();
        fio::end_running();
        cluster::remove_all(&dir);
        std::process::exit(130);
    })?;
    Ok(())
}

fn given(args: &BenchArgs, progress: &Progress, below: &[Row]) -> Given {
    let time = Duration::from_secs_f64(args.seconds);
    Given { time, size: args.size, progress: *progress, below: below.into() }
}

/// The layers that need no cluster.
fn alone(args: &BenchArgs, dir: &Path, progress: &Progress, rows: &mut Vec<Row>) -> Result<()> {
    // The disk is the limit of what is above it.
    let above = [Layer::Store, Layer::Storage, Layer::Client, Layer::Mount];
    if args.wants(Layer::Disk) || above.iter().any(|l| args.wants(*l)) {
        progress.part("disk: direct I/O through the runtime");
        let (given, dir) = (given(args, progress, rows), dir.to_owned());
        rows.extend(real::run(move |rt| async move { layer::disk(&rt, &dir, given).await })?);
    }
    if args.wants(Layer::Checksum) {
        progress.part("checksum");
        rows.extend(layer::checksum(given(args, progress, rows)));
    }
    if args.wants(Layer::Ring) {
        progress.part("ring: two threads, no file system");
        rows.extend(layer::ring(given(args, progress, rows))?);
    }
    if args.wants(Layer::Transport) {
        progress.part("transport: two threads");
        let (given, socket) = (given(args, progress, rows), dir.join("mirror"));
        let work = move |rt| async move { layer::transport(&rt, socket, given).await };
        rows.extend(real::run(work)?);
    }
    if args.wants(Layer::Store) {
        progress.part("store: one target");
        let store = dir.join("store");
        std::fs::create_dir(&store)?;
        let (given, place) = (given(args, progress, rows), store.clone());
        rows.extend(real::run(move |rt| async move { layer::store(&rt, &place, given).await })?);
        std::fs::remove_dir_all(&store)?;
    }
    Ok(())
}

/// The layers that do.
fn on_clusters(
    args: &BenchArgs,
    dir: &Path,
    progress: &Progress,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let left_out = args.layer.is_empty() && !layer::network_can_be_measured();
    if left_out {
        progress.part(
            "network: left out, for there is no iperf3 here (Debian: apt-get install iperf3)",
        );
    } else if args.wants(Layer::Network) {
        progress.part("network: one storage service on memory, TCP between namespaces");
        let cluster = Cluster::separate_in_memory(&dir.join("memory"), 1, 1)?;
        rows.extend(layer::network(&cluster, given(args, progress, rows))?);
    }
    if args.wants(Layer::Storage) {
        progress.part("storage: one service, one replica, by the client library");
        let cluster = Cluster::start(&dir.join("one"), 1, 1)?;
        let (given, access) = (given(args, progress, rows), cluster.access.clone());
        let work = move |rt| async move { layer::client(&rt, "storage", &access, 1, given).await };
        rows.extend(real::run(work)?);
    }
    if !args.wants(Layer::Client) && !args.wants(Layer::Mount) && !args.wants(Layer::Sweep) {
        return Ok(());
    }
    progress.part("cluster: three storage nodes of two disks, three replicas, all on this disk");
    let cluster = Cluster::start(&dir.join("three"), 3, 2)?;
    if args.wants(Layer::Client) {
        progress.part("client: three replicas");
        let (given, access) = (given(args, progress, rows), cluster.access.clone());
        let work = move |rt| async move { layer::client(&rt, "client", &access, 3, given).await };
        rows.extend(real::run(work)?);
    }
    if args.wants(Layer::Mount) {
        progress.part("mount: system calls of threads, then rings");
        rows.extend(layer::mount(&cluster, given(args, progress, rows))?);
    }
    if args.wants(Layer::Sweep) {
        let local = dir.join("local");
        std::fs::create_dir(&local)?;
        let sweeping = Sweeping {
            sweep: args.sweep,
            blocks: &args.blocks,
            depths: &args.depths,
            jobs: &args.jobs,
            seconds: args.fio_seconds,
            size: args.size,
        };
        rows.extend(sweeping.run(&places(args, &local, &cluster)?, progress)?);
    }
    Ok(())
}

/// What is swept: a directory of the disk first, for the others are held against it.
fn places(args: &BenchArgs, local: &Path, cluster: &Cluster) -> Result<Vec<Place>> {
    let kernel = || vec!["--ioengine=io_uring".to_owned()];
    let who = || cluster.access.who.clone();
    let here = Place {
        name: "local",
        dir: local.into(),
        engine: kernel(),
        copies: 1.0,
        who: Processes::default(),
    };
    let mount = Place {
        name: "mount",
        dir: cluster.mount.clone(),
        engine: kernel(),
        copies: 3.0,
        who: who(),
    };
    let mut places = vec![here, mount];
    if let Some(engine) = &args.fio_engine {
        let engine =
            engine.canonicalize().with_context(|| format!("fio's engine {}", engine.display()))?;
        let engine = vec![
            format!("--ioengine=external:{}", engine.display()),
            format!("--mountpoint={}", cluster.mount.display()),
            "--thread".to_owned(),
        ];
        places.push(Place {
            name: "rings",
            dir: cluster.mount.clone(),
            engine,
            copies: 3.0,
            who: who(),
        });
    }
    Ok(places)
}
