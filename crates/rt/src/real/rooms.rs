//! Which parts of a file have room on the disk (FIEMAP).
//!
//! `SEEK_HOLE` does not tell: room that was taken beforehand and not written yet is a hole to it.

use crate::backend::Part;
use rustix::ioctl::{Updater, ioctl, opcode};
use std::io;
use std::os::fd::AsFd;

/// Parts of a file that are asked for at a time.
const AT_ONCE: usize = 256;
/// Of a file in more parts it is not told: the list would take too much memory.
const PARTS_MAX: usize = 1 << 20;
/// `FIEMAP_EXTENT_LAST`: behind it there is none.
const LAST: u32 = 1;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap`, without what follows it.
#[repr(C)]
#[derive(Default)]
struct Head {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

#[repr(C)]
struct Question {
    head: Head,
    extents: [Extent; AT_ONCE],
}

/// `FS_IOC_FIEMAP`. It names the size of the head only.
const FIEMAP: u32 = opcode::read_write::<Head>(b'f', 11);

/// See [`crate::backend::FileIo::rooms`].
pub(super) fn rooms(file: impl AsFd) -> io::Result<Option<Vec<Part>>> {
    let mut out: Vec<Part> = Vec::new();
    let mut from = 0;
    loop {
        let head =
            Head { start: from, length: u64::MAX - from, count: AT_ONCE as u32, ..Head::default() };
        let mut question = Question { head, extents: [Extent::default(); AT_ONCE] };
        // SAFETY: the kernel writes the head and at most `count` extents behind it, all of which `question` has; any bytes are valid in them.
        let asked = unsafe { ioctl(&file, Updater::<FIEMAP, Question>::new(&mut question)) };
        match asked {
            Ok(()) => {}
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOTTY) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        let found = question.extents.get(..question.head.mapped as usize).unwrap_or_default();
        for e in found {
            // What a file system answers is not taken for granted: parts in their order, or nothing.
            let Some(end) = e.logical.checked_add(e.length).filter(|end| *end > from) else {
                return Ok(None);
            };
            if e.logical < from {
                return Ok(None);
            }
            match out.last_mut() {
                Some(last) if last.end == e.logical => last.end = end,
                _ => out.push(Part { start: e.logical, end }),
            }
            from = end;
        }
        if out.len() > PARTS_MAX {
            return Ok(None);
        }
        if found.last().is_none_or(|e| e.flags & LAST != 0) {
            return Ok(Some(out));
        }
    }
}
