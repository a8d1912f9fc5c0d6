//! What a dev cluster consists of, and the configuration file of each of its services.

use crate::etcd;
use crate::state::{Service, State};
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The shape of a cluster, as asked for on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Storage nodes.
    pub storages: u32,
    /// Disks (directories) of each.
    pub disks: u32,
    /// Replicas of each chain.
    pub replicas: u32,
    /// Chunk size of new files, bytes.
    pub chunk_bytes: u32,
    /// Metadata services.
    pub metas: u32,
    /// Cluster managers.
    pub mgmtds: u32,
    /// What keeps the metadata.
    pub engine: MetaEngine,
}

/// What keeps the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MetaEngine {
    /// The embedded engine of the first meta service.
    #[default]
    Embedded,
    /// Three members of etcd.
    Etcd,
}

/// The fewest chains a cluster gets: enough to stripe a file over every disk.
const CHAINS_MIN: u32 = 12;
/// Bounds of a dev cluster; past them it is no longer one machine's worth.
const STORAGES_MAX: u32 = 64;
const DISKS_MAX: u32 = 16;
const METAS_MAX: u32 = 8;
const MGMTDS_MAX: u32 = 8;

impl Shape {
    /// Refuses what cannot be built.
    pub fn check(&self) -> Result<()> {
        if !(1..=STORAGES_MAX).contains(&self.storages) {
            bail!("--storages {}: choose 1 to {STORAGES_MAX}", self.storages);
        }
        if !(1..=DISKS_MAX).contains(&self.disks) {
            bail!("--disks {}: choose 1 to {DISKS_MAX}", self.disks);
        }
        if !(1..=METAS_MAX).contains(&self.metas) {
            bail!("--metas {}: choose 1 to {METAS_MAX}", self.metas);
        }
        if !(1..=MGMTDS_MAX).contains(&self.mgmtds) {
            bail!("--mgmtds {}: choose 1 to {MGMTDS_MAX}", self.mgmtds);
        }
        if self.replicas == 0 || self.replicas > self.storages {
            bail!(
                "--replicas {}: each replica needs a storage node of its own; choose 1 to {} or add --storages",
                self.replicas,
                self.storages
            );
        }
        use glowfs_types::layout::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN};
        if !self.chunk_bytes.is_power_of_two()
            || !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&self.chunk_bytes)
        {
            bail!(
                "--chunk-size {}: choose a power of two from 64K to 64M (for example 1M)",
                self.chunk_bytes
            );
        }
        Ok(())
    }

    /// Chains to lay: two for each disk, at least [`CHAINS_MIN`].
    pub fn chains(&self) -> u32 {
        (self.storages * self.disks * 2).max(CHAINS_MIN)
    }
}

/// The services of a new cluster, without addresses.
pub fn services(dir: &Path, shape: &Shape) -> Vec<Service> {
    let mut all = vec![];
    let mut add = |role: &str, id: String, node: u64, data: Vec<PathBuf>| {
        all.push(Service {
            role: role.into(),
            id,
            node,
            address: String::new(),
            http: String::new(),
            data,
            peer: None,
            namespace: None,
            process: None,
        });
    };
    let with_etcd = shape.engine == MetaEngine::Etcd;
    for i in 1..=if with_etcd { etcd::MEMBERS } else { 0 } {
        add(etcd::ROLE, format!("etcd-{i}"), 0, vec![dir.join(format!("data/etcd-{i}"))]);
    }
    // Without etcd the first meta service hosts the metadata engine, which mgmtd needs: it starts first.
    for i in 1..=shape.metas {
        let host = i == 1 && !with_etcd;
        let data = if host { vec![dir.join("data/meta-1")] } else { vec![] };
        add("meta", format!("meta-{i}"), 100 + u64::from(i), data);
    }
    for i in 1..=shape.mgmtds {
        add("mgmtd", format!("mgmtd-{i}"), u64::from(i), vec![]);
    }
    for i in 1..=shape.storages {
        let data =
            (1..=shape.disks).map(|d| dir.join(format!("data/storage-{i}/disk-{d}"))).collect();
        add("storage", format!("storage-{i}"), 1000 + u64::from(i), data);
    }
    add("mount", "mount".into(), 0, vec![]);
    all
}

/// Where things of a cluster are.
pub struct Paths<'a>(pub &'a Path);

impl Paths<'_> {
    /// The token of the cluster's root user.
    pub fn root_token(&self) -> PathBuf {
        self.0.join("tokens/root")
    }
    /// The token that services show each other.
    pub fn service_token(&self) -> PathBuf {
        self.0.join("tokens/service")
    }
    /// The configuration of a service.
    pub fn config(&self, id: &str) -> PathBuf {
        self.0.join(format!("etc/{id}.toml"))
    }
    /// The log of a service.
    pub fn log(&self, id: &str) -> PathBuf {
        self.0.join(format!("log/{id}.log"))
    }
}

