//! [`Library`]: the part of FoundationDB's C interface that we use, found in a shared library at run time.
//!
//! So the same binary runs where FoundationDB is not installed. Guarantees: a library that lacks a function, or is too old, is refused with an error that says
//! what to install, before anything of it but its version was called. Must never: unload a library (its functions are kept for the life of the process).

use glowfs_types::{Error, Result, Status};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::path::Path;

/// The version of the C interface that this code is written for: FoundationDB 7.1. Newer libraries have it, too.
pub const API_VERSION: c_int = 710;
/// The library's usual name; the dynamic linker looks for it.
pub const LIBRARY_DEFAULT: &str = "libfdb_c.so";

/// An error number of the library; 0 is none.
pub type Code = c_int;

/// Something of the library's that is only pointed to, and used by one thread at a time.
#[repr(C)]
pub struct Opaque<T>([u8; 0], PhantomData<(*mut u8, T)>);
/// A database.
pub type RawDatabase = Opaque<u8>;
/// A transaction.
pub type RawTransaction = Opaque<u16>;
/// A future.
pub type RawFuture = Opaque<u32>;
/// Called when a future is ready, at most once, on any thread.
pub type Callback = unsafe extern "C" fn(*mut RawFuture, *mut c_void);

/// `FDBKeyValue`: two pointers that are only aligned to 4 bytes, each with a length.
#[repr(C, packed(4))]
#[derive(Clone, Copy)]
pub struct RawEntry {
    /// The key.
    pub key: *const u8,
    /// Its bytes.
    pub key_len: c_int,
    /// The value.
    pub value: *const u8,
    /// Its bytes.
    pub value_len: c_int,
}

