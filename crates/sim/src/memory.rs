//! The allocator of programs that run one world after the other: what was freed is kept for the next request of its size, for ever.
//!
//! A world takes a quarter of a gigabyte in small objects and pages, gives nearly all of it back, and the next one takes the same again. The system's allocator merges and splits what is
//! freed, and takes memory for a thread from the kernel page by page: both together cost a sixth of a run. Here it is taken in [`CHUNK_BYTES`], as huge pages if there are any,
//! and taking and giving back is a few instructions. Must never: be used where threads come and go. What a thread has kept is nobody's when it ends.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr::null_mut;

/// What is taken from the system at a time, and its alignment: a huge page.
const CHUNK_BYTES: usize = 8 << 20;
const CHUNK_ALIGN: usize = 2 << 20;
/// Small blocks are multiples of this, and aligned to it.
const GRAIN: usize = 16;
const SMALL_BYTES_MAX: usize = 1 << 10;
/// Greater ones, and such as are to be aligned, are whole pages.
const PAGE: usize = 4096;
/// Between small ones and those of several pages: eight sizes between each two powers of two.
const MIDDLE_BYTES_MAX: usize = 16 << 10;
const PAGES_MAX: usize = 64;

const SMALL: usize = SMALL_BYTES_MAX / GRAIN;
const MIDDLE: usize = 8 * (MIDDLE_BYTES_MAX / SMALL_BYTES_MAX).ilog2() as usize;
const CLASSES: usize = SMALL + MIDDLE + PAGES_MAX;

/// See the module. To be named in `#[global_allocator]`.
pub struct Memory;

struct Kept {
    /// Of each class a list: a kept block begins with the address of the next one.
    first: [*mut u8; CLASSES],
    /// What is left of the chunks that were taken last, from and to: for pages, and for all else.
    pages: (usize, usize),
    others: (usize, usize),
}

thread_local! {
    static KEPT: UnsafeCell<Kept> =
        const { UnsafeCell::new(Kept { first: [null_mut(); CLASSES], pages: (0, 0), others: (0, 0) }) };
}

/// The class of a layout, and the bytes and alignment of its blocks; `None`: it is the system's.
fn class_of(layout: Layout) -> Option<(usize, usize, usize)> {
    let (size, align) = (layout.size().max(1), layout.align());
    if align <= GRAIN && size <= SMALL_BYTES_MAX {
        let nth = (size - 1) / GRAIN;
        return Some((nth, (nth + 1) * GRAIN, GRAIN));
    }
    if align <= GRAIN && size <= MIDDLE_BYTES_MAX {
        // The three bits behind the highest one choose among eight.
        let top = (size - 1).ilog2() as usize;
        let eighth = (size - 1) >> (top - 3) & 7;
        let nth = (top - SMALL_BYTES_MAX.ilog2() as usize) * 8 + eighth;
        return Some((SMALL + nth, (1 << top) + ((eighth + 1) << (top - 3)), GRAIN));
    }
    let pages = size.div_ceil(PAGE);
    (align <= PAGE && pages <= PAGES_MAX).then(|| (SMALL + MIDDLE + pages - 1, pages * PAGE, PAGE))
}

impl Kept {
    fn take(&mut self, class: usize, bytes: usize, align: usize) -> *mut u8 {
        let kept = self.first[class];
        if !kept.is_null() {
            // SAFETY: a kept block is at least 16 bytes, aligned to 16, and nobody else's; it begins with an address that `keep` wrote.
            self.first[class] = unsafe { kept.cast::<*mut u8>().read() };
            return kept;
        }
        // Each begins and ends at a multiple of its blocks' alignment.
        let (at, end) = if align == PAGE { &mut self.pages } else { &mut self.others };
        if *at + bytes > *end {
            let chunk = new_chunk();
            if chunk.is_null() {
                return chunk;
            }
            *at = chunk.expose_provenance();
            *end = *at + CHUNK_BYTES;
        }
        let block = *at;
        *at += bytes;
        std::ptr::with_exposed_provenance_mut(block)
    }
    /// # Safety
    /// The block is of that class, and nobody uses it any more.
    unsafe fn keep(&mut self, block: *mut u8, class: usize) {
        // SAFETY: it is at least 16 bytes, aligned to 16, and ours by now.
        unsafe { block.cast::<*mut u8>().write(self.first[class]) };
        self.first[class] = block;
    }
}

/// Memory for many blocks; null: there is none.
fn new_chunk() -> *mut u8 {
    // SAFETY: the alignment is a power of two, and the size is no more than the greatest.
    let layout = unsafe { Layout::from_size_align_unchecked(CHUNK_BYTES, CHUNK_ALIGN) };
    // SAFETY: the size is not zero.
    let chunk = unsafe { System.alloc(layout) };
    #[cfg(target_os = "linux")]
    if !chunk.is_null() {
        // Only a matter of speed.
        // SAFETY: advice about memory of our own, which changes no contents.
        unsafe { libc::madvise(chunk.cast(), CHUNK_BYTES, libc::MADV_HUGEPAGE) };
    }
    chunk
}

