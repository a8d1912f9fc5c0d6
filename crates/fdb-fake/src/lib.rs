//! Tests only: a stand-in for FoundationDB's client library, over our engine in memory.
//!
//! It exports the part of the C interface that `glowfs_kv::fdb` uses, with the same names, so that the engine is tested whole: loading, the network thread,
//! calls back from it, futures, conflicts, stamps, limits, and what goes wrong ([`faults`]). It is strict: what FoundationDB refuses is refused. The data of a
//! cluster file is one store in this process; other processes have others. Must never: ship.
// What the functions do is what FoundationDB's header says.
#![allow(missing_docs)]
// SAFETY of every `no_mangle` here: the names are those of that header, and this library is loaded in place of the original, never beside it.

pub mod faults;
mod future;
mod network;
mod store;

use future::{Answer, Callback, Code, Future};
use glowfs_types::wire::kv::Mutation;
use network::{Question, What};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::{Change, Job, Range};

/// The newest version of the interface that is spoken.
const API_VERSION: c_int = 710;
/// FoundationDB's limits, in bytes.
const KEY_BYTES_MAX: usize = 10_000;
const VALUE_BYTES_MAX: usize = 100_000;
const TRANSACTION_BYTES_MAX: usize = 10_000_000;
/// Keys from here on are the system's.
const SYSTEM_KEYS: u8 = 0xff;
/// `client_invalid_operation`.
const INVALID: Code = 2000;

static SELECTED: AtomicI64 = AtomicI64::new(0);

/// `FDBDatabase`.
pub struct Database(String);

/// `FDBTransaction`.
pub struct Transaction(Mutex<State>);

#[derive(Default)]
struct State {
    database: String,
    job: Job,
    bytes: usize,
    own_writes_off: bool,
    committing: bool,
    /// The first thing that was wrong; a commit says so.
    wrong: Option<Code>,
    committed: Arc<AtomicI64>,
}

/// # Safety
/// `len` bytes are at `at`, or `len` is not positive.
unsafe fn bytes(at: *const u8, len: c_int) -> Vec<u8> {
    match usize::try_from(len) {
        // SAFETY: the caller's word.
        Ok(len) if len > 0 => unsafe { std::slice::from_raw_parts(at, len) }.to_vec(),
        _ => Vec::new(),
    }
}

