//! What tests can have the file system do, and what it counts for them. All of the process.

use glowfs_types::RequestId;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// How often all file systems of this process were asked to make something durable, for tests.
pub static DURABLE_SYNCS: AtomicU64 = AtomicU64::new(0);

/// How often a file of this process was written to, for tests.
pub static WRITES: AtomicU64 = AtomicU64::new(0);

/// How often a file of this process was flushed, for tests.
pub static FLUSHES: AtomicU64 = AtomicU64::new(0);

/// At the next flush of a file that was written to, or the next look at it, all replicas of its chunks have lost their power since. For tests.
pub static CHUNKS_LOST: AtomicBool = AtomicBool::new(false);

/// Which life of the client this is: sessions of another one have ended. For tests.
pub static LIFE: AtomicU64 = AtomicU64::new(1);

/// The next count of the blocks of a file fails. For tests.
pub static COUNT_FAILS: AtomicBool = AtomicBool::new(false);

/// Counts of the blocks of files wait as long as it is set. For tests.
pub static COUNTS_WAIT: AtomicBool = AtomicBool::new(false);

/// Who asks for the totals of the file system waits as long as it is set. For tests.
pub static STATFS_WAITS: AtomicBool = AtomicBool::new(false);

/// Writes wait as long as it is set. For tests.
pub static WRITES_WAIT: AtomicBool = AtomicBool::new(false);

/// Reads that begin at this offset (less one; 0: none) wait as long as it is set. For tests.
pub static READS_WAIT_AT: AtomicU64 = AtomicU64::new(0);

/// Writes find no room. For tests.
pub static NO_ROOM: AtomicBool = AtomicBool::new(false);

/// A write that begins at this offset (less one; 0: none) finds no room. For tests.
pub static NO_ROOM_AT: AtomicU64 = AtomicU64::new(0);

/// Before the next write another client has made the file so long (less one; 0: it has not) by bytes that are all 'o'. For tests.
pub static LONGER_BEFORE_WRITE: AtomicU64 = AtomicU64::new(0);

/// Writes after so many more (less one; 0: all) find no room. For tests.
pub static ROOM_FOR_WRITES: AtomicU64 = AtomicU64::new(0);

/// Questions for an extended attribute take 200 ms. For tests.
pub static XATTRS_SLOW: AtomicBool = AtomicBool::new(false);

/// The next write finds that another client has cut the file to this length (less one; 0: it has not), after a recall. For tests.
pub static CUT_BEFORE_WRITE: AtomicU64 = AtomicU64::new(0);

/// A while after the next cut by another client (200 ms) meta tells of it once more. For tests.
pub static CUT_TOLD_AGAIN: AtomicBool = AtomicBool::new(false);

/// The next cut by another client is told of a while later (200 ms). For tests.
pub static CUT_TOLD_LATE: AtomicBool = AtomicBool::new(false);

/// The answer to the next open takes 300 ms. For tests.
pub static OPEN_ANSWERED_LATE: AtomicBool = AtomicBool::new(false);

/// While the next search for data or holes is under way (for 600 ms) another client cuts the file to this length (less one; 0: it does not). For tests.
pub static CUT_DURING_SEEK: AtomicU64 = AtomicU64::new(0);

/// At the next question for attributes another client has cut a file to this length (less one; 0: it has not), and finishes that a while later (200 ms); nobody may
/// write until then. For tests.
pub static CUT_UNFINISHED: AtomicU64 = AtomicU64::new(0);

/// A while after the next cut by another client (200 ms) it makes the file so long (less one; 0: it does not). For tests.
pub static LONG_AGAIN: AtomicU64 = AtomicU64::new(0);

/// Before the next question for attributes another client has written over all of the file, and set its time to what it was. For tests.
pub static CHANGED_UNSEEN: AtomicBool = AtomicBool::new(false);

/// No lock is given back: meta is away. For tests.
pub static LOCKS_STAY: AtomicBool = AtomicBool::new(false);

/// What is listed is leased for long. For tests.
pub static LISTS_LEASED: AtomicBool = AtomicBool::new(false);

/// The next open finds that another client has just renamed «new» over «old», both in the root directory. For tests.
pub static REPLACED_BEFORE_OPEN: AtomicBool = AtomicBool::new(false);

/// Before the next rename is carried out, another client exchanges what it moves with «other» in the same directory, and recalls the name. For tests.
pub static RENAME_OVERTAKEN: AtomicBool = AtomicBool::new(false);

/// The metadata of files as it is at the next question is what [`POWER_LOST`] leaves. For tests.
pub static POWER_KEEPS: AtomicBool = AtomicBool::new(false);

/// Before the next question the metadata engine loses its power, and goes on in another life. For tests.
pub static POWER_LOST: AtomicBool = AtomicBool::new(false);

/// Before the next question the metadata engine is put back to its first life. For tests.
pub static PUT_BACK: AtomicBool = AtomicBool::new(false);

/// Renames take 200 ms. For tests.
pub static RENAMES_SLOW: AtomicBool = AtomicBool::new(false);

/// As the next write begins, another client asks for the last right to append that was given. For tests.
pub static RIGHT_WANTED: AtomicBool = AtomicBool::new(false);

/// How often the right to append was given to a client. For tests.
pub static RIGHTS_GIVEN: AtomicU64 = AtomicU64::new(0);

/// The last right to append that was asked for, and whether it was given back. For tests.
pub static LAST_RIGHT: Mutex<Option<(RequestId, bool)>> = Mutex::new(None);
