//! libFuzzer's entry: calls the target that `GLOWFS_FUZZ` names.
#![no_main]

use glowfs_fuzzing::{TARGETS, Target, target};
use std::sync::OnceLock;

static CHOSEN: OnceLock<&'static Target> = OnceLock::new();

fn chosen() -> &'static Target {
    CHOSEN.get_or_init(|| {
        let name = std::env::var("GLOWFS_FUZZ").unwrap_or_default();
        target(&name).unwrap_or_else(|| {
            let names: Vec<_> = TARGETS.iter().map(|t| t.name).collect();
            panic!("GLOWFS_FUZZ={name}: choose one of {names:?}")
        })
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| (chosen().run)(data));
