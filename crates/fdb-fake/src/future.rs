//! Futures: a result that the network thread sets once, and whom to tell.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An error number.
pub type Code = i32;
/// Called when a future is ready.
pub type Callback = unsafe extern "C" fn(*const Future, *mut c_void);

/// `FDBKeyValue`, its pointers as numbers.
#[repr(C, packed(4))]
pub struct Entry {
    key: usize,
    key_len: i32,
    value: usize,
    value_len: i32,
}

/// A result.
pub enum Answer {
    /// Of a commit.
    Nothing,
    /// A version.
    Number(i64),
    /// Of a key.
    Value(Option<Vec<u8>>),
    /// Of a range: what the entries point to, the entries, whether there are more.
    Entries(Vec<(Vec<u8>, Vec<u8>)>, Vec<Entry>, bool),
}

impl Answer {
    /// A page of a range.
    pub fn page(found: Vec<(Vec<u8>, Vec<u8>)>, more: bool) -> Self {
        let entry = |(k, v): &(Vec<u8>, Vec<u8>)| Entry {
            key: k.as_ptr().expose_provenance(),
            key_len: k.len() as i32,
            value: v.as_ptr().expose_provenance(),
            value_len: v.len() as i32,
        };
        let entries = found.iter().map(entry).collect();
        Self::Entries(found, entries, more)
    }
}

#[derive(Default)]
struct State {
    /// Never changed once it is there.
    answer: Option<Result<Answer, Code>>,
    callback: Option<(Callback, usize)>,
}

/// `FDBFuture`.
#[derive(Default)]
pub struct Future(Mutex<State>);

impl Future {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the result, if there is none, and tells.
    pub fn set(self: &Arc<Self>, answer: Result<Answer, Code>) {
        let callback = {
            let mut state = self.state();
            if state.answer.is_some() {
                return;
            }
            state.answer = Some(answer);
            state.callback.take()
        };
        self.call(callback);
    }

    /// Says whom to tell; at once if it is ready.
    pub fn set_callback(self: &Arc<Self>, callback: Callback, param: *mut c_void) {
        let callback = (callback, param.expose_provenance());
        let now = {
            let mut state = self.state();
            match state.answer {
                Some(_) => Some(callback),
                None => state.callback.replace(callback).and(None),
            }
        };
        self.call(now);
    }

    fn call(self: &Arc<Self>, callback: Option<(Callback, usize)>) {
        if let Some((callback, param)) = callback {
            // SAFETY: whoever set it says that it may be called once, on any thread, with this parameter.
            unsafe { callback(Arc::as_ptr(self), std::ptr::with_exposed_provenance_mut(param)) }
        }
    }

    /// Looks at the result.
    pub fn with<T>(&self, look: impl FnOnce(&Answer) -> Option<T>) -> Result<T, Code> {
        match &self.state().answer {
            // future_not_set
            None => Err(2015),
            Some(Err(code)) => Err(*code),
            // client_invalid_operation: the result has another type.
            Some(Ok(answer)) => look(answer).ok_or(2000),
        }
    }
}
