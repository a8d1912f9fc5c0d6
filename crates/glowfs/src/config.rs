//! Configuration: a TOML file, then `--set key=value` from the command line, then the role's own checks.

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use std::path::Path;

/// The largest configuration file in bytes.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Reads `file` (if given), applies `sets` (`a.b=value`), and makes a `C` of it. Unknown keys and wrong types are
/// refused with the place and the reason.
pub fn load<C: DeserializeOwned>(file: Option<&Path>, sets: &[String]) -> Result<C> {
    let mut text = String::new();
    if let Some(path) = file {
        let meta = std::fs::metadata(path)
            .with_context(|| format!("reading the configuration file {}", path.display()))?;
        if meta.len() > CONFIG_BYTES_MAX {
            bail!(
                "{} has {} bytes; a configuration file has at most {CONFIG_BYTES_MAX}",
                path.display(),
                meta.len()
            );
        }
        text = std::fs::read_to_string(path)
            .with_context(|| format!("reading the configuration file {}", path.display()))?;
    }
    let from = file.map_or_else(|| "the command line".into(), |p| p.display().to_string());
    if sets.is_empty() {
        // Straight from the text, so that an error shows the line.
        return toml::from_str(&text).with_context(|| format!("in the configuration of {from}"));
    }
    let mut table: toml::Table = toml::from_str(&text).with_context(|| format!("in {from}"))?;
    for set in sets {
        let Some((key, value)) = set.split_once('=') else {
            bail!("--set {set}: write KEY=VALUE, for example --set http=127.0.0.1:9000");
        };
        insert(&mut table, key.trim(), parse(value.trim()))?;
    }
    table.try_into().with_context(|| format!("in the configuration of {from} with --set"))
}

/// A TOML value, or else the text itself (so that addresses and paths need no quotes).
fn parse(text: &str) -> toml::Value {
    let probe: Result<toml::Table, _> = toml::from_str(&format!("v = {text}"));
    probe.ok().and_then(|mut t| t.remove("v")).unwrap_or_else(|| toml::Value::String(text.into()))
}

fn insert(table: &mut toml::Table, key: &str, value: toml::Value) -> Result<()> {
    match key.split_once('.') {
        None => {
            table.insert(key.into(), value);
            Ok(())
        }
        Some((first, rest)) => {
            let inner = table
                .entry(first)
                .or_insert_with(|| toml::Value::Table(toml::Table::new()))
                .as_table_mut();
            match inner {
                Some(inner) => insert(inner, rest, value),
                None => bail!("--set {key}: «{first}» is not a section"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize, Debug, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        name: String,
        #[serde(default)]
        n: u32,
        #[serde(default)]
        engine: Option<Engine>,
    }
    #[derive(Deserialize, Debug, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Engine {
        kind: String,
    }

    fn sets(s: &[&str]) -> Result<Sample> {
        load(None, &s.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn sets_override() {
        let got = sets(&["name=127.0.0.1:80", "n=3", "engine.kind=remote"]).expect("valid");
        let want = Sample {
            name: "127.0.0.1:80".into(),
            n: 3,
            engine: Some(Engine { kind: "remote".into() }),
        };
        assert_eq!(got, want);
    }

    #[test]
    fn mistakes_are_named() {
        let text = |r: Result<Sample>| format!("{:#}", r.expect_err("refused"));
        assert!(text(sets(&["name=a", "nmae=b"])).contains("nmae"));
        assert!(text(sets(&["name=a", "n=many"])).contains("many"), "wrong type");
        assert!(text(sets(&["name"])).contains("KEY=VALUE"));
        assert!(text(sets(&["name=a", "name.b=c"])).contains("not a section"));
    }

    #[test]
    fn a_file_error_shows_its_line() {
        let dir = std::env::temp_dir().join(format!("glowfs-config-{}", std::process::id()));
        std::fs::write(&dir, "name = \"a\"\nwrong = 1\n").expect("temp file");
        let e = format!("{:#}", load::<Sample>(Some(&dir), &[]).expect_err("refused"));
        std::fs::remove_file(&dir).expect("temp file");
        assert!(e.contains("line 2") && e.contains("wrong"), "{e}");
    }
}