/// # Safety
/// It was made by `fdb_database_create_transaction` and not destroyed yet.
unsafe fn state<'a>(tr: *mut Transaction) -> MutexGuard<'a, State> {
    // SAFETY: the caller's word.
    unsafe { &*tr }.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// # Safety
/// It was made by [`give`] and not destroyed yet.
unsafe fn future(f: *const Future) -> Arc<Future> {
    // SAFETY: the caller's word; the handle keeps its own reference.
    unsafe {
        Arc::increment_strong_count(f);
        Arc::from_raw(f)
    }
}

fn give(future: &Arc<Future>) -> *const Future {
    Arc::into_raw(future.clone())
}

impl State {
    fn ask(&self, what: What) -> *const Future {
        let future = Arc::<Future>::default();
        let out = give(&future);
        let wrong = if self.own_writes_off { self.wrong } else { Some(INVALID) };
        match wrong {
            Some(code) => future.set(Err(code)),
            None => network::ask(Question { database: self.database.clone(), what, future }),
        }
        out
    }
    fn fail(&mut self, code: Code) {
        self.wrong.get_or_insert(code);
    }
    fn check_key(&mut self, key: &[u8], end: bool) {
        self.bytes += key.len();
        if key.len() > KEY_BYTES_MAX {
            self.fail(2102);
        } else if key.first().is_some_and(|b| *b == SYSTEM_KEYS) && !(end && key.len() == 1) {
            // key_outside_legal_range
            self.fail(2004);
        }
    }
    fn check_range(&mut self, begin: &[u8], end: &[u8]) {
        self.check_key(begin, false);
        self.check_key(end, true);
        if begin > end {
            // inverted_range
            self.fail(2005);
        }
    }
    fn change(&mut self, key: &[u8], value: usize, change: Change) {
        self.check_key(key, false);
        // The key's conflict range.
        self.bytes += 2 * key.len() + 1 + value;
        if value > VALUE_BYTES_MAX {
            self.fail(2103);
        }
        if self.committing {
            // used_during_commit
            self.fail(2017);
        }
        self.job.changes.push(change);
    }
}

/// The place of the stamp, from the last four bytes, which are cut off.
fn place(all: &mut Vec<u8>) -> Option<usize> {
    let cut = all.len().checked_sub(4)?;
    let at = u32::from_le_bytes(all.get(cut..)?.try_into().ok()?) as usize;
    all.truncate(cut);
    (at + 10 <= all.len()).then_some(at)
}

#[unsafe(no_mangle)]
pub extern "C" fn fdb_get_error(code: Code) -> *const c_char {
    let text = match code {
        0 => c"Success",
        1007 => c"Transaction is too old to perform reads or be committed",
        1009 => c"Request for future version",
        1020 => c"Transaction not committed due to conflict with another transaction",
        1021 => c"Transaction may or may not have committed",
        2101 => c"Transaction exceeds byte limit",
        2203 => c"API version not supported",
        _ => c"UNKNOWN_ERROR",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn fdb_error_predicate(test: c_int, code: Code) -> c_int {
    let maybe = [1021, 1039].contains(&code);
    let not = [1020, 1007, 1009, 1038, 1042, 1051, 1078, 1037, 1213].contains(&code);
    c_int::from(match test {
        50000 => maybe || not,
        50001 => maybe,
        50002 => not,
        _ => false,
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn fdb_get_max_api_version() -> c_int {
    API_VERSION
}

#[unsafe(no_mangle)]
pub extern "C" fn fdb_select_api_version_impl(runtime: c_int, header: c_int) -> Code {
    if runtime > header || header > API_VERSION {
        return 2203;
    }
    let before = SELECTED.swap(runtime.into(), Ordering::SeqCst);
    // api_version_already_set
    if before == 0 { 0 } else { 2201 }
}

#[unsafe(no_mangle)]
pub extern "C" fn fdb_setup_network() -> Code {
    // api_version_unset
    if SELECTED.load(Ordering::SeqCst) == 0 { 2200 } else { network::set_up() }
}

#[unsafe(no_mangle)]
pub extern "C" fn fdb_run_network() -> Code {
    network::run()
}

#[unsafe(no_mangle)]
pub extern "C" fn fdb_stop_network() -> Code {
    network::stop()
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_create_database(path: *const c_char, out: *mut *mut Database) -> Code {
    // SAFETY: the caller's word: a C string, and where the result goes.
    unsafe {
        let path = CString::from(CStr::from_ptr(path));
        let database = Database(path.to_string_lossy().into_owned());
        out.write(Box::into_raw(Box::new(database)));
    }
    0
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_database_destroy(d: *mut Database) {
    // SAFETY: made above, destroyed once.
    drop(unsafe { Box::from_raw(d) });
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_database_create_transaction(
    d: *mut Database,
    out: *mut *mut Transaction,
) -> Code {
    // SAFETY: the database is alive, and `out` is where the result goes.
    unsafe {
        let state = State {
            database: (*d).0.clone(),
            committed: Arc::new(AtomicI64::new(-1)),
            ..State::default()
        };
        out.write(Box::into_raw(Box::new(Transaction(Mutex::new(state)))));
    }
    0
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_transaction_destroy(tr: *mut Transaction) {
    // SAFETY: made above, destroyed once.
    drop(unsafe { Box::from_raw(tr) });
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_transaction_set_option(
    tr: *mut Transaction,
    option: c_int,
    _value: *const u8,
    _len: c_int,
) -> Code {
    // SAFETY: the transaction is alive.
    let mut state = unsafe { state(tr) };
    if option != 51 {
        // invalid_option: the only one that we use is read_your_writes_disable.
        return 2007;
    }
    state.own_writes_off = true;
    0
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_transaction_set_read_version(tr: *mut Transaction, version: i64) {
    // SAFETY: the transaction is alive.
    let mut state = unsafe { state(tr) };
    if version <= 0 {
        // version_invalid
        state.fail(2011);
    }
    if state.job.version.set(version) != 0 {
        // read_version_already_set
        state.fail(2010);
    }
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_transaction_get_read_version(tr: *mut Transaction) -> *const Future {
    // SAFETY: the transaction is alive.
    let state = unsafe { state(tr) };
    state.ask(What::Version(state.job.version.clone()))
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_transaction_get(
    tr: *mut Transaction,
    key: *const u8,
    len: c_int,
    snapshot: c_int,
) -> *const Future {
    // SAFETY: the transaction is alive, the key so long.
    let (mut state, key) = unsafe { (state(tr), bytes(key, len)) };
    if snapshot == 0 {
        state.job.read.push((key.clone(), [&key[..], b"\0"].concat()));
    }
    state.ask(What::Get(state.job.version.clone(), key))
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_transaction_get_range(
    tr: *mut Transaction,
    begin: *const u8,
    begin_len: c_int,
    begin_or_equal: c_int,
    begin_offset: c_int,
    end: *const u8,
    end_len: c_int,
    end_or_equal: c_int,
    end_offset: c_int,
    limit: c_int,
    _target_bytes: c_int,
    mode: c_int,
    _iteration: c_int,
    snapshot: c_int,
    reverse: c_int,
) -> *const Future {
    // SAFETY: the transaction is alive.
    let mut state = unsafe { state(tr) };
    // SAFETY: the caller's word: the keys are so long.
    let (begin, end) = unsafe { (bytes(begin, begin_len), bytes(end, end_len)) };
    // Only first_greater_or_equal, without own conflicts, in the mode that we use.
    let selectors = [begin_or_equal, begin_offset, end_or_equal, end_offset];
    if selectors != [0, 1, 0, 1] || snapshot != 1 || mode != -2 || limit < 0 {
        state.fail(INVALID);
    }
    let range = Range { begin, end, limit: limit.max(0) as usize, reverse: reverse != 0 };
    state.ask(What::Range(state.job.version.clone(), range))
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_transaction_set(
    tr: *mut Transaction,
    key: *const u8,
    key_len: c_int,
    value: *const u8,
    value_len: c_int,
) {
    // SAFETY: the transaction is alive.
    let mut state = unsafe { state(tr) };
    // SAFETY: the caller's word: key and value are so long.
    let (key, value) = unsafe { (bytes(key, key_len), bytes(value, value_len)) };
    let put = Mutation::Put { key: key.clone(), value };
    state.change(&key, value_len as usize, Change::Plain(put));
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_transaction_atomic_op(
    tr: *mut Transaction,
    key: *const u8,
    key_len: c_int,
    operand: *const u8,
    operand_len: c_int,
    what: c_int,
) {
    // SAFETY: the transaction is alive.
    let mut state = unsafe { state(tr) };
    // SAFETY: the caller's word: key and operand are so long.
    let (mut key, mut operand) = unsafe { (bytes(key, key_len), bytes(operand, operand_len)) };
    let size = operand.len();
    let change = match what {
        2 => <[u8; 8]>::try_from(&operand[..]).ok().map(|delta| {
            let delta = i64::from_le_bytes(delta);
            Change::Plain(Mutation::Add { key: key.clone(), delta })
        }),
        14 => place(&mut key).map(|at| Change::StampedKey(key.clone(), at, operand)),
        15 => place(&mut operand).map(|at| Change::StampedValue(key.clone(), operand, at)),
        _ => None,
    };
    match change {
        Some(change) => state.change(&key, size, change),
        None => state.fail(INVALID),
    }
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_transaction_clear_range(
    tr: *mut Transaction,
    begin: *const u8,
    begin_len: c_int,
    end: *const u8,
    end_len: c_int,
) {
    // SAFETY: the transaction is alive.
    let mut state = unsafe { state(tr) };
    // SAFETY: the caller's word: the keys are so long.
    let (begin, end) = unsafe { (bytes(begin, begin_len), bytes(end, end_len)) };
    state.check_range(&begin, &end);
    // The conflict range.
    state.bytes += begin.len() + end.len();
    state
        .job
        .changes
        .push(Change::Plain(Mutation::ClearRange { begin: begin.clone(), end: end.clone() }));
    state.job.written.push((begin, end));
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_transaction_add_conflict_range(
    tr: *mut Transaction,
    begin: *const u8,
    begin_len: c_int,
    end: *const u8,
    end_len: c_int,
    what: c_int,
) -> Code {
    // SAFETY: the transaction is alive.
    let mut state = unsafe { state(tr) };
    // SAFETY: the caller's word: the keys are so long.
    let (begin, end) = unsafe { (bytes(begin, begin_len), bytes(end, end_len)) };
    state.check_range(&begin, &end);
    match what {
        0 => state.job.read.push((begin, end)),
        1 => state.job.written.push((begin, end)),
        _ => return INVALID,
    }
    0
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_transaction_commit(tr: *mut Transaction) -> *const Future {
    // SAFETY: the transaction is alive.
    let mut state = unsafe { state(tr) };
    if state.committing {
        state.fail(2017);
    }
    if state.bytes > TRANSACTION_BYTES_MAX {
        state.fail(2101);
    }
    state.committing = true;
    let job = std::mem::take(&mut state.job);
    state.ask(What::Commit(job, state.committed.clone()))
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_transaction_get_committed_version(
    tr: *mut Transaction,
    out: *mut i64,
) -> Code {
    // SAFETY: the transaction is alive, and `out` is where the result goes.
    unsafe { out.write(state(tr).committed.load(Ordering::SeqCst)) };
    0
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_future_destroy(f: *const Future) {
    // SAFETY: made by `give`, destroyed once.
    network::cancel(unsafe { Arc::from_raw(f) });
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_future_set_callback(
    f: *const Future,
    callback: Callback,
    param: *mut c_void,
) -> Code {
    // SAFETY: the future is alive.
    unsafe { future(f) }.set_callback(callback, param);
    0
}

fn code(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(0)
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_future_get_error(f: *const Future) -> Code {
    // SAFETY: the future is alive.
    code(unsafe { future(f) }.with(|_| Some(())))
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_future_get_int64(f: *const Future, out: *mut i64) -> Code {
    // SAFETY: the future is alive.
    code(unsafe { future(f) }.with(|answer| {
        let Answer::Number(n) = answer else { return None };
        // SAFETY: the caller's word: this is where the result goes.
        unsafe { out.write(*n) };
        Some(())
    }))
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_future_get_value(
    f: *const Future,
    present: *mut c_int,
    at: *mut *const u8,
    len: *mut c_int,
) -> Code {
    // SAFETY: the future is alive.
    code(unsafe { future(f) }.with(|answer| {
        let Answer::Value(value) = answer else { return None };
        let bytes = value.as_deref().unwrap_or_default();
        // SAFETY: the caller's word: this is where the result goes. The value stays until the future is destroyed.
        unsafe {
            present.write(value.is_some().into());
            at.write(bytes.as_ptr());
            len.write(bytes.len() as c_int);
        }
        Some(())
    }))
}

/// # Safety
/// As FoundationDB documents it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdb_future_get_keyvalue_array(
    f: *const Future,
    at: *mut *const future::Entry,
    count: *mut c_int,
    more: *mut c_int,
) -> Code {
    // SAFETY: the future is alive.
    code(unsafe { future(f) }.with(|answer| {
        let Answer::Entries(_, entries, is_more) = answer else { return None };
        // SAFETY: the caller's word: this is where the result goes. The entries stay until the future is destroyed.
        unsafe {
            at.write(entries.as_ptr());
            count.write(entries.len() as c_int);
            more.write((*is_more).into());
        }
        Some(())
    }))
}
