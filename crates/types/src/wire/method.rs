//! Method numbers. They never change their meaning; new ones are appended within their service's hundred.

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        $($(#[$doc])* pub const $name: u16 = $code;)*
        /// The name of a method, for logs and metrics.
        pub const fn name(method: u16) -> &'static str {
            match method { $($code => stringify!($name),)* _ => "UNKNOWN" }
        }
    };
}

methods! {
    // Every service.
    /// First message of a connection ([`super::hello::Hello`]).
    HELLO = 1;
    /// Answers with its body and bulk (tests, benchmarks, liveness).
    ECHO = 2;
    /// What this process is and whether it is well ([`super::hello::ServiceStatus`]).
    SERVICE_STATUS = 3;
    /// One-way: from now on the sender names a memory region by a key; its memfd comes with the frame ([`super::hello::RegisterRegion`]).
    REGISTER_REGION = 4;
    /// One-way: a key is not used any more ([`super::hello::UnregisterRegion`]).
    UNREGISTER_REGION = 5;

    // mgmtd (100..): see `mgmtd`.
    /// Heartbeat of a service.
    HEARTBEAT = 100;
    /// Routing info newer than a version.
    GET_ROUTING = 101;
    /// Opens or extends a client's session with the cluster.
    CLIENT_SESSION = 102;
    /// Ends a client's session.
    CLIENT_GOODBYE = 103;
    /// Lists client sessions.
    LIST_CLIENTS = 104;
    /// Registers a storage node's stores, once per store.
    REGISTER_STORES = 105;
    /// Which mgmtd is primary.
    GET_PRIMARY = 106;
    /// Checks a token.
    CHECK_TOKEN = 107;
    /// Lays chains and a table over the registered stores.
    CREATE_TABLE = 108;
    /// Reads the cluster configuration.
    GET_CONFIG = 109;
    /// Changes the cluster configuration.
    SET_CONFIG = 110;
    /// Token administration.
    USER_ADD = 111;
    /// Lists users.
    USER_LIST = 112;
    /// A predecessor says that its syncing successor holds acknowledgements up for too long.
    REPORT_SLOW = 113;
    /// A disk or node is to be emptied, or a disk was replaced ([`super::operate`]).
    MOVE_AWAY = 114;
    /// Explains a chain that nobody serves, and forces it ([`super::operate`]).
    FORCE_CHAIN = 115;
    /// Changes of a user what is named.
    USER_CHANGE = 116;
    /// Removes a user.
    USER_REMOVE = 117;
    /// A node that is gone for good is forgotten ([`super::operate`]).
    REMOVE_NODE = 118;
    /// More chains for a table, in a new version of it.
    GROW_TABLE = 119;

    // Storage (200..): see `data`.
    /// Reads pieces of chunks of one file.
    READ = 200;
    /// Writes a piece of a chunk (client to head).
    WRITE = 201;
    /// An update on its way down the chain (target to successor).
    FORWARD = 202;
    /// Sent by no release; served as WRITE. The number stays taken.
    TRIM = 203;
    /// The last chunk and its length of a data id on one chain.
    QUERY_EXTENT = 204;
    /// Flush barrier on targets.
    FLUSH = 205;
    /// One page of a target's chunk metadata (predecessor to syncing successor).
    SYNC_LIST = 206;
    /// The predecessor sent everything: the successor flushes and is up to date.
    SYNC_DONE = 207;
    /// Space and targets of a node.
    STORAGE_INFO = 208;
    /// Removes every chunk of a data id on one chain (garbage collection).
    REMOVE_DATA = 209;
    /// Versions, lengths and checksums of one chunk on one target.
    QUERY_CHUNK = 210;
    /// Committed content of one chunk, from one serving target to another one that mends its own.
    FETCH_CHUNK = 211;
    /// How the scrubs of a node's targets stand; may start one at once.
    SCRUB = 212;
    /// Flush barrier on some targets of one node, each a serving member of its chain, of some files or of all.
    FLUSH_TARGETS = 213;
    /// Blocks that no replica has any more ([`super::repair`]).
    DAMAGED = 214;
    /// A failed disk was replaced: take up what is in its place ([`super::operate`]).
    TAKE_DISK = 215;
    /// What the predecessor has stored, and all before it, so that it may be shown ([`super::vouch`]).
    VOUCH = 216;
    /// One page of a target's chunks, whatever its state (operators).
    LIST_CHUNKS = 220;
    /// One page of the data ids that a chain holds chunks of ([`super::orphans`]).
    LIST_DATA = 221;
    /// Which blocks of the chunks of a data id exist on one chain ([`super::sparse`]).
    LIST_EXTENTS = 222;
    /// Writes a piece of a chunk with bytes of another one ([`super::copy`]).
    COPY_CHUNK = 223;

    // Meta (300..): see `meta`.
    /// Looks a name up.
    LOOKUP = 300;
    /// Attributes of an inode.
    GETATTR = 301;
    /// Changes attributes (also truncate).
    SETATTR = 302;
    /// Makes a file, directory, symlink or special file.
    MAKE = 303;
    /// Hard link.
    LINK = 304;
    /// Removes a name.
    UNLINK = 305;
    /// Renames.
    RENAME = 306;
    /// Lists a directory, with attributes.
    READDIR = 307;
    /// Opens a file: capability, and a session if it is for writing.
    OPEN = 308;
    /// Reports a file's length and times without closing it.
    SYNC = 309;
    /// Closes a session.
    CLOSE = 310;
    /// The target of a symlink.
    READLINK = 311;
    /// Totals of the file system.
    STATFS = 312;
    /// Extended attributes: get.
    GETXATTR = 313;
    /// Extended attributes: set.
    SETXATTR = 314;
    /// Extended attributes: list.
    LISTXATTR = 315;
    /// Extended attributes: remove.
    REMOVEXATTR = 316;
    /// Renews a capability of an open file.
    RENEW = 317;
    /// Locks a file or a range of it, or gives it back.
    LOCK = 319;
    /// What stands in the way of a lock.
    LOCK_TEST = 320;
    /// The same, but answers when nothing does any more, or after a while.
    LOCK_WAIT = 321;
    /// Takes the right to append to a file, or gives it back ([`super::append`]).
    APPEND = 322;
    /// Closes many sessions at once ([`super::closes`]).
    CLOSES = 323;
    /// Opens a file anew under the session that it had, for the metadata engine has lost that with its power.
    REOPEN = 324;
    /// The search for chunks that nobody owns: how it stands, or a pass now ([`super::orphans`]).
    ORPHANS = 330;
    /// The trash: lists it, puts a file back, or removes one for good ([`super::trash`]).
    TRASH = 331;
    /// The checker of the whole metadata: a page of records, one question, or one repair ([`super::fsck`]).
    FSCK = 332;
    /// Reads a file whose contents are kept with the metadata ([`super::inline`]).
    INLINE_READ = 333;
    /// Writes to one.
    INLINE_WRITE = 334;
    /// A directory with all that is in it loses its name, and goes in the background ([`super::tree`]).
    REMOVE_TREE = 335;
    /// How far such removals are.
    TREES = 336;
    /// From meta to a client: forget what you cached of an inode or entry.
    RECALL = 350;
    /// From meta to a client: which of these files do you have open?
    IN_USE = 351;

    // Key-value engine (400..): see `kv`.
    /// A read version.
    KV_BEGIN = 400;
    /// Reads keys at a version.
    KV_GET = 401;
    /// Reads a range at a version.
    KV_GET_RANGE = 402;
    /// Commits.
    KV_COMMIT = 403;
    /// Has a version stay readable for a while.
    KV_KEEP = 404;
}
