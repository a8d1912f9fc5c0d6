//! The embedded engine of the examples, and what it costs.

use crate::world::{self, World};
use glowfs_kv::{Embedded, EmbeddedConfig, Engine};
use glowfs_rt::Rt;
use glowfs_types::{ClusterId, Result};
use std::path::Path;
use std::rc::Rc;

/// The engine in `dir`, with a root directory.
pub async fn open(rt: &Rt, dir: &str, here: &World) -> Result<Embedded> {
    let opened = rt.open_dir(Path::new(dir))?;
    let embedded = Embedded::open(rt, opened, EmbeddedConfig::new(ClusterId(1))).await?;
    world::make_root(rt, &(Rc::new(embedded.clone()) as Rc<dyn Engine>), here).await?;
    Ok(embedded)
}

/// Processor time of this process so far, in seconds (resolution 10 ms).
pub fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = text.rsplit(')').next().unwrap_or_default();
    let field = |i: usize| {
        after.split_whitespace().nth(i).and_then(|s| s.parse::<f64>().ok()).unwrap_or(0.0)
    };
    (field(11) + field(12)) / 100.0
}
