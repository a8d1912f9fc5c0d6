//! The allocator of our processes: small blocks are kept for their thread's next request of that size; everything else is the system's.
//!
//! A request on its way makes and drops some dozens of small objects (futures, bodies, lists). The system's allocator keeps seven of a
//! size at hand and merges and splits beyond that, which cost more than a tenth of the CPU of a small write. Here taking and giving
//! back is a few instructions. Bounds: [`CLASS_BYTES_MAX`] for each size and thread; what a thread kept is given back when it ends. A
//! block may be given back by another thread than took it; then that one keeps it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr::null_mut;

/// Greater blocks are the system's.
const BLOCK_BYTES_MAX: usize = 16 << 10;
/// Blocks are aligned to this; what wants more is the system's.
const ALIGN: usize = 16;
/// Bytes that a thread keeps of one size.
const CLASS_BYTES_MAX: usize = 256 << 10;
/// Sizes: multiples of 16 up to 256, then four between each two powers of two.
const CLASSES: usize = 16 + 4 * 6;

/// See the module. To be named in `#[global_allocator]`.
pub struct Heap;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    /// This thread has kept nothing yet.
    New,
    Running,
    /// The thread ends: nothing is kept any more.
    Over,
}

struct Kept {
    life: Life,
    /// Of each size a list: a kept block begins with the address of the next one.
    first: [*mut u8; CLASSES],
    count: [usize; CLASSES],
}

/// Gives back what the thread kept when it ends.
struct AtTheEnd;

thread_local! {
    static KEPT: UnsafeCell<Kept> = const {
        UnsafeCell::new(Kept { life: Life::New, first: [null_mut(); CLASSES], count: [0; CLASSES] })
    };
    static AT_THE_END: AtTheEnd = const { AtTheEnd };
}

/// The class of a size that is not greater than [`BLOCK_BYTES_MAX`].
const fn class_of(size: usize) -> usize {
    if size <= 256 {
        return if size == 0 { 0 } else { (size - 1) / 16 };
    }
    // The highest bit of `size - 1` is 8 or more; the two bits behind it choose among four.
    let top = usize::BITS as usize - 1 - (size - 1).leading_zeros() as usize;
    16 + (top - 8) * 4 + ((size - 1) >> (top - 2) & 3)
}

/// The bytes of a class's blocks.
const fn bytes_of(class: usize) -> usize {
    if class < 16 {
        return (class + 1) * 16;
    }
    let (top, quarter) = (8 + (class - 16) / 4, (class - 16) % 4);
    (1 << top) + ((quarter + 1) << (top - 2))
}

/// The class that serves a layout, if one does.
fn class(layout: Layout) -> Option<usize> {
    (layout.size() <= BLOCK_BYTES_MAX && layout.align() <= ALIGN).then(|| class_of(layout.size()))
}

fn layout_of(class: usize) -> Layout {
    // SAFETY: the alignment is a power of two, and the sizes are far from the greatest.
    unsafe { Layout::from_size_align_unchecked(bytes_of(class), ALIGN) }
}

/// Runs `f` on what this thread keeps.
fn with<R>(f: impl FnOnce(&mut Kept) -> R) -> R {
    // Without a destructor of its own it can be reached as long as the thread runs.
    KEPT.with(|kept| {
        // SAFETY: only this thread reaches it, and no `f` allocates or comes back here.
        f(unsafe { &mut *kept.get() })
    })
}

fn take(class: usize) -> Option<*mut u8> {
    with(|kept| {
        let block = kept.first[class];
        if block.is_null() {
            return None;
        }
        // SAFETY: a kept block is ours alone, at least 16 bytes long and aligned; `keep` wrote the next one's address there.
        kept.first[class] = unsafe { block.cast::<*mut u8>().read() };
        kept.count[class] -= 1;
        Some(block)
    })
}

/// Whether the block was kept.
fn keep(class: usize, block: *mut u8) -> bool {
    let before = with(|kept| kept.life);
    if before == Life::New {
        with(|kept| kept.life = Life::Running);
        // Its destructor runs from now on; where none can run any more, nothing is kept.
        if AT_THE_END.try_with(|_| ()).is_err() {
            with(|kept| kept.life = Life::Over);
        }
    }
    with(|kept| {
        if kept.life != Life::Running || kept.count[class] >= CLASS_BYTES_MAX / bytes_of(class) {
            return false;
        }
        // SAFETY: the caller gives the block up; it is at least 16 bytes long and aligned.
        unsafe { block.cast::<*mut u8>().write(kept.first[class]) };
        kept.first[class] = block;
        kept.count[class] += 1;
        true
    })
}

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        with(|kept| kept.life = Life::Over);
        for class in 0..CLASSES {
            while let Some(block) = take(class) {
                // SAFETY: kept blocks came from `System.alloc` with this layout, and nobody else has them.
                unsafe { System.dealloc(block, layout_of(class)) };
            }
        }
    }
}

