//! The control messages: ioctls that an application makes on descriptors of the mount. Plain records, little endian, versioned.
//!
//! On a **directory** of the mount (its open descriptor is the session, and ends with it): [`Open`], [`AddBuffer`], [`RemoveBuffer`],
//! [`AddRing`], [`RemoveRing`],
//! [`NameBuffer`], [`LocateBuffer`], [`FindBuffer`]. On a **file**: [`AddFile`], with the session's secret; and on the directory [`RemoveFile`]. On any of
//! both: [`Ask`].
//!
//! Descriptors (memory, doorbells) are passed by their number in the caller; the daemon fetches them with `pidfd_getfd`, so no name in a
//! shared directory is needed and containers work.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The mark in the answer to [`Ask`]: "GLOWFS" and two zeros.
pub const MARK: u64 = u64::from_le_bytes(*b"GLOWFS\0\0");

/// The greatest record, in bytes (ioctl(2) carries 16383).
pub const RECORD_BYTES_MAX: usize = 64;

const TYPE: u32 = b'G' as u32;

/// A control message: what the application sends, the same record changed comes back.
pub trait Control: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    /// Its number.
    const NUMBER: u32;
    /// The command of ioctl(2), as `_IOWR('G', NUMBER, size)`.
    const COMMAND: u32 =
        (3 << 30) | ((size_of::<Self>() as u32) << 16) | (TYPE << 8) | Self::NUMBER;
}

macro_rules! controls {
    ($($(#[$doc:meta])* $number:literal $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }
            impl Control for $name { const NUMBER: u32 = $number; }
        )*
        /// Every message with its command and size, for tests and documentation.
        pub const ALL: &[(&str, u32, usize)] = &[$((stringify!($name), $name::COMMAND, size_of::<$name>()),)*];
    };
}

controls! {
    /// Whether the descriptor is of a GlowFS mount, and of which version of the rings.
    0x40 Ask {
        /// [`MARK`].
        mark: u64,
        /// [`crate::RING_VERSION`].
        version: u32,
        /// Zero.
        reserved: u32,
    }
    /// Makes the open directory a session.
    0x41 Open {
        /// The version that the application speaks; the daemon refuses one that it does not.
        version: u32,
        /// Zero.
        reserved: u32,
        /// Answer: names the session when files are added.
        session: u64,
        /// Answer: who has it may add files.
        secret: u64,
    }
    /// Shares memory.
    0x42 AddBuffer {
        /// The memfd's number in the caller.
        fd: i32,
        /// Answer: its number.
        buffer: u32,
        /// Its length in bytes.
        len: u64,
    }
    /// Ends the use of memory. Operations on their way are carried out, and may write to it after the answer: whoever wants it for something else takes their
    /// completions before.
    0x43 RemoveBuffer {
        /// Its number.
        buffer: u32,
        /// Zero.
        reserved: u32,
    }
    /// Makes a ring.
    0x44 AddRing {
        /// The ring's memfd.
        memory: i32,
        /// The eventfd that wakes the daemon.
        doorbell: i32,
        /// Entries of each queue.
        entries: u32,
        /// 1: it reads; 2: it writes.
        kind: u32,
        /// N > 0: exactly N at a time; 0: as soon as possible; N < 0: at most -N at a time.
        io_depth: i32,
        /// Less than 0: before others; more than 0: after them.
        priority: i32,
        /// With a positive depth: how long fewer than N wait for more, in ms; 0: for ever.
        timeout_ms: u32,
        /// [`crate::flags`].
        flags: u32,
        /// Answer: its number.
        ring: u32,
        /// Zero.
        reserved: u32,
    }
    /// Ends a ring. Operations on their way are carried out; nobody hears of them.
    0x45 RemoveRing {
        /// Its number.
        ring: u32,
        /// Zero.
        reserved: u32,
    }
    /// On an open file: a session may use it, with the rights it is open with.
    0x46 AddFile {
        /// Of [`Open`].
        session: u64,
        /// Of [`Open`].
        secret: u64,
        /// Answer: its number.
        file: u32,
        /// Zero.
        reserved: u32,
    }
    /// Ends the use of a file.
    0x47 RemoveFile {
        /// Its number.
        file: u32,
        /// Zero.
        reserved: u32,
    }
    /// Names a buffer, so that other processes find its memory; a name of zeros takes the name away.
    0x48 NameBuffer {
        /// The name: random, unique.
        name: [u8; 16],
        /// The buffer's number.
        buffer: u32,
        /// Zero.
        reserved: u32,
    }
    /// As [`LocateBuffer`], without saying which memory it is: older applications ask so, and older daemons know nothing else.
    0x49 FindBuffer {
        /// The name.
        name: [u8; 16],
        /// Answer: the process that shared it, as the daemon sees it.
        process: u32,
        /// Answer: the memfd's number there.
        fd: i32,
        /// Answer: its length in bytes.
        len: u64,
    }
    /// Finds the memory of a named buffer: it can be opened as `/proc/PROCESS/fd/FD` by who may look into that process. Who opens it compares what
    /// it is: to him that number may be another process, or the process may have something else there by now.
    0x4a LocateBuffer {
        /// The name.
        name: [u8; 16],
        /// Answer: the process that shared it, as the daemon sees it.
        process: u32,
        /// Answer: the memfd's number there.
        fd: i32,
        /// Answer: its length in bytes.
        len: u64,
        /// Answer: the memfd's device number, as fstat(2) says.
        device: u64,
        /// Answer: the memfd's inode number.
        inode: u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands are what other programs are compiled with: they never change.
    #[test]
    fn golden_commands() {
        let all: Vec<String> = ALL.iter().map(|(n, c, s)| format!("{n} {c:08x} {s}")).collect();
        let golden = [
            "Ask c0104740 16",
            "Open c0184741 24",
            "AddBuffer c0104742 16",
            "RemoveBuffer c0084743 8",
            "AddRing c0284744 40",
            "RemoveRing c0084745 8",
            "AddFile c0184746 24",
            "RemoveFile c0084747 8",
            "NameBuffer c0184748 24",
            "FindBuffer c0204749 32",
            "LocateBuffer c030474a 48",
        ];
        assert_eq!(all, golden);
        assert!(ALL.iter().all(|(_, _, size)| *size <= RECORD_BYTES_MAX));
    }
}