macro_rules! interface {
    ($($(#[$doc:meta])* $name:ident: ($($arg:ty),*) $(-> $out:ty)?;)*) => {
        /// The functions. docs: FoundationDB's `fdb_c.h` at [`API_VERSION`].
        #[allow(missing_docs)]
        pub struct Library {
            path: String,
            $($(#[$doc])* pub $name: unsafe extern "C" fn($($arg),*) $(-> $out)?,)*
        }
        /// The names of all functions that are needed.
        pub const SYMBOLS: &[&str] = &[$(stringify!($name)),*];

        fn find(path: &str, handle: *mut c_void) -> Result<Library> {
            Ok(Library {
                path: path.to_owned(),
                // SAFETY: the symbol is a function of that C interface (`open` checks the version), whose header has it with these arguments and
                // this result; a pointer to a function has the size of a pointer to data here.
                $($name: unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $out)?>(
                        symbol(path, handle, stringify!($name))?,
                    )
                },)*
            })
        }
    };
}

type Bytes = *const u8;

interface! {
    fdb_get_error: (Code) -> *const c_char;
    fdb_error_predicate: (c_int, Code) -> c_int;
    fdb_get_max_api_version: () -> c_int;
    fdb_select_api_version_impl: (c_int, c_int) -> Code;
    fdb_setup_network: () -> Code;
    fdb_run_network: () -> Code;
    fdb_stop_network: () -> Code;
    fdb_create_database: (*const c_char, *mut *mut RawDatabase) -> Code;
    fdb_database_destroy: (*mut RawDatabase);
    fdb_database_create_transaction: (*mut RawDatabase, *mut *mut RawTransaction) -> Code;
    fdb_transaction_destroy: (*mut RawTransaction);
    /// Option, value, its length.
    fdb_transaction_set_option: (*mut RawTransaction, c_int, Bytes, c_int) -> Code;
    fdb_transaction_set_read_version: (*mut RawTransaction, i64);
    fdb_transaction_get_read_version: (*mut RawTransaction) -> *mut RawFuture;
    /// Key, its length, whether without a conflict.
    fdb_transaction_get: (*mut RawTransaction, Bytes, c_int, c_int) -> *mut RawFuture;
    /// Begin: key, length, or equal, offset; the end likewise; entries, bytes, mode, iteration, whether without a conflict, whether backwards.
    fdb_transaction_get_range: (
        *mut RawTransaction, Bytes, c_int, c_int, c_int, Bytes, c_int, c_int, c_int, c_int, c_int, c_int, c_int,
        c_int, c_int
    ) -> *mut RawFuture;
    fdb_transaction_set: (*mut RawTransaction, Bytes, c_int, Bytes, c_int);
    /// Key, its length, operand, its length, which operation.
    fdb_transaction_atomic_op: (*mut RawTransaction, Bytes, c_int, Bytes, c_int, c_int);
    fdb_transaction_clear_range: (*mut RawTransaction, Bytes, c_int, Bytes, c_int);
    /// Begin, its length, end, its length, whether read (0) or written (1).
    fdb_transaction_add_conflict_range: (*mut RawTransaction, Bytes, c_int, Bytes, c_int, c_int) -> Code;
    fdb_transaction_commit: (*mut RawTransaction) -> *mut RawFuture;
    fdb_transaction_get_committed_version: (*mut RawTransaction, *mut i64) -> Code;
    /// Destroying a future cancels what it waits for.
    fdb_future_destroy: (*mut RawFuture);
    fdb_future_set_callback: (*mut RawFuture, Callback, *mut c_void) -> Code;
    fdb_future_get_error: (*mut RawFuture) -> Code;
    fdb_future_get_int64: (*mut RawFuture, *mut i64) -> Code;
    /// Whether there is one, value, its length.
    fdb_future_get_value: (*mut RawFuture, *mut c_int, *mut Bytes, *mut c_int) -> Code;
    /// Entries, how many, whether there are more.
    fdb_future_get_keyvalue_array: (*mut RawFuture, *mut *const RawEntry, *mut c_int, *mut c_int) -> Code;
}

/// What to do if there is no library that can be used.
const WAY_OUT: &str = "install FoundationDB's client (7.1 or newer, package foundationdb-clients), or name its file \
                       as `library` under [engine]";

fn refuse(what: String) -> Error {
    Error::new(Status::NotSupported, what)
}

/// What the dynamic linker says about its last failure.
fn linker_says() -> String {
    // SAFETY: takes nothing; the answer is null or a C string that stays until this thread calls the linker again, and is copied at once.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "no reason given".to_owned();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

fn symbol(path: &str, handle: *mut c_void, name: &str) -> Result<*mut c_void> {
    let missing = || {
        refuse(format!(
            "{path} has no function {name}: it is no client library of FoundationDB, or too old; {WAY_OUT}"
        ))
    };
    let c_name = CString::new(name).map_err(|_| missing())?;
    // SAFETY: the handle is of a library that was loaded and is never unloaded; the name is a C string.
    let found = unsafe { libc::dlsym(handle, c_name.as_ptr()) };
    if found.is_null() { Err(missing()) } else { Ok(found) }
}

impl Library {
    /// Loads a library and selects [`API_VERSION`], which can be done once in the life of a process.
    pub fn open(path: &Path) -> Result<Self> {
        let shown = path.display().to_string();
        let c_path = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| refuse(format!("{shown}: a path may not hold a zero byte")))?;
        // SAFETY: a C string. Loading runs the library's constructors: it is the operator who names it, as with every shared library.
        let handle = unsafe { libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            let why = linker_says();
            return Err(refuse(format!(
                "FoundationDB's client library cannot be loaded: {why}; {WAY_OUT}"
            )));
        }
        let library = find(&shown, handle)?;
        // SAFETY: takes nothing, and may be called before everything else.
        let newest = unsafe { (library.fdb_get_max_api_version)() };
        if newest < API_VERSION {
            return Err(refuse(format!(
                "{shown} speaks version {newest} of FoundationDB's interface, at least {API_VERSION} is needed; {WAY_OUT}"
            )));
        }
        // SAFETY: two numbers. `network::start` calls this once, under its lock.
        let code = unsafe { (library.fdb_select_api_version_impl)(API_VERSION, API_VERSION) };
        if code != 0 {
            return Err(refuse(format!(
                "{shown} refuses version {API_VERSION} of its interface: {} ({code}); {WAY_OUT}",
                library.text(code)
            )));
        }
        Ok(library)
    }

    /// Where it came from.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What an error number means, in the library's words.
    pub fn text(&self, code: Code) -> String {
        // SAFETY: a number; the answer is a C string that is never freed.
        let text = unsafe { (self.fdb_get_error)(code) };
        if text.is_null() {
            return "unknown error".to_owned();
        }
        // SAFETY: not null, and as above.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}
