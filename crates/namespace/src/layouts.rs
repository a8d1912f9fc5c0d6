//! `glowfs.layout`: the layout of a directory, which what is made in it inherits, as an extended attribute.
//!
//! The value is text: `chunk_bytes=1048576 stripe=4 table=1 durability=written inline_bytes=16384`, the last one only if it is not 0. Setting may name
//! some of them only; the others stay. Removing takes what the parent has. Files show theirs, which never changes.

use crate::access;
use crate::context::{Context, err};
use crate::record::Inode;
use glowfs_types::wire::meta::{ROOT_INODE, SetXattr};
use glowfs_types::{ChainTableId, Durability, Error, Layout, Result, Status};

/// Its name.
pub const LAYOUT_XATTR: &[u8] = b"glowfs.layout";
/// The longest value in bytes.
const TEXT_MAX: usize = 256;

fn bad(what: impl Into<String>) -> Error {
    Error::new(Status::InvalidArgument, what)
}

/// The value for a layout.
pub fn layout_text(layout: &Layout) -> String {
    let durability = match layout.durability {
        Durability::Written => "written",
        Durability::Disk => "disk",
    };
    let inline = match layout.inline_bytes {
        0 => String::new(),
        n => format!(" inline_bytes={n}"),
    };
    format!(
        "chunk_bytes={} stripe={} table={} durability={durability}{inline}",
        layout.chunk_bytes, layout.stripe, layout.table
    )
}

/// A number of bytes: 65536, 64K, 1M, 1MiB.
fn bytes(text: &str) -> Option<u32> {
    let text = text.strip_suffix("iB").unwrap_or(text);
    let (number, unit) = match text.strip_suffix(['K', 'k']) {
        Some(n) => (n, 1 << 10),
        None => text.strip_suffix(['M', 'm']).map_or((text, 1), |n| (n, 1 << 20)),
    };
    number.parse::<u32>().ok()?.checked_mul(unit)
}

/// A layout as the text changes it.
pub fn layout_changed(layout: &Layout, text: &[u8]) -> Result<Layout> {
    let text = std::str::from_utf8(text).ok().filter(|t| t.len() <= TEXT_MAX);
    let text = text.ok_or_else(|| bad("a layout is written as KEY=VALUE, separated by blanks"))?;
    let mut new = *layout;
    let mut any = false;
    for part in text.trim_end_matches('\0').split([' ', ',', '\n']).filter(|p| !p.is_empty()) {
        let wrong = || bad(format!("layout: «{part}» is not understood"));
        let (key, value) = part.split_once('=').ok_or_else(wrong)?;
        match key {
            "chunk_bytes" => new.chunk_bytes = bytes(value).ok_or_else(wrong)?,
            "inline_bytes" => new.inline_bytes = bytes(value).ok_or_else(wrong)?,
            "stripe" => new.stripe = value.parse().map_err(|_| wrong())?,
            "table" => new.table = ChainTableId(value.parse().map_err(|_| wrong())?),
            "durability" => {
                new.durability = match value {
                    "written" => Durability::Written,
                    "disk" => Durability::Disk,
                    _ => return Err(wrong()),
                }
            }
            _ => {
                return Err(bad(format!(
                    "layout: no «{key}»; there are chunk_bytes, stripe, table, durability, inline_bytes"
                )));
            }
        }
        any = true;
    }
    if !any {
        return Err(bad("layout: nothing to set"));
    }
    new.validate()?;
    Ok(new)
}

/// The value that an inode shows.
pub(crate) fn show(inode: &Inode) -> Result<Vec<u8>> {
    match &inode.layout {
        Some(layout) => Ok(layout_text(layout).into_bytes()),
        None => err(Status::NoAttribute),
    }
}

/// Sets the layout of a directory, or without a value takes that of its parent.
pub(crate) async fn set(cx: &Context<'_>, q: &SetXattr) -> Result<()> {
    if cx.done_before(q).await?.is_some() {
        return Ok(());
    }
    let mut inode = cx.inode(q.inode).await?;
    if !inode.is_dir() {
        let e = "the layout of a file is fixed when it is made; set that of its directory";
        return Err(Error::new(Status::NotPermitted, e));
    }
    if !access::owns(cx.caller, &inode) {
        return err(Status::NotPermitted);
    }
    crate::flags::check_attributes(&inode)?;
    let present = inode.layout.ok_or_else(|| Error::from(Status::Corrupt))?;
    let layout = if q.value.is_empty() {
        if q.inode == ROOT_INODE {
            return Err(bad("the root has no parent to take a layout from"));
        }
        cx.dir(inode.parent).await?.layout.ok_or_else(|| Error::from(Status::Corrupt))?
    } else {
        layout_changed(&present, &q.value)?
    };
    // A wide stripe that was there before takes all the chains there are.
    let stripe = !q.value.is_empty() && layout.stripe != present.stripe;
    cx.env.check_layout(&layout, stripe)?;
    if layout.inline_bytes > 0 {
        crate::inline::announce(cx).await?;
    }
    inode.layout = Some(layout);
    inode.layout_set = !q.value.is_empty();
    inode.ctime = cx.now;
    cx.put_inode(q.inode, &mut inode)?;
    cx.remember(q, q.inode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::Redundancy;

    #[test]
    fn text_and_layout() {
        let old = Layout {
            table: ChainTableId(1),
            table_version: 0,
            chunk_bytes: 1 << 20,
            stripe: 12,
            start: 0,
            redundancy: Redundancy::Replicated,
            durability: Durability::Written,
            inline_bytes: 0,
        };
        assert_eq!(layout_text(&old), "chunk_bytes=1048576 stripe=12 table=1 durability=written");
        assert_eq!(layout_changed(&old, layout_text(&old).as_bytes()), Ok(old));
        let new = layout_changed(&old, b"stripe=2,chunk_bytes=64KiB\n").expect("good");
        assert_eq!((new.stripe, new.chunk_bytes, new.table), (2, 65536, old.table));
        let inline = layout_changed(&old, b"inline_bytes=4K").expect("good");
        assert_eq!(inline.inline_bytes, 4096);
        let text = layout_text(&inline);
        assert!(text.ends_with("durability=written inline_bytes=4096"), "{text}");
        assert_eq!(layout_changed(&old, text.as_bytes()), Ok(inline));
        assert_eq!(layout_changed(&inline, b"inline_bytes=0"), Ok(old));
        for wrong in [
            &b""[..],
            b"inline_bytes=17K",
            b" ",
            b"stripe",
            b"stripe=0",
            b"stripe=x",
            b"chunk_bytes=3M",
            b"chunk_bytes=1K",
            b"chunk_bytes=128M",
            b"chunk_bytes=99999M",
            b"table=-1",
            b"durability=never",
            b"colour=red",
            b"\xff",
            &[b'a'; 300],
        ] {
            let e = layout_changed(&old, wrong).expect_err("refused");
            assert_eq!(e.status, Status::InvalidArgument, "{wrong:?}");
        }
    }
}
