//! Where everything lies in the memory of a ring. `docs/formats/rings.md` is the same in words; the test below holds the two together.
//!
//! One page of indices, then the submissions, then the completions. Each index is written by one side only and has a cache line of its
//! own. Indices count from the ring's beginning and wrap at 2^32; the place in a queue is the index modulo the number of entries.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// "GLOWRNG" and the version, as the first eight bytes.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"GLOWRNG\x01");
/// The version of this layout and of the control messages.
pub const RING_VERSION: u32 = 1;
/// The greatest number of entries of a ring; they are a power of two.
pub const ENTRIES_MAX: u32 = 1 << 16;

/// Offsets of the page of indices, in bytes.
pub(crate) mod at {
    /// u64: [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// u32: entries of each queue.
    pub const ENTRIES: usize = 8;
    /// u32, daemon: not 0 when it has given the ring up (an errno).
    pub const BROKEN: usize = 12;
    /// u32, application: submissions that are there.
    pub const SUBMIT_TAIL: usize = 64;
    /// u32, daemon: submissions that were taken.
    pub const SUBMIT_HEAD: usize = 128;
    /// u32, daemon: completions that are there.
    pub const COMPLETE_TAIL: usize = 192;
    /// u32, application: completions that were taken.
    pub const COMPLETE_HEAD: usize = 256;
    /// u32: 1 while the daemon wants the submit doorbell; whoever rings it sets 0.
    pub const DAEMON_SLEEPS: usize = 320;
    /// u32: 1 while the application wants the completion doorbell; whoever rings it sets 0.
    pub const APPLICATION_WAITS: usize = 384;
    /// The submissions begin here.
    pub const SUBMISSIONS: usize = 4096;
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// From the file into the buffer.
    Read = 1,
    /// From the buffer into the file.
    Write = 2,
}

/// Bits of a ring's and of a submission's flags (the values of 3FS's `hf3fs_usrbio.h`).
pub mod flags {
    /// Data of writes that are on their way may be returned. Accepted; only committed data is ever returned.
    pub const ALLOW_READ_UNCOMMITTED: u32 = 1;
    /// A read ends before a hole instead of returning zeros for it, and fails where there is data behind it.
    pub const FORBID_READ_HOLES: u32 = 2;
    /// Every bit that has a meaning.
    pub const KNOWN: u32 = ALLOW_READ_UNCOMMITTED | FORBID_READ_HOLES;
}

/// An operation that the application wants: 64 bytes, little endian.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Submission {
    /// A [`Kind`].
    pub kind: u32,
    /// [`flags`].
    pub flags: u32,
    /// The number that the file was registered under.
    pub file: u32,
    /// The number that the buffer was registered under.
    pub buffer: u32,
    /// Where in the buffer, in bytes.
    pub buffer_offset: u64,
    /// Where in the file, in bytes.
    pub file_offset: u64,
    /// How many bytes.
    pub len: u64,
    /// Comes back in the completion.
    pub user: u64,
    /// Zero.
    pub reserved: [u64; 2],
}

/// What became of an operation: 16 bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Completion {
    /// Of the submission.
    pub user: u64,
    /// Bytes read or written, or a negated errno.
    pub result: i64,
}

/// Whether a ring can have so many entries.
pub(crate) fn valid_entries(entries: u32) -> bool {
    entries.is_power_of_two() && entries <= ENTRIES_MAX
}

pub(crate) fn completions_at(entries: u32) -> usize {
    at::SUBMISSIONS + entries as usize * size_of::<Submission>()
}

/// The memory of a ring with so many entries, in bytes: whole pages.
pub fn ring_bytes(entries: u32) -> usize {
    (completions_at(entries) + entries as usize * size_of::<Completion>()).next_multiple_of(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let s = Submission {
            kind: Kind::Write as u32,
            flags: flags::FORBID_READ_HOLES,
            file: 3,
            buffer: 4,
            buffer_offset: 0x1000,
            file_offset: 0x0102_0304_0506_0708,
            len: 0x2000,
            user: 0xdead_beef,
            reserved: [0; 2],
        };
        let hex: String = s.as_bytes().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "02000000020000000300000004000000001000000000000008070605040302010020000000000000efbeadde00000000\
             00000000000000000000000000000000"
        );
        let c = Completion { user: 7, result: -5 };
        let hex: String = c.as_bytes().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "0700000000000000fbffffffffffffff");
        assert_eq!(MAGIC.to_le_bytes(), *b"GLOWRNG\x01");
    }

    #[test]
    fn sizes() {
        assert_eq!(ring_bytes(1), 8192);
        assert_eq!(ring_bytes(64), 4096 + 8192);
        assert_eq!(ring_bytes(ENTRIES_MAX), 4096 + 80 * 65536);
        assert!(valid_entries(1) && valid_entries(ENTRIES_MAX));
        assert!(!valid_entries(0) && !valid_entries(3) && !valid_entries(ENTRIES_MAX * 2));
    }
}
