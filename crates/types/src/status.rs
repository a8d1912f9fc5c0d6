//! What can go wrong, as a number on the wire and as an error with a cause and a way out.
//!
//! [`Status`] is the numeric code; it never changes its meaning and new codes are only appended.
//! [`Error`] is a status with a message for the user. [`Status::errno`] is what an application sees.

use std::fmt;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $errno:literal;)*) => {
        /// A numeric outcome; 0 is success. A code that this build does not know is kept as [`Status::Unknown`].
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Status {
            $($(#[$doc])* $name,)*
            /// A code of a newer build.
            Unknown(u16),
        }
        impl Status {
            /// The code on the wire.
            pub const fn code(self) -> u16 {
                match self { $(Self::$name => $code,)* Self::Unknown(c) => c }
            }
            /// The status of a code on the wire.
            pub const fn from_code(code: u16) -> Self {
                match code { $($code => Self::$name,)* c => Self::Unknown(c) }
            }
            /// The Linux errno that an application sees.
            pub const fn errno(self) -> i32 {
                match self { $(Self::$name => $errno,)* Self::Unknown(_) => 5 }
            }
            /// Every status this build knows (for tables in docs and tests).
            pub const ALL: &'static [Status] = &[$(Self::$name,)*];
        }
    };
}

statuses! {
    /// Success.
    Ok = 0, 0;
    // POSIX outcomes of namespace and file operations (asm-generic/errno-base.h, errno.h).
    /// The caller lacks the privilege.
    NotPermitted = 1, 1;
    /// No such file, inode or entry.
    NotFound = 2, 2;
    /// Permission denied by mode bits or rights.
    AccessDenied = 3, 13;
    /// The name exists already.
    Exists = 4, 17;
    /// A path component is not a directory.
    NotDirectory = 5, 20;
    /// The inode is a directory.
    IsDirectory = 6, 21;
    /// An argument is not valid.
    InvalidArgument = 7, 22;
    /// The file would grow past its greatest size.
    FileTooBig = 8, 27;
    /// No space is left.
    NoSpace = 9, 28;
    /// The file system is read-only.
    ReadOnly = 10, 30;
    /// Too many links.
    TooManyLinks = 11, 31;
    /// The name is too long.
    NameTooLong = 12, 36;
    /// The directory is not empty.
    NotEmpty = 13, 39;
    /// Too many symbolic links.
    Loop = 14, 40;
    /// No such extended attribute.
    NoAttribute = 15, 61;
    /// The result does not fit.
    OutOfRange = 16, 34;
    /// Not supported.
    NotSupported = 17, 95;
    /// The quota is exceeded.
    QuotaExceeded = 18, 122;
    /// The handle refers to a file that is gone.
    Stale = 19, 116;
    /// A lock is held by another.
    WouldBlock = 20, 11;
    /// The operation would deadlock.
    Deadlock = 21, 35;
    /// Different volumes.
    CrossDevice = 22, 18;
    /// The thing is busy.
    Busy = 23, 16;
    /// Too many locks.
    NoLocks = 24, 37;

    // The cluster's own outcomes.
    /// A byte was not what it should be: checksum, length or form. Retry with another replica.
    Corrupt = 100, 5;
    /// The disk failed.
    DiskFailed = 101, 5;
    /// The message is not understood.
    BadMessage = 102, 71;
    /// The method is not known here.
    UnknownMethod = 103, 38;
    /// The token is missing or wrong.
    BadToken = 104, 13;
    /// The capability is missing, forged, expired or for something else.
    BadCapability = 105, 5;
    /// The peer belongs to another cluster.
    WrongCluster = 106, 5;
    /// The two ends share no protocol version.
    WrongProtocol = 107, 71;
    /// The node's lease ran out; it serves nothing. Refresh the routing info and retry.
    NoLease = 110, 5;
    /// The chain version of the request is older or newer than the target's. Refresh and retry.
    WrongChainVersion = 111, 5;
    /// The target is not the head (for a write) or not serving (for a read). Refresh and retry.
    NotServing = 112, 5;
    /// The chain has no serving target now. Wait and retry.
    ChainUnavailable = 113, 5;
    /// The target does not live here. Refresh and retry.
    NoTarget = 114, 5;
    /// A pending version did not resolve within the bound. Retry, at the tail if need be.
    Pending = 115, 11;
    /// A bounded queue is full. Retry after a pause.
    Overloaded = 116, 11;
    /// The sequence number is older than the last one of its channel: a late duplicate, not applied.
    OldSequence = 117, 5;
    /// The version does not follow what the replica has.
    VersionGap = 118, 5;
    /// No answer within the deadline; the outcome is not known.
    TimedOut = 119, 110;
    /// The connection broke; the outcome is not known.
    Disconnected = 120, 5;
    /// This instance is a standby; the message names the primary.
    NotPrimary = 121, 11;
    /// The service is stopping.
    ShuttingDown = 122, 11;
    /// A transaction conflicted with another. Retry it from the start.
    Conflict = 130, 11;
    /// A transaction read at a version that is no longer kept. Retry it from the start.
    TooOld = 131, 11;
    /// Whether the transaction committed is not known.
    CommitUnknown = 132, 5;
    /// A transaction, key or value is over its limit.
    TooLarge = 133, 7;
    /// The format on disk is newer than this build.
    NewerFormat = 134, 5;
    /// The client's session was ended by the cluster.
    SessionEnded = 135, 5;
    /// The bytes are damaged, and no replica has them: only these bytes; writing them again heals them.
    Lost = 136, 5;
    /// What was acknowledged and not made durable yet is gone, since all its replicas lost their power at once. Told once.
    WritesLost = 137, 5;
    /// A defect of GlowFS itself; the message says where.
    Internal = 199, 5;
}

impl Status {
    /// Whether the same request may succeed if it is sent again, after a refresh of the routing info.
    pub const fn is_retriable(self) -> bool {
        matches!(
            self,
            Self::NoLease
                | Self::WrongChainVersion
                | Self::NotServing
                | Self::ChainUnavailable
                | Self::NoTarget
                | Self::Pending
                | Self::Overloaded
                | Self::VersionGap
                | Self::TimedOut
                | Self::Disconnected
                | Self::NotPrimary
                | Self::ShuttingDown
                | Self::Conflict
                | Self::TooOld
                | Self::CommitUnknown
        )
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(c) => write!(f, "unknown status {c}"),
            s => write!(f, "{s:?}"),
        }
    }
}

