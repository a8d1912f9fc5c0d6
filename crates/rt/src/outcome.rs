//! What work on a helper thread returns, for whoever waits for its end.

use std::sync::{Arc, Mutex, PoisonError};

/// Where the result is found when the work has ended.
pub(crate) struct Outcome<T>(Arc<Mutex<Option<T>>>);

impl<T: Send + 'static> Outcome<T> {
    /// That of `work`, and the work as a helper thread takes it.
    pub fn of(work: impl FnOnce() -> T + Send + 'static) -> (Self, Box<dyn FnOnce() + Send>) {
        let slot = Arc::new(Mutex::new(None));
        let put = slot.clone();
        let job = move || {
            let out = work();
            *put.lock().unwrap_or_else(PoisonError::into_inner) = Some(out);
        };
        (Self(slot), Box::new(job))
    }
    /// None if the work has not ended, or panicked.
    pub fn take(self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
