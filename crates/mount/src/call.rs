//! Which system call a thread is in that waits for an answer: where a request does not say for what it was made.
//!
//! Never more than a hint: the thread may be another process's that this one may not look into, or a worker of the kernel's.

use crate::daemon::Context;
use crate::filesystem::FileSystem;
use glowfs_rt::Duration;

/// A thread that has sent its request may still be on its way to sleep; only one that sleeps can be looked at. So often it is tried,
const LOOKS_MAX: usize = 5;
/// with this pause between.
const PAUSE: Duration = Duration::from_micros(500);
/// ftruncate. All machines of later years have the same numbers.
const FTRUNCATE: i64 = if cfg!(target_arch = "x86_64") { 77 } else { 46 };
/// ftruncate and ftruncate64 of 32-bit programs, on all machines that we know. By these numbers others have calls that cut no file.
const FTRUNCATE_32: [i64; 2] = [93, 194];

/// A call, and the second of its arguments.
type Call = (i64, u64);

/// What `/proc/.../syscall` says. None: the thread runs, or is in no call.
fn parse(syscall: &str) -> Option<Call> {
    let mut words = syscall.split_whitespace();
    let number = words.next()?.parse().ok().filter(|n| *n >= 0)?;
    let argument = words.nth(1)?.strip_prefix("0x")?;
    Some((number, u64::from_str_radix(argument, 16).ok()?))
}

/// Whether it cuts a file to `len` by its descriptor.
fn cuts((number, argument): Call, len: u64) -> bool {
    let native = number == FTRUNCATE && argument == len;
    // The low half of a length comes first.
    native || (FTRUNCATE_32.contains(&number) && argument == len & u64::from(u32::MAX))
}

impl<S: FileSystem> Context<S> {
    /// Whether the thread that asks is known to be in an ftruncate to that length.
    pub(crate) async fn is_in_ftruncate(&self, len: u64) -> bool {
        let thread = self.header.pid;
        for look in 0..LOOKS_MAX {
            if look > 0 {
                self.rt.sleep(PAUSE).await;
            }
            // procfs answers from memory and does not block, so this needs no helper thread.
            match std::fs::read_to_string(format!("/proc/{thread}/syscall")) {
                Ok(text) if text.starts_with("running") => {}
                Ok(text) => return parse(&text).is_some_and(|call| cuts(call, len)),
                Err(_) => return false,
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ftruncate_is_told_from_what_the_kernel_does() {
        let is = |text: &str| parse(text).is_some_and(|call| cuts(call, 100));
        assert!(is(&format!("{FTRUNCATE} 0x3 0x64 0x0 0x0 0x0 0x0 0x7ffd 0x7f5a\n")));
        assert!(!is(&format!("{FTRUNCATE} 0x3 0x63 0x0 0x0 0x0 0x0 0x7ffd 0x7f5a\n")));
        assert!(is("194 0x3 0x64 0x0 0x0 0x0 0x0 0xffd 0xf5a\n"), "of a 32-bit program");
        assert!(!is("209 0x7f 0x64 0x7ffd 0x0 0x0 0x0 0x7ffd 0x7f5a\n"), "io_submit");
        assert!(!is("-1 0x7ffd 0x64\n") && !is("running\n") && !is(""));
    }
}
