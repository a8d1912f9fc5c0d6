//! Configuration files. The first byte says whose.

use glowfs_types::Result;
use serde_free::Toml;

/// What all configurations have in common.
mod serde_free {
    /// A configuration of a role, from text.
    pub trait Toml: Sized {
        /// Reads it.
        fn read(text: &str) -> Option<Self>;
        /// The role's own checks.
        fn check(&self) -> super::Result<()>;
    }
}

macro_rules! roles {
    ($($t:ty)*) => {
        $(impl Toml for $t {
            fn read(text: &str) -> Option<Self> {
                toml::from_str(text).ok()
            }
            fn check(&self) -> Result<()> {
                self.validate()
            }
        })*
        const READERS: &[fn(&str)] = &[$(one::<$t>),*];
    };
}

roles! { glowfs_mgmtd::Config glowfs_meta::MetaConfig glowfs_storage::StorageConfig glowfs_mount::MountConfig }

fn one<T: Toml>(text: &str) {
    if let Some(config) = T::read(text)
        && let Err(e) = config.check()
    {
        assert!(!e.message.is_empty(), "a refusal without a reason");
    }
}

pub fn run(input: &[u8]) {
    let Some((which, text)) = input.split_first() else { return };
    if let Ok(text) = std::str::from_utf8(text) {
        READERS[usize::from(*which) % READERS.len()](text);
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let service = "node_id = 1\ncluster_id = \"00000000000000000000000000000001\"\nlisten = [\"tcp://127.0.0.1:0\"]\n\
                   service_token_file = \"/t\"\nhttp = \"127.0.0.1:0\"\n";
    let mgmtd = "mgmtd = [\"tcp://127.0.0.1:1\"]\n";
    vec![
        format!("\0{service}root_token_file = \"/r\"\n[engine]\nkind = \"memory\"\n[timing]\nheartbeat_ms = 100\n"),
        format!("\u{1}{service}{mgmtd}[engine]\nkind = \"embedded\"\ndir = \"/d\"\n[root]\nchunk_bytes = 65536\n[tuning]\n"),
        format!("\u{2}{service}{mgmtd}disks = [\"/d\"]\n"),
        format!("\u{3}{mgmtd}mountpoint = \"/m\"\ntoken_file = \"/t\"\n"),
    ]
    .into_iter()
    .map(String::into_bytes)
    .collect()
}