// SAFETY: a block is as great as its class says, which is no less than the layout asks for, aligned as that wants it, and of nobody else until it is given back: it is cut from a chunk that
// this thread took and never gives back, or was kept. One that another thread gives back is kept there, in a list of the same class. Nothing here allocates by way of itself or panics,
// and what is kept of a thread needs no destructor, so it can be reached as long as the thread runs.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Some((class, bytes, align)) => KEPT.with(|k| {
                // SAFETY: the lists are this thread's, and nothing in `take` comes back here.
                unsafe { (*k.get()).take(class, bytes, align) }
            }),
            // SAFETY: as the caller promises.
            None => unsafe { System.alloc(layout) },
        }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class_of(layout) {
            Some((class, ..)) => KEPT.with(|k| {
                // SAFETY: as above; the caller promises that it is a block of that layout, so of that class, and that nobody uses it.
                unsafe { (*k.get()).keep(block, class) }
            }),
            // SAFETY: as the caller promises; what has no class came from the system.
            None => unsafe { System.dealloc(block, layout) },
        }
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size is fit for a layout of that alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        let (is, will_be) = (class_of(layout), class_of(new));
        if is.is_some() && is == will_be {
            return block;
        }
        if is.is_none() && will_be.is_none() {
            // SAFETY: as the caller promises; it is the system's, and stays so.
            return unsafe { System.realloc(block, layout, size) };
        }
        // SAFETY: the caller promises that the size is not zero.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            // SAFETY: both are blocks of at least so many bytes, and not the same one; the old one is not used any more.
            unsafe {
                block.copy_to_nonoverlapping(moved, layout.size().min(size));
                self.dealloc(block, layout);
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Random;

    #[test]
    fn every_size_fits_its_class_and_no_class_serves_two_sizes() {
        let mut of: Vec<Option<(usize, usize)>> = vec![None; CLASSES];
        for size in 0..=(PAGES_MAX * PAGE + 1) {
            for align in [1, 8, 16, 64, PAGE] {
                let layout = Layout::from_size_align(size, align).expect("small");
                let Some((class, bytes, aligned)) = class_of(layout) else {
                    assert!(size > PAGES_MAX * PAGE);
                    continue;
                };
                assert!(bytes >= size && aligned >= align && bytes.is_multiple_of(GRAIN));
                let known = *of[class].get_or_insert((bytes, aligned));
                assert_eq!(known, (bytes, aligned), "class {class}");
            }
        }
        assert!(of.iter().all(Option::is_some));
        assert!(class_of(Layout::from_size_align(8, 2 * PAGE).expect("small")).is_none());
    }

    #[test]
    fn blocks_are_apart_aligned_and_keep_what_is_written() {
        let mut random = Random::new(5);
        let mut all: Vec<(*mut u8, Layout, u8)> = Vec::new();
        for step in 0..20_000u64 {
            let most = 1 << random.between(1, 19);
            let size = random.between(1, most) as usize;
            let fill = step as u8;
            let whole = |block: *mut u8, len: usize, fill: u8| {
                // SAFETY: a block of at least `len` bytes that is ours.
                unsafe { std::slice::from_raw_parts(block, len) }.iter().all(|b| *b == fill)
            };
            if all.len() < 100 || random.below(2) == 0 {
                let align = [1, 16, PAGE][random.below(3) as usize];
                let layout = Layout::from_size_align(size, align).expect("small");
                // SAFETY: the size is not zero, and the block has so many bytes.
                unsafe {
                    let block = Memory.alloc(layout);
                    assert!(block.addr().is_multiple_of(align));
                    block.write_bytes(fill, size);
                    all.push((block, layout, fill));
                }
                continue;
            }
            let at = random.below(all.len() as u64) as usize;
            let (block, layout, was) = all.swap_remove(at);
            assert!(whole(block, layout.size(), was));
            if random.below(2) == 0 {
                // SAFETY: it came with this layout, and is not used any more.
                unsafe { Memory.dealloc(block, layout) };
                continue;
            }
            // SAFETY: it came with this layout; the new size is not zero; the block has so many bytes then.
            unsafe {
                let moved = Memory.realloc(block, layout, size);
                assert!(whole(moved, size.min(layout.size()), was));
                moved.write_bytes(fill, size);
                let layout = Layout::from_size_align(size, layout.align()).expect("small");
                all.push((moved, layout, fill));
            }
        }
    }
}
