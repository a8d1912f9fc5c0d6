//! Error numbers of FoundationDB as our statuses.

use super::library::{Code, Library};
use glowfs_types::{Error, Status};
use std::ffi::c_int;

/// `FDB_ERROR_PREDICATE_RETRYABLE`.
const RETRYABLE: c_int = 50000;
/// `FDB_ERROR_PREDICATE_RETRYABLE_NOT_COMMITTED`.
const NOT_COMMITTED: c_int = 50002;
/// `not_committed`: a conflict.
pub const CONFLICT: Code = 1020;
/// From here on the library refuses what it was asked for, before it sends anything.
const REFUSED: std::ops::Range<Code> = 2000..3000;

/// Whether a commit that ended so has not happened, and never will. Everything else has to be settled.
pub fn not_committed(library: &Library, code: Code) -> bool {
    // SAFETY: two numbers.
    let says = unsafe { (library.fdb_error_predicate)(NOT_COMMITTED, code) };
    says != 0 || REFUSED.contains(&code)
}

/// What went wrong.
pub fn error(library: &Library, code: Code, doing: &str) -> Error {
    let status = status(code).unwrap_or_else(|| {
        // SAFETY: two numbers.
        let retry = unsafe { (library.fdb_error_predicate)(RETRYABLE, code) };
        if retry != 0 { Status::Overloaded } else { Status::Internal }
    });
    let mut text = format!("FoundationDB: {doing}: {} ({code})", library.text(code));
    if let Some(hint) = hint(code) {
        text.push_str("; ");
        text.push_str(hint);
    }
    Error::new(status, text)
}

fn status(code: Code) -> Option<Status> {
    Some(match code {
        CONFLICT => Status::Conflict,
        // transaction_too_old
        1007 => Status::TooOld,
        // commit_unknown_result; commits are settled, so nobody else sees it.
        1021 => Status::CommitUnknown,
        // future_version, process_behind, memory limits of proxies, throttled
        1009 | 1037 | 1042 | 1078 | 1051 | 1213 | 1235 => Status::Overloaded,
        // timed_out, transaction_timed_out
        1004 | 1031 => Status::TimedOut,
        // cancelled (transaction, operation), connection_failed, cluster_version_changed, broken_promise
        1025 | 1026 | 1039 | 1100 | 1101 => Status::Disconnected,
        // database_locked, a locked range
        1038 | 1242 => Status::Busy,
        // shutdown_in_progress, the network is stopped
        1043 | 2025 => Status::ShuttingDown,
        // The cluster file: not found, not readable, none, not understood
        1511 | 1513 | 1515 | 2104 => Status::InvalidArgument,
        // transaction, key, value
        2101..=2103 => Status::TooLarge,
        _ => return None,
    })
}

fn hint(code: Code) -> Option<&'static str> {
    Some(match code {
        1007 => "a transaction lasts 5 s; begin again",
        1038 | 1242 => "unlock it with fdbcli",
        1511 | 1513 | 1515 | 2104 => "look at `cluster_file` under [engine]",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_retried_is_told_from_what_may_not() {
        for (code, want) in [
            (1020, Some(Status::Conflict)),
            (1007, Some(Status::TooOld)),
            (1009, Some(Status::Overloaded)),
            (1037, Some(Status::Overloaded)),
            (1031, Some(Status::TimedOut)),
            (1021, Some(Status::CommitUnknown)),
            (2101, Some(Status::TooLarge)),
            (4100, None),
        ] {
            assert_eq!(status(code), want, "{code}");
        }
    }
}
