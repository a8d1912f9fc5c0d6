//! [`Pending`]: a future of the library as one of ours.
//!
//! The library calls back on its network thread; that wakes the task that waits, through the runtime's doorbell. Nothing is polled. Guarantees: dropping it
//! cancels what it waits for. Must never: touch anything but the [`Bell`] on the library's thread.

use super::library::{Code, Library, RawEntry, RawFuture};
use crate::{Key, Value};
use std::ffi::{c_int, c_void};
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// `client_invalid_operation`: what the library says when it is called wrongly.
const INVALID: Code = 2000;

/// What both threads share: whether it is ready, and who waits for that.
#[derive(Default)]
struct Bell(Mutex<(bool, Option<Waker>)>);

/// Ready when the library has its result, or its error.
pub struct Pending {
    library: &'static Library,
    raw: NonNull<RawFuture>,
    bell: Arc<Bell>,
}

/// Called by the library when a future is ready.
///
/// # Safety
///
/// `bell` came from `Arc::into_raw` in [`Pending::new`], and the library calls this once at most for it (fdb_c.h: a callback is called once).
unsafe extern "C" fn ring(_: *mut RawFuture, bell: *mut c_void) {
    // SAFETY: `Pending::new` made this pointer of an Arc for this one call.
    let bell = unsafe { Arc::from_raw(bell.cast_const().cast::<Bell>()) };
    let waker = {
        let mut state = bell.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        state.1.take()
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Pending {
    /// # Safety
    /// `raw` is null or a future of this library that nobody else uses.
    pub unsafe fn new(library: &'static Library, raw: *mut RawFuture) -> Result<Self, Code> {
        let raw = NonNull::new(raw).ok_or(INVALID)?;
        let pending = Self { library, raw, bell: Arc::default() };
        let shared = Arc::into_raw(pending.bell.clone());
        // SAFETY: the future is alive; `ring` takes the reference that is made here. Should the library never call it (after a cancel), that reference
        // keeps the few bytes of the bell for good, which is no error.
        let code = unsafe {
            (library.fdb_future_set_callback)(raw.as_ptr(), ring, shared.cast_mut().cast())
        };
        if code == 0 { Ok(pending) } else { Err(code) }
    }

    /// Waits for a result that carries nothing.
    pub async fn done(&mut self) -> Result<(), Code> {
        (&mut *self).await;
        // SAFETY: alive until it is dropped.
        result(unsafe { (self.library.fdb_future_get_error)(self.raw.as_ptr()) })
    }

    /// Waits for a number.
    pub async fn number(&mut self) -> Result<i64, Code> {
        self.done().await?;
        let mut out = 0;
        // SAFETY: alive, and ready without an error; `out` is written before the return.
        result(unsafe { (self.library.fdb_future_get_int64)(self.raw.as_ptr(), &mut out) })?;
        Ok(out)
    }

    /// Waits for a value, if there is one.
    pub async fn value(&mut self) -> Result<Option<Value>, Code> {
        self.done().await?;
        let (mut present, mut at, mut len) = (0, std::ptr::null(), 0);
        // SAFETY: as above.
        result(unsafe {
            let get = self.library.fdb_future_get_value;
            get(self.raw.as_ptr(), &mut present, &mut at, &mut len)
        })?;
        // SAFETY: the library says that these bytes are there as long as the future is.
        Ok((present != 0).then(|| unsafe { copy(at, len) }))
    }

    /// Waits for the entries of a range, and whether there are more.
    pub async fn entries(&mut self) -> Result<(Vec<(Key, Value)>, bool), Code> {
        self.done().await?;
        let (mut at, mut count, mut more) = (std::ptr::null::<RawEntry>(), 0, 0);
        // SAFETY: as above.
        result(unsafe {
            let get = self.library.fdb_future_get_keyvalue_array;
            get(self.raw.as_ptr(), &mut at, &mut count, &mut more)
        })?;
        let count = usize::try_from(count).unwrap_or(0);
        let mut out = Vec::with_capacity(count);
        for i in 0..count {
            // SAFETY: the library says that there are so many entries, and their keys and values, as long as the future is. They are read without
            // asking for more alignment than they have.
            out.push(unsafe {
                let entry = at.add(i).read_unaligned();
                (copy(entry.key, entry.key_len), copy(entry.value, entry.value_len))
            });
        }
        Ok((out, more != 0))
    }
}

fn result(code: Code) -> Result<(), Code> {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// # Safety
/// `len` bytes are at `at`, or `len` is not positive.
unsafe fn copy(at: *const u8, len: c_int) -> Vec<u8> {
    let len = usize::try_from(len).unwrap_or(0);
    if len == 0 || at.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's word.
    unsafe { std::slice::from_raw_parts(at, len) }.to_vec()
}

impl Future for Pending {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.bell.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0 {
            return Poll::Ready(());
        }
        match &mut state.1 {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // SAFETY: ours, and this is the only place that destroys it. A call back that comes all the same finds the bell, which it owns.
        unsafe { (self.library.fdb_future_destroy)(self.raw.as_ptr()) }
    }
}
