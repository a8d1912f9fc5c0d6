//! [`Database`] and [`Tx`]: the library's handles, with slices instead of pointers.
//!
//! A transaction here is one read at a version, or one commit: what lies between them is [`crate::Transaction`]'s. Its reads never conflict; what
//! counts as read is said by [`Tx::conflict`].

use super::future::Pending;
use super::library::{Code, Library, RawDatabase, RawTransaction};
use glowfs_types::{Error, Result, Status};
use std::ffi::{CString, c_int};
use std::path::Path;
use std::ptr::NonNull;
use std::rc::Rc;

/// `FDB_TR_OPTION_READ_YOUR_WRITES_DISABLE`: nothing is read back here, so the library need not lay writes over reads.
const OPTION_NO_OWN_WRITES: c_int = 51;
/// `FDB_MUTATION_TYPE_ADD`.
const MUTATION_ADD: c_int = 2;
/// `FDB_MUTATION_TYPE_SET_VERSIONSTAMPED_KEY`.
const MUTATION_STAMPED_KEY: c_int = 14;
/// `FDB_MUTATION_TYPE_SET_VERSIONSTAMPED_VALUE`.
const MUTATION_STAMPED_VALUE: c_int = 15;
/// `FDB_STREAMING_MODE_WANT_ALL`.
const MODE_WANT_ALL: c_int = -2;
/// The longest cluster file that is read, in bytes.
const CLUSTER_FILE_BYTES_MAX: usize = 64 << 10;

/// What a conflict range says.
#[derive(Clone, Copy)]
pub enum Touched {
    /// Must not have changed.
    Read = 0,
    /// Counts as changed.
    Written = 1,
}

/// A database, as a cluster file names it.
pub struct Database {
    library: &'static Library,
    raw: NonNull<RawDatabase>,
}

/// Looks at a cluster file before the library does: it would try for ever to reach what is not there.
pub fn check_cluster_file(path: &Path) -> Result<()> {
    let bad = |what: String| {
        let shown = path.display();
        let way = "copy it from a machine of the FoundationDB cluster (usually /etc/foundationdb/fdb.cluster) and name it as `cluster_file` under [engine]";
        Err(Error::new(Status::InvalidArgument, format!("cluster file {shown}: {what}; {way}")))
    };
    let text = match std::fs::read(path) {
        Ok(text) if text.len() > CLUSTER_FILE_BYTES_MAX => {
            return bad(format!("{} bytes are too many", text.len()));
        }
        Ok(text) => text,
        Err(e) => return bad(e.to_string()),
    };
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    // DESCRIPTION:ID@HOST:PORT,...
    let line = lines.next().unwrap_or_default();
    let well = line.split_once('@').is_some_and(|(name, servers)| {
        name.split_once(':').is_some_and(|(d, id)| !d.is_empty() && !id.is_empty())
            && servers.split(',').all(|s| s.rsplit_once(':').is_some_and(|(h, _)| !h.is_empty()))
    });
    if well { Ok(()) } else { bad("it has no line DESCRIPTION:ID@HOST:PORT,...".into()) }
}

impl Database {
    /// Nothing is sent yet.
    pub fn open(library: &'static Library, cluster_file: &Path) -> Result<Rc<Self>> {
        check_cluster_file(cluster_file)?;
        let path = CString::new(cluster_file.as_os_str().as_encoded_bytes()).map_err(|_| {
            Error::new(Status::InvalidArgument, "cluster file: a path may not hold a zero byte")
        })?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a C string; `raw` is written before the return.
        let code = unsafe { (library.fdb_create_database)(path.as_ptr(), &mut raw) };
        match NonNull::new(raw) {
            Some(raw) if code == 0 => Ok(Rc::new(Self { library, raw })),
            _ => {
                let doing = format!("opening the database of {}", cluster_file.display());
                Err(super::errors::error(library, code, &doing))
            }
        }
    }
    /// Where it comes from.
    pub fn library(&self) -> &'static Library {
        self.library
    }
    /// A new transaction.
    pub fn transaction(self: &Rc<Self>) -> Result<Tx, Code> {
        let mut raw = std::ptr::null_mut();
        let create = self.library.fdb_database_create_transaction;
        // SAFETY: the database is alive as long as `self`; `raw` outlives the call, which writes it before it returns.
        let code = unsafe { create(self.raw.as_ptr(), &mut raw) };
        let raw = NonNull::new(raw).filter(|_| code == 0).ok_or(code)?;
        let tx = Tx { database: self.clone(), raw };
        // SAFETY: alive; the option takes no value.
        let code = unsafe {
            let set = self.library.fdb_transaction_set_option;
            set(raw.as_ptr(), OPTION_NO_OWN_WRITES, std::ptr::null(), 0)
        };
        if code == 0 { Ok(tx) } else { Err(code) }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: ours; every transaction holds the database, so none is left.
        unsafe { (self.library.fdb_database_destroy)(self.raw.as_ptr()) }
    }
}

/// A transaction. Dropping it cancels it.
pub struct Tx {
    database: Rc<Database>,
    raw: NonNull<RawTransaction>,
}

/// The length as the library takes it. Longer slices than it can say are cut, never the other way round.
fn len(bytes: &[u8]) -> c_int {
    c_int::try_from(bytes.len()).unwrap_or(c_int::MAX)
}

