//! What the coverage-guided fuzzer calls: one function for each parser of bytes from outside.
//!
//! A target takes bytes and must return: no panic, no endless loop, no unbounded memory. What a parser accepts must mean the same when it is
//! written and read again. `./fuzz` runs the targets under libFuzzer; `tests/replay.rs` runs the kept corpus as an
//! ordinary test. Nothing here ships.

mod disk;
mod stream;
mod targets;
mod world;

/// A target.
pub struct Target {
    /// Its name: on the command line, and of its folder in the corpus.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// Takes the fuzzer's bytes.
    pub run: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

macro_rules! targets {
    ($($module:ident: $about:literal;)*) => {
        /// All of them.
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($module),
            about: $about,
            run: targets::$module::run,
            seeds: targets::$module::seeds,
        }),*];
    };
}

targets! {
    net_server: "bytes from whoever connects: frames, hello, regions, calls";
    net_client: "bytes from a service that we connected to: hello's answer, answers, calls";
    messages: "every control message (CBOR)";
    data_path: "the fixed structures of reads and updates, capabilities";
    layout: "layouts and what is computed from them";
    chunk_store: "the files of a chunk store: superblock, log, checkpoint";
    metadata_engine: "the files of the metadata engine: log, checkpoint";
    metadata_dump: "a dump of the metadata as a file";
    records: "what namespace and mgmtd keep in the metadata engine: keys and records";
    fuse_request: "requests of the kernel";
    rings: "the memory of a user-space ring, written by its application";
    configuration: "TOML of every role, with its checks";
}

/// The target of a name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|t| t.name == name)
}
