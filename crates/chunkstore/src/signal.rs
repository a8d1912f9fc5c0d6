//! [`Signal`]: something may have changed that others wait for.

use glowfs_rt::sync::Notify;

/// Wakes all who wait whenever something changed; each looks for itself whether it was what it waits for.
#[derive(Default)]
pub(crate) struct Signal(Notify);

impl Signal {
    pub fn wake(&self) {
        self.0.notify_all();
    }
    /// Resolves when `ready` gives something; asked at once and after each [`Signal::wake`].
    pub async fn wait<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        loop {
            let news = self.0.wait();
            if let Some(v) = ready() {
                return v;
            }
            news.await;
        }
    }
}

#[cfg(test)]
mod tests;
