//! The command line.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// What can be measured, from the bottom upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Layer {
    /// The disk alone (direct I/O through the runtime): the limit of what is above it
    Disk,
    /// CRC-32C
    Checksum,
    /// User-space rings: both ends in memory, no file system behind
    Ring,
    /// Calls and bulk over TCP, a Unix socket, a Unix socket with shared memory
    Transport,
    /// TCP between two network namespaces: a storage service on memory, a bare server of messages, one stream of iperf3 (root)
    Network,
    /// The chunk store alone
    Store,
    /// One storage service, one replica, asked by the client library
    Storage,
    /// The client library, three replicas
    Client,
    /// A mount and its rings, three replicas
    Mount,
    /// fio on a mount and on a local directory, over block size, depth and jobs
    Sweep,
}

/// How much the sweep covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sweep {
    /// Random reads and writes; depth 1 to 64 by fours; 1 and 4 jobs
    Short,
    /// Also sequential ones; depth and jobs 1 to 128 by twos
    Full,
}

/// Benchmarks of each layer, and sweeps with fio
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Only these (may be repeated) [default: all]
    #[arg(long, value_name = "LAYER")]
    pub layer: Vec<Layer>,
    /// Length of each measurement
    #[arg(long, default_value_t = 0.5, value_name = "SECONDS")]
    pub seconds: f64,
    /// Length of each run of fio
    #[arg(long, default_value_t = 1, value_name = "SECONDS")]
    pub fio_seconds: u32,
    /// How much the sweep covers
    #[arg(long, value_enum, default_value = "short")]
    pub sweep: Sweep,
    /// Block sizes of the sweep
    #[arg(long, value_delimiter = ',', default_value = "4K,64K,1M,4M", value_parser = size, value_name = "SIZES")]
    pub blocks: Vec<u64>,
    /// Depths of the sweep [default: as --sweep says]
    #[arg(long, value_delimiter = ',', value_name = "DEPTHS")]
    pub depths: Vec<u32>,
    /// Numbers of jobs of the sweep [default: as --sweep says]
    #[arg(long, value_delimiter = ',', value_name = "JOBS")]
    pub jobs: Vec<u32>,
    /// Where clusters, stores and files are made (in a directory of their own, which is removed at the end)
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub dir: PathBuf,
    /// Size of the files and stores that are read and written
    #[arg(long, default_value = "256M", value_parser = size, value_name = "SIZE")]
    pub size: u64,
    /// fio's engine of the rings (scripts/fio-engine builds it): sweeps them as well
    #[arg(long, value_name = "FILE")]
    pub fio_engine: Option<PathBuf>,
    /// Write the results as JSON («-»: to standard output)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the report as one HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Make the page of results that `--json` wrote before, and measure nothing
    #[arg(long, value_name = "FILE", requires = "html")]
    pub from: Option<PathBuf>,
}

impl BenchArgs {
    /// Whether this one is wanted.
    pub fn wants(&self, layer: Layer) -> bool {
        self.layer.is_empty() || self.layer.contains(&layer)
    }
}

/// Parses `4K`, `1M`, `256M`.
fn size(text: &str) -> Result<u64, String> {
    let upper = text.trim().to_ascii_uppercase();
    let (number, shift) = match upper.strip_suffix(['K', 'M', 'G']) {
        Some(n) => (
            n,
            [('K', 10), ('M', 20), ('G', 30)]
                .iter()
                .find(|(c, _)| upper.ends_with(*c))
                .map_or(0, |(_, s)| *s),
        ),
        None => (upper.as_str(), 0),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.filter(|n| *n >= 4096 && *n % 4096 == 0).ok_or_else(|| {
        format!("«{text}» is not a size of whole 4K blocks; write for example 4K or 1M")
    })
}