// SAFETY: a layout decides by itself whether a class serves it, the same way for taking and for giving back. Blocks of a class are all
// made by `System` with the class's layout, which is as large and aligned as every layout that the class serves; a block is either with a
// caller or in one list. Everything else is passed to `System` unchanged.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class(layout) {
            Some(class) => {
                // SAFETY: the class's layout has a size.
                take(class).unwrap_or_else(|| unsafe { System.alloc(layout_of(class)) })
            }
            // SAFETY: the caller's promise.
            None => unsafe { System.alloc(layout) },
        }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        match class(layout) {
            Some(class) if keep(class, ptr) => {}
            // SAFETY: it was made with the class's layout.
            Some(class) => unsafe { System.dealloc(ptr, layout_of(class)) },
            // SAFETY: the caller's promise.
            None => unsafe { System.dealloc(ptr, layout) },
        }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if class(layout).is_none() {
            // SAFETY: the caller's promise.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's promise.
        let ptr = unsafe { self.alloc(layout) };
        if !ptr.is_null() {
            // SAFETY: it is that long, and ours.
            unsafe { ptr.write_bytes(0, layout.size()) };
        }
        ptr
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the size, rounded up to the alignment, does not overflow.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (class(layout), class(new)) {
            // SAFETY: the caller's promise; it is the system's and stays so.
            (None, None) => unsafe { System.realloc(ptr, layout, new_size) },
            (Some(old), Some(new)) if old == new => ptr,
            _ => {
                // SAFETY: the caller's promise; both blocks are at least as long as what is copied, and distinct.
                unsafe {
                    let to = self.alloc(new);
                    if !to.is_null() {
                        to.copy_from_nonoverlapping(ptr, layout.size().min(new_size));
                        self.dealloc(ptr, layout);
                    }
                    to
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_fits_its_class_and_no_smaller_one() {
        for size in 0..=BLOCK_BYTES_MAX {
            let class = class_of(size);
            assert!(class < CLASSES && bytes_of(class) >= size, "{size}");
            assert!(class == 0 || bytes_of(class - 1) < size, "{size} would fit a smaller one");
        }
        assert_eq!(class_of(BLOCK_BYTES_MAX), CLASSES - 1);
        assert_eq!(bytes_of(CLASSES - 1), BLOCK_BYTES_MAX);
    }

    /// Blocks of many sizes that are made, moved, grown and dropped on several threads keep their bytes.
    #[test]
    fn blocks_keep_their_bytes() {
        let layout = |size| Layout::from_size_align(size, 8).expect("valid");
        let fill = |i: usize| (i * 7 + 1) as u8;
        let check = |block: (usize, usize, u8)| {
            // SAFETY: made below with this size, and written.
            let bytes = unsafe { std::slice::from_raw_parts(block.0 as *const u8, block.1) };
            assert!(bytes.iter().all(|b| *b == block.2));
        };
        let work = move |seed: usize| {
            let (mut random, mut live) = (seed as u64, Vec::new());
            for i in 0..20_000 {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let size = (random >> 33) as usize % 20_000 + 1;
                // SAFETY: every block is given back once, with the size that it has then.
                unsafe {
                    match random >> 60 {
                        0..6 => {
                            let p = Heap.alloc(layout(size));
                            assert!(p.is_aligned_to_16());
                            p.write_bytes(fill(i), size);
                            live.push((p as usize, size, fill(i)));
                        }
                        6..8 => {
                            let p = Heap.alloc_zeroed(layout(size));
                            check((p as usize, size, 0));
                            Heap.dealloc(p, layout(size));
                        }
                        8..10 if !live.is_empty() => {
                            let (p, old, byte) = live.swap_remove(i % live.len());
                            let p = Heap.realloc(p as *mut u8, layout(old), size);
                            check((p as usize, old.min(size), byte));
                            p.write_bytes(byte, size);
                            live.push((p as usize, size, byte));
                        }
                        _ if !live.is_empty() => {
                            let block = live.swap_remove(i % live.len());
                            check(block);
                            Heap.dealloc(block.0 as *mut u8, layout(block.1));
                        }
                        _ => {}
                    }
                }
            }
            live
        };
        let threads: Vec<_> = (1..5).map(|s| std::thread::spawn(move || work(s))).collect();
        for t in threads {
            for block in t.join().expect("thread") {
                check(block);
                // SAFETY: as above; another thread made it.
                unsafe { Heap.dealloc(block.0 as *mut u8, layout(block.1)) };
            }
        }
    }

    trait Aligned {
        fn is_aligned_to_16(&self) -> bool;
    }
    impl Aligned for *mut u8 {
        fn is_aligned_to_16(&self) -> bool {
            (*self as usize).is_multiple_of(16)
        }
    }
}
