//! The engine that a configuration names: for the service, and for tools that move its content.

use crate::config::MetaConfig;
use crate::state::ms;
use glowfs_kv::{Embedded, EmbeddedConfig, Engine, EngineConfig, Version};
use glowfs_net::{Connector, ConnectorOptions, NoCalls, local_host_id, read_token_file};
use glowfs_rt::Rt;
use glowfs_telemetry::RELEASE;
use glowfs_types::routing::Role;
use glowfs_types::wire::hello::Hello;
use glowfs_types::{Error, Result};
use std::path::Path;
use std::rc::Rc;

/// Opens the engine of a service that does not run, for `what`. Only with `first_version` a directory may be empty: it is formatted, and begins at that.
pub async fn open_engine(
    rt: &Rt,
    config: &MetaConfig,
    what: &str,
    first_version: Option<Version>,
) -> Result<(Rc<dyn Engine>, Option<Embedded>)> {
    let token = read_token_file(&config.service_token_file)?;
    let options = ConnectorOptions::from_names(&config.transports)?;
    let who = Opener { token: &token, options: &options, name: what, first_version };
    open_as(rt, config, &who).await
}

/// Opens the engine of a service.
pub async fn open(
    rt: &Rt,
    config: &MetaConfig,
    token: &str,
    options: &ConnectorOptions,
) -> Result<(Rc<dyn Engine>, Option<Embedded>)> {
    let name = format!("meta-{}", config.node_id);
    let first_version = config.format.then_some(0);
    open_as(rt, config, &Opener { token, options, name: &name, first_version }).await
}

struct Opener<'a> {
    token: &'a str,
    options: &'a ConnectorOptions,
    /// In etcd and FoundationDB: no other process that runs may have it.
    name: &'a str,
    /// Where an empty directory begins, if it may be formatted.
    first_version: Option<Version>,
}

async fn open_as(
    rt: &Rt,
    config: &MetaConfig,
    who: &Opener<'_>,
) -> Result<(Rc<dyn Engine>, Option<Embedded>)> {
    if let EngineConfig::Embedded { dir } = &config.engine {
        let engine = open_embedded(rt, config, dir, who.first_version).await?;
        return Ok((Rc::new(engine.clone()), Some(engine)));
    }
    let cluster = config.cluster()?;
    let connector = || {
        let hello = Hello {
            cluster,
            token: who.token.to_owned(),
            role: Some(Role::Meta),
            node: config.node(),
            host: local_host_id(),
            release: RELEASE.to_owned(),
            ..Hello::default()
        };
        Connector::with_options(rt, hello, Rc::new(NoCalls), who.options.clone())
    };
    let engine = config.engine.open(rt, cluster, who.name, connector);
    Ok((engine.map_err(|e| e.context("meta configuration"))?, None))
}

async fn open_embedded(
    rt: &Rt,
    config: &MetaConfig,
    dir: &Path,
    first_version: Option<Version>,
) -> Result<Embedded> {
    let opened = rt.open_dir(dir).map_err(|e| {
        Error::from(e).context(format!("meta configuration: engine.dir {}", dir.display()))
    })?;
    let settings = EmbeddedConfig {
        flush_interval: ms(config.tuning.flush_interval_ms),
        checkpoint_log_bytes: config.tuning.checkpoint_log_bytes,
        format: first_version.is_some(),
        first_version: first_version.unwrap_or(0),
        ..EmbeddedConfig::new(config.cluster()?)
    };
    Embedded::open(rt, opened, settings).await
}