fn toml_list<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let quoted: Vec<_> =
        items.into_iter().map(|s| toml::Value::String(s.as_ref().into()).to_string()).collect();
    format!("[{}]", quoted.join(", "))
}

fn toml_path(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(toml::Value::String(text.into()).to_string())
}

/// The configuration file of one service.
pub fn config(dir: &Path, state: &State, service: &Service) -> Result<String> {
    let paths = Paths(dir);
    let mut t = format!(
        "# {} of the dev cluster in {}; written at every start.\n",
        service.id,
        dir.display()
    );
    let socket = |id: &str| format!("unix://{}/{id}.sock", state.sockets.display());
    let mgmtd: Vec<_> = state.mgmtd().iter().map(|a| format!("tcp://{a}")).collect();
    if service.role != "mount" {
        writeln!(t, "cluster_id = \"{}\"", state.cluster_id)?;
        writeln!(t, "node_id = {}", service.node)?;
        let mut listen = vec![format!("tcp://{}", service.address)];
        if service.namespace.is_none() {
            listen.push(socket(&service.id));
        }
        writeln!(t, "listen = {}", toml_list(listen))?;
        writeln!(t, "service_token_file = {}", toml_path(&paths.service_token())?)?;
    }
    writeln!(t, "http = \"{}\"", service.http)?;
    if service.role != "mgmtd" {
        writeln!(t, "mgmtd = {}", toml_list(mgmtd))?;
    }
    let engine_host = state.service("meta-1")?;
    let mut engine = vec![format!("tcp://{}", engine_host.address)];
    if engine_host.namespace.is_none() {
        engine.insert(0, socket(&engine_host.id));
    }
    let remote = format!("\n[engine]\nkind = \"remote\"\naddresses = {}\n", toml_list(engine));
    let of_etcd = etcd::engine(state);
    let engine = of_etcd.as_ref().unwrap_or(&remote);
    match service.role.as_str() {
        "mgmtd" => {
            writeln!(t, "root_token_file = {}", toml_path(&paths.root_token())?)?;
            t.push_str(engine);
            if of_etcd.is_some() {
                t.push_str(etcd::TIMING);
            }
        }
        "meta" => {
            match service.data.first() {
                Some(data) => {
                    writeln!(t, "\n[engine]\nkind = \"embedded\"\ndir = {}", toml_path(data)?)?
                }
                None => t.push_str(engine),
            }
            writeln!(t, "\n[root]\nchunk_bytes = {}\nmode = {}", state.chunk_bytes, 0o1777)?;
            if state.disk_durability {
                writeln!(t, "durability = \"disk\"")?;
            }
        }
        "storage" => {
            let disks = service.data.iter().map(|d| d.to_string_lossy().into_owned());
            writeln!(t, "disks = {}", toml_list(disks))?;
        }
        _ => {
            writeln!(t, "mountpoint = {}", toml_path(&state.mount)?)?;
            writeln!(t, "token_file = {}", toml_path(&paths.root_token())?)?;
        }
    }
    Ok(t)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        storages: 3,
        disks: 2,
        replicas: 3,
        chunk_bytes: 1 << 20,
        metas: 2,
        mgmtds: 1,
        engine: MetaEngine::Embedded,
    };

    #[test]
    fn shapes_are_checked() {
        SHAPE.check().expect("the default");
        assert_eq!(SHAPE.chains(), 12);
        Shape { storages: 1, disks: 1, replicas: 1, ..SHAPE }.check().expect("one of each");
        for bad in [
            Shape { replicas: 4, ..SHAPE },
            Shape { replicas: 0, ..SHAPE },
            Shape { storages: 0, ..SHAPE },
            Shape { disks: 0, ..SHAPE },
            Shape { mgmtds: 0, ..SHAPE },
            Shape { chunk_bytes: 3 << 20, ..SHAPE },
            Shape { chunk_bytes: 4096, ..SHAPE },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn every_config_is_toml() {
        let dir = Path::new("/x");
        let mut state = State::new("00".into(), "/mnt/x".into(), "/x/run".into());
        for engine in [MetaEngine::Embedded, MetaEngine::Etcd] {
            state.services = services(dir, &Shape { engine, ..SHAPE });
            for s in state.services.iter().filter(|s| s.role != etcd::ROLE) {
                let text = config(dir, &state, s).expect("rendered");
                text.parse::<toml::Table>().unwrap_or_else(|e| panic!("{}: {e}\n{text}", s.id));
            }
        }
    }
}
