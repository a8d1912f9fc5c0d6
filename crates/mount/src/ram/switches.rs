//! What tests can have the file system do, and what it counts for them. All of the process.

use glowfs_types::RequestId;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

macro_rules! switches {
    ($($(#[$about:meta])* $name:ident: $kind:ident = $off:literal;)*) => {
        $($(#[$about])* pub static $name: $kind = $kind::new($off);)*

        /// All as they are when a process begins. For tests, between file systems.
        pub fn switch_off() {
            $($name.store($off, SeqCst);)*
            *LAST_RIGHT.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    };
}

switches! {
    /// How often all file systems of this process were asked to make something durable, for tests.
    DURABLE_SYNCS: AtomicU64 = 0;
    /// How often a file of this process was written to, for tests.
    WRITES: AtomicU64 = 0;
    /// How often a file of this process was flushed, for tests.
    FLUSHES: AtomicU64 = 0;
    /// At the next flush of a file that was written to, or the next look at it, all replicas of its chunks have lost their power since. For tests.
    CHUNKS_LOST: AtomicBool = false;
    /// Which life of the client this is: sessions of another one have ended. For tests.
    LIFE: AtomicU64 = 1;
    /// The next count of the blocks of a file fails. For tests.
    COUNT_FAILS: AtomicBool = false;
    /// Counts of the blocks of files wait as long as it is set. For tests.
    COUNTS_WAIT: AtomicBool = false;
    /// Who asks for the totals of the file system waits as long as it is set. For tests.
    STATFS_WAITS: AtomicBool = false;
    /// Writes wait as long as it is set. For tests.
    WRITES_WAIT: AtomicBool = false;
    /// Reads that begin at this offset (less one; 0: none) wait as long as it is set. For tests.
    READS_WAIT_AT: AtomicU64 = 0;
    /// Writes find no room. For tests.
    NO_ROOM: AtomicBool = false;
    /// A write that begins at this offset (less one; 0: none) finds no room. For tests.
    NO_ROOM_AT: AtomicU64 = 0;
    /// Before the next write another client has made the file so long (less one; 0: it has not) by bytes that are all 'o'. For tests.
    LONGER_BEFORE_WRITE: AtomicU64 = 0;
    /// At the next question for a file that is shorter another client has made it so long (less one; 0: it has not) by bytes that are all 'o', and nobody has been told. For tests.
    LONGER_UNSEEN: AtomicU64 = 0;
    /// Writes after so many more (less one; 0: all) find no room. For tests.
    ROOM_FOR_WRITES: AtomicU64 = 0;
    /// When the next file is made durable another client has given it `security.capability`, and meta tells of that. For tests.
    CAPABILITY_GIVEN: AtomicBool = false;
    /// Questions for an extended attribute take 200 ms. For tests.
    XATTRS_SLOW: AtomicBool = false;
    /// The next write finds that another client has cut the file to this length (less one; 0: it has not), after a recall. For tests.
    CUT_BEFORE_WRITE: AtomicU64 = 0;
    /// A while after the next cut by another client (200 ms) meta tells of it once more. For tests.
    CUT_TOLD_AGAIN: AtomicBool = false;
    /// The next cut by another client is told of a while later (200 ms). For tests.
    CUT_TOLD_LATE: AtomicBool = false;
    /// The answer to the next open takes 300 ms. For tests.
    OPEN_ANSWERED_LATE: AtomicBool = false;
    /// While the next search for data or holes is under way (for 600 ms) another client cuts the file to this length (less one; 0: it does not). For tests.
    CUT_DURING_SEEK: AtomicU64 = 0;
    /// At the next question for attributes another client has cut a file to this length (less one; 0: it has not), and finishes that a while later (200 ms); nobody may
    /// write until then. For tests.
    CUT_UNFINISHED: AtomicU64 = 0;
    /// A while after the next cut by another client (200 ms) it makes the file so long (less one; 0: it does not). For tests.
    LONG_AGAIN: AtomicU64 = 0;
    /// Before the next question for attributes another client has written over all of the file, and set its time to what it was. For tests.
    CHANGED_UNSEEN: AtomicBool = false;
    /// No metadata service answers what a session has done to a file, or that it ends, and none has heard it. For tests.
    META_SILENT: AtomicBool = false;
    /// The next ends of sessions (so many) are carried out, and nobody answers. For tests.
    CLOSES_UNHEARD: AtomicU64 = 0;
    /// Ends of sessions are refused. For tests.
    CLOSES_REFUSED: AtomicBool = false;
    /// How often meta was asked to end a session, for tests.
    CLOSES_ASKED: AtomicU64 = 0;
    /// How often a session was ended, for tests.
    SESSIONS_ENDED: AtomicU64 = 0;
    /// How often meta was told that a file was written, for tests.
    WRITES_TOLD: AtomicU64 = 0;
    /// Writes, copies and zeroing are carried out, and fail all the same. For tests.
    FAIL_AND_DO: AtomicBool = false;
    /// When the next copy is carried out, another client has cut its source to nothing, and it ends with `Stale`. For tests.
    SOURCE_CUT: AtomicBool = false;
    /// No lock is given back: meta is away. For tests.
    LOCKS_STAY: AtomicBool = false;
    /// What is listed is leased for long. For tests.
    LISTS_LEASED: AtomicBool = false;
    /// The next open finds that another client has just renamed «new» over «old», both in the root directory. For tests.
    REPLACED_BEFORE_OPEN: AtomicBool = false;
    /// The next open that makes a file finds that another client has just made something else of that name: a symlink to «target» (1), a FIFO (2), a directory (3;
    /// 0: nothing). For tests.
    MADE_BEFORE_CREATE: AtomicU64 = 0;
    /// Before the next rename is carried out, another client exchanges what it moves with «other» in the same directory, and recalls the name. For tests.
    RENAME_OVERTAKEN: AtomicBool = false;
    /// The metadata of files as it is at the next question is what [`POWER_LOST`] leaves. For tests.
    POWER_KEEPS: AtomicBool = false;
    /// Before the next question the metadata engine loses its power, and goes on in another life. For tests.
    POWER_LOST: AtomicBool = false;
    /// Before the next question the metadata engine is put back to its first life. For tests.
    PUT_BACK: AtomicBool = false;
    /// Renames take 200 ms. For tests.
    RENAMES_SLOW: AtomicBool = false;
    /// As the next write begins, another client asks for the last right to append that was given. For tests.
    RIGHT_WANTED: AtomicBool = false;
    /// How often the right to append was given to a client. For tests.
    RIGHTS_GIVEN: AtomicU64 = 0;
}

/// The last right to append that was asked for, and whether it was given back. For tests.
pub static LAST_RIGHT: Mutex<Option<(RequestId, bool)>> = Mutex::new(None);