/// A status with its story: what happened, where, and what the user can do.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({status})")]
pub struct Error {
    /// The numeric outcome.
    pub status: Status,
    /// What, where, and the way out.
    pub message: String,
}

impl Error {
    /// An error with a message.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
    /// Puts the place or act in front of the message: `what: message`.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
    /// The Linux errno that an application sees.
    pub const fn errno(&self) -> i32 {
        self.status.errno()
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self { status, message: status.to_string() }
    }
}

impl From<std::io::Error> for Error {
    /// ENOSPC, EROFS and EDQUOT keep their meaning; everything else of a disk is `DiskFailed`.
    fn from(e: std::io::Error) -> Self {
        let status = match e.raw_os_error() {
            Some(28) => Status::NoSpace,
            Some(30) => Status::ReadOnly,
            Some(122) => Status::QuotaExceeded,
            _ => Status::DiskFailed,
        };
        Self::new(status, e.to_string())
    }
}

/// The result of almost everything.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip_and_are_unique() {
        let mut seen = std::collections::BTreeSet::new();
        for &s in Status::ALL {
            assert_eq!(Status::from_code(s.code()), s);
            assert!(seen.insert(s.code()), "{s:?} shares its code");
        }
        assert_eq!(Status::from_code(9999), Status::Unknown(9999));
    }
}
