//! INIT: what kernel and daemon agree on.

use crate::abi::{self, init};

/// What the daemon wants.
#[derive(Clone, Debug)]
pub struct Options {
    /// The greatest payload of a WRITE and (through the number of pages) of a READ, in bytes.
    pub max_write: u32,
    /// The greatest read-ahead, in bytes.
    pub max_readahead: u32,
    /// The greatest number of background requests (read-ahead, asynchronous I/O) outstanding.
    pub max_background: u16,
    /// The number of background requests from which the kernel holds back.
    pub congestion_threshold: u16,
    /// The greatest number of requests of any kind that are handed out and not answered.
    pub max_outstanding: usize,
    /// FUSE over io_uring: requests that each processor's queue has room for. 0: all by `/dev/fuse`.
    pub queue_depth: usize,
    /// INIT flags that are used if the kernel has them.
    pub wanted: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            max_background: 768,
            congestion_threshold: 48,
            max_outstanding: 1024,
            queue_depth: 0,
            wanted: init::ASYNC_READ
                | init::POSIX_LOCKS
                | init::POSIX_ACL
                | init::DONT_MASK
                | init::FLOCK_LOCKS
                | init::ATOMIC_O_TRUNC
                | init::EXPORT_SUPPORT
                | init::BIG_WRITES
                | init::AUTO_INVAL_DATA
                | init::DO_READDIRPLUS
                | init::READDIRPLUS_AUTO
                | init::ASYNC_DIO
                | init::PARALLEL_DIROPS
                | init::MAX_PAGES
                | init::HANDLE_KILLPRIV_V2
                | init::INIT_EXT
                | init::CREATE_SUPP_GROUP
                | init::DIRECT_IO_ALLOW_MMAP,
        }
    }
}

impl Options {
    /// [`Options::max_write`] within what we stand for.
    pub(crate) fn max_write_bytes(&self) -> u32 {
        self.max_write.clamp(4096, 16 << 20)
    }
}

/// What was agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// The kernel's minor version.
    pub kernel_minor: u32,
    /// The flags in use.
    pub flags: u64,
    /// The greatest payload of a WRITE, in bytes.
    pub max_write: u32,
}

impl Negotiated {
    /// Whether requests come by FUSE over io_uring.
    pub fn over_io_uring(&self) -> bool {
        self.flags & init::OVER_IO_URING != 0
    }
}

/// The outcome of one INIT.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Both agree; send this.
    Done(Box<abi::InitOut>, Negotiated),
    /// The kernel is of a newer major version; send this and expect another INIT.
    Again(Box<abi::InitOut>),
    /// The kernel is too old.
    TooOld,
}

/// Answers INIT.
///
/// `queues`: whether there are some for FUSE over io_uring. Once that is agreed on the kernel sends nothing before it has them.
pub(crate) fn negotiate(
    major: u32,
    minor: u32,
    readahead: u32,
    offered: u64,
    options: &Options,
    queues: bool,
) -> Outcome {
    let base = abi::InitOut {
        major: abi::KERNEL_VERSION,
        minor: abi::KERNEL_MINOR_VERSION,
        ..Default::default()
    };
    if major > abi::KERNEL_VERSION {
        return Outcome::Again(Box::new(base));
    }
    if major < abi::KERNEL_VERSION || minor < abi::KERNEL_MINOR_VERSION_MIN {
        return Outcome::TooOld;
    }
    let over_io_uring = if queues { init::OVER_IO_URING } else { 0 };
    let flags = offered & (options.wanted & !init::OVER_IO_URING | over_io_uring);
    let max_write = options.max_write_bytes();
    let pages = (max_write / 4096).min(u32::from(u16::MAX));
    let out = abi::InitOut {
        max_readahead: readahead.min(options.max_readahead),
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: options.max_background,
        congestion_threshold: options.congestion_threshold,
        max_write,
        time_gran: 1,
        max_pages: pages as u16,
        ..base
    };
    Outcome::Done(Box::new(out), Negotiated { kernel_minor: minor, flags, max_write })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_both_have() {
        let o = Options::default();
        let offered =
            init::ASYNC_READ | init::WRITEBACK_CACHE | init::INIT_EXT | init::CREATE_SUPP_GROUP;
        let Outcome::Done(out, n) = negotiate(7, 45, 128 << 10, offered, &o, false) else {
            panic!("agree")
        };
        assert_eq!(n.flags, init::ASYNC_READ | init::INIT_EXT | init::CREATE_SUPP_GROUP);
        assert_eq!((out.max_write, out.max_pages, out.max_readahead), (1 << 20, 256, 128 << 10));
        assert_eq!(out.flags2, 1 << 2);
        // Only with queues: the kernel would wait for them.
        for (queues, agreed) in [(false, 0), (true, init::OVER_IO_URING)] {
            let Outcome::Done(out, n) = negotiate(7, 45, 0, init::OVER_IO_URING, &o, queues) else {
                panic!("agree")
            };
            assert_eq!((n.flags, u64::from(out.flags2) << 32), (agreed, agreed));
        }
    }

    #[test]
    fn refuses_old_and_asks_newer_again() {
        let o = Options::default();
        assert_eq!(negotiate(7, 30, 0, 0, &o, false), Outcome::TooOld);
        assert_eq!(negotiate(6, 45, 0, 0, &o, false), Outcome::TooOld);
        assert!(matches!(negotiate(8, 0, 0, 0, &o, false), Outcome::Again(out) if out.major == 7));
    }
}
