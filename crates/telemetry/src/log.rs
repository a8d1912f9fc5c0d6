//! Setting logs up, once per process.

use glowfs_types::{Error, Result, Status};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Mutex;
use tracing_subscriber::EnvFilter;

/// Where logs go, and how much of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// `error`, `warn`, `info`, `debug`, or a list such as `info,glowfs_net=debug`.
    pub level: String,
    /// One JSON object a line instead of text.
    pub json: bool,
    /// A file to append to; standard error if absent.
    pub file: Option<PathBuf>,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: "info".into(), json: false, file: None }
    }
}

/// Sets logging up. The first call counts; later ones in the same process change nothing and succeed, so that several services
/// in one process can each ask for it.
pub fn init(config: &LogConfig) -> Result<()> {
    let bad = |what: String| Error::new(Status::InvalidArgument, what);
    let filter = EnvFilter::try_new(&config.level).map_err(|e| {
        bad(format!(
            "log level «{}»: {e}; write error, warn, info, debug or e.g. info,glowfs_net=debug",
            config.level
        ))
    })?;
    // What cannot be logged (a full disk, a system log that is gone) is not: saying so in the same place would end the process.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(true)
        .log_internal_errors(false);
    // An error of `try_init` means that logging is set up already.
    let _ = match &config.file {
        None => {
            let builder = builder.with_writer(std::io::stderr).with_ansi(false);
            if config.json { builder.json().try_init() } else { builder.try_init() }
        }
        Some(path) => {
            let file = std::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .map_err(|e| bad(format!("log file {}: {e}", path.display())))?;
            let builder = builder.with_writer(Mutex::new(file)).with_ansi(false);
            if config.json { builder.json().try_init() } else { builder.try_init() }
        }
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_reach_the_file_and_bad_levels_are_named() {
        let wrong = LogConfig { level: "a=b=c".into(), ..Default::default() };
        assert!(init(&wrong).expect_err("refused").message.contains("a=b=c"));
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("log");
        let config = LogConfig { json: true, file: Some(path.clone()), ..Default::default() };
        init(&config).expect("set up");
        tracing::info!(chain = 7, "hello");
        tracing::debug!("not shown");
        init(&LogConfig::default()).expect("again");
        let text = std::fs::read_to_string(path).expect("log");
        assert!(text.contains("\"chain\":7") && !text.contains("not shown"), "{text}");
    }
}