// SAFETY of all calls below: the transaction is alive as long as `self`, and this thread's; pointers go with the length of the slice that they come from, and
// the library copies what it needs before it returns.
impl Tx {
    fn library(&self) -> &'static Library {
        self.database.library
    }
    /// Reads as of this version, and what is read may not have changed since when it commits.
    pub fn set_read_version(&self, version: u64) {
        let version = i64::try_from(version).unwrap_or(i64::MAX);
        // SAFETY: see above.
        unsafe { (self.library().fdb_transaction_set_read_version)(self.raw.as_ptr(), version) }
    }
    /// Asks for the newest version.
    pub fn read_version(&self) -> Result<Pending, Code> {
        // SAFETY: see above; the future is new.
        unsafe {
            let raw = (self.library().fdb_transaction_get_read_version)(self.raw.as_ptr());
            Pending::new(self.library(), raw)
        }
    }
    /// Reads a key.
    pub fn get(&self, key: &[u8]) -> Result<Pending, Code> {
        // SAFETY: see above; the future is new.
        unsafe {
            let get = self.library().fdb_transaction_get;
            let raw = get(self.raw.as_ptr(), key.as_ptr(), len(key), 1);
            Pending::new(self.library(), raw)
        }
    }
    /// Reads `[begin, end)`.
    pub fn range(
        &self,
        begin: &[u8],
        end: &[u8],
        limit: c_int,
        reverse: bool,
    ) -> Result<Pending, Code> {
        // SAFETY: see above; the future is new. (0, 1) makes a key stand for the first one that is not less.
        unsafe {
            let get = self.library().fdb_transaction_get_range;
            let (b, e) = (begin.as_ptr(), end.as_ptr());
            let (t, back) = (self.raw.as_ptr(), c_int::from(reverse));
            let raw =
                get(t, b, len(begin), 0, 1, e, len(end), 0, 1, limit, 0, MODE_WANT_ALL, 1, 1, back);
            Pending::new(self.library(), raw)
        }
    }
    /// Sets a key.
    pub fn set(&self, key: &[u8], value: &[u8]) {
        // SAFETY: see above.
        unsafe {
            let set = self.library().fdb_transaction_set;
            set(self.raw.as_ptr(), key.as_ptr(), len(key), value.as_ptr(), len(value));
        }
    }
    /// Adds to a number.
    pub fn add(&self, key: &[u8], delta: i64) {
        self.atomic(key, &delta.to_le_bytes(), MUTATION_ADD);
    }
    /// Sets a key of which ten bytes at `at` become the stamp of this transaction.
    pub fn set_stamped_key(&self, mut key: Vec<u8>, at: u32, value: &[u8]) {
        key.extend_from_slice(&at.to_le_bytes());
        self.atomic(&key, value, MUTATION_STAMPED_KEY);
    }
    /// Sets a key to the stamp of this transaction (ten bytes) and `rest`.
    pub fn set_stamped_value(&self, key: &[u8], rest: &[u8]) {
        let value = [&[0; 10][..], rest, &0u32.to_le_bytes()].concat();
        self.atomic(key, &value, MUTATION_STAMPED_VALUE);
    }
    fn atomic(&self, key: &[u8], operand: &[u8], what: c_int) {
        // SAFETY: see above.
        unsafe {
            let op = self.library().fdb_transaction_atomic_op;
            op(self.raw.as_ptr(), key.as_ptr(), len(key), operand.as_ptr(), len(operand), what);
        }
    }
    /// Removes `[begin, end)`.
    pub fn clear_range(&self, begin: &[u8], end: &[u8]) {
        // SAFETY: see above.
        unsafe {
            let clear = self.library().fdb_transaction_clear_range;
            clear(self.raw.as_ptr(), begin.as_ptr(), len(begin), end.as_ptr(), len(end));
        }
    }
    /// Counts `[begin, end)` as read or as written.
    pub fn conflict(&self, begin: &[u8], end: &[u8], what: Touched) -> Result<(), Code> {
        // SAFETY: see above.
        let code = unsafe {
            let add = self.library().fdb_transaction_add_conflict_range;
            let (b, e) = (begin.as_ptr(), end.as_ptr());
            add(self.raw.as_ptr(), b, len(begin), e, len(end), what as c_int)
        };
        if code == 0 { Ok(()) } else { Err(code) }
    }
    /// Commits.
    pub fn commit(&self) -> Result<Pending, Code> {
        // SAFETY: see above; the future is new.
        unsafe {
            let raw = (self.library().fdb_transaction_commit)(self.raw.as_ptr());
            Pending::new(self.library(), raw)
        }
    }
    /// The version it committed at.
    pub fn committed_version(&self) -> Result<u64, Code> {
        let mut version = 0;
        // SAFETY: see above; `version` is written before the return.
        let code = unsafe {
            let get = self.library().fdb_transaction_get_committed_version;
            get(self.raw.as_ptr(), &mut version)
        };
        if code == 0 { Ok(u64::try_from(version).unwrap_or(0)) } else { Err(code) }
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        // SAFETY: ours, and this is the only place that destroys it; its futures may outlive it, they are then cancelled.
        unsafe { (self.library().fdb_transaction_destroy)(self.raw.as_ptr()) }
    }
}
