//! Layouts from outside, and where they say that bytes are: table length (4), offset (8), length (4), then CBOR, or the text of the attribute `glowfs.layout`.

use glowfs_namespace::{layout_changed, layout_text};
use glowfs_types::wire::{decode, encode};
use glowfs_types::{ChainTableId, Durability, Layout, Redundancy};

pub fn run(input: &[u8]) {
    let Some((head, bytes)) = input.split_first_chunk::<16>() else { return };
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let table = word(0).max(1);
    let offset = (u64::from(word(8)) << 32 | u64::from(word(4))) & (i64::MAX as u64);
    let len = u64::from(word(12) >> 4);
    let changed = layout_changed(&sample(), bytes);
    if let Ok(new) = &changed {
        let again = layout_changed(new, layout_text(new).as_bytes());
        assert_eq!(again.as_ref(), Ok(new), "what is shown cannot be set");
    }
    let Ok(layout) = decode::<Layout>(bytes).or(changed) else { return };
    if layout.validate().is_err() {
        return;
    }
    assert_eq!(decode::<Layout>(&encode(&layout)).expect("what we wrote"), layout);
    let mut at = 0;
    for extent in layout.extents(offset, len) {
        assert_eq!(extent.at, at, "pieces follow one another");
        assert!(extent.len > 0 && extent.offset + extent.len <= layout.chunk_bytes);
        assert!(layout.position(extent.index, table) < table);
        at += u64::from(extent.len);
    }
    assert_eq!(at, len, "pieces cover the range");
}

/// A layout like any other.
pub fn sample() -> Layout {
    Layout {
        table: ChainTableId(1),
        table_version: 1,
        chunk_bytes: 1 << 16,
        stripe: 4,
        start: 3,
        redundancy: Redundancy::Replicated,
        durability: Durability::Disk,
        inline_bytes: 0,
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let head = [12, 0, 0, 0, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 255, 0];
    let text = b"chunk_bytes=64KiB,stripe=3 table=2\ndurability=written inline_bytes=4K";
    vec![[&head[..], &encode(&sample())].concat(), [&head[..], text].concat()]
}
