//! Making an io_uring: with the cheapest way of running completions that this kernel has, and with all that is asked of it here.

use super::commands::Width;
use io_uring::{Builder, IoUring, Probe, opcode};
use std::io;

/// Requests that are handed over in one go, at most.
const SUBMISSIONS_MAX: u32 = 256;
/// Room for completions; the kernel keeps more aside.
pub(super) const COMPLETIONS_MAX: u32 = 4096;

/// Makes a ring, with the cheapest way of running completions that this kernel has.
pub(super) fn build<S: Width>() -> io::Result<IoUring<S>> {
    let base = |b: &mut Builder<S>| {
        b.dontfork().setup_clamp().setup_cqsize(COMPLETIONS_MAX);
    };
    let mut best = IoUring::<S>::builder();
    base(&mut best);
    best.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
    if S::COMMANDS {
        // The other ways run what drivers do at any system call of this thread.
        return best.build(SUBMISSIONS_MAX);
    }
    let mut coop = IoUring::<S>::builder();
    base(&mut coop);
    coop.setup_coop_taskrun().setup_taskrun_flag();
    let mut plain = IoUring::<S>::builder();
    base(&mut plain);
    best.build(SUBMISSIONS_MAX)
        .or_else(|_| coop.build(SUBMISSIONS_MAX))
        .or_else(|_| plain.build(SUBMISSIONS_MAX))
}

/// Lets the kernel have a thread for each of so many operations on files, should all of them block: it starts them when they are needed, but
/// only a few for each processor if it is not told, and what a disk that hangs was asked would hold all of these.
pub(super) fn allow_workers<S: Width>(ring: &IoUring<S>, operations: usize) {
    // The second bound, of threads for what is no file, stays as it is.
    let mut bounds = [u32::try_from(operations).unwrap_or(u32::MAX), 0];
    if let Err(error) = ring.submitter().register_iowq_max_workers(&mut bounds) {
        // Since Linux 5.15.
        tracing::info!(%error, "io_uring has few threads for what blocks: a disk that hangs may hold up others");
    }
}

/// Whether the kernel has all that is used here.
pub(super) fn check<S: Width>(ring: &IoUring<S>) -> io::Result<()> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Readv::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
        opcode::PollAdd::CODE,
        opcode::AsyncCancel::CODE,
    ];
    let all = needed.iter().all(|code| probe.is_supported(*code))
        && (!S::COMMANDS || probe.is_supported(opcode::UringCmd80::CODE));
    if all && ring.params().is_feature_ext_arg() && ring.params().is_feature_nodrop() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel's io_uring is too old"))
}
