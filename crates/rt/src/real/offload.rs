//! Operations on files that the kernel is not asked for by a ring: by helper threads, and by this one.

use super::helpers::Helpers;
use super::here::Here;
use super::notify::Bell;
use super::ops::{OpTable, Way};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

type Results = Arc<Mutex<Vec<(usize, io::Result<usize>)>>>;

/// Runs system calls of operations on helper threads, or here, and brings their results home.
pub(crate) struct Offload {
    helpers: Helpers,
    bell: Bell,
    results: Results,
    here: Here,
}

impl Offload {
    pub(crate) fn new(helpers: Helpers, bell: Bell) -> Self {
        Self { helpers, bell, results: Results::default(), here: Here::default() }
    }
    pub(crate) fn helpers(&self) -> &Helpers {
        &self.helpers
    }
    /// Runs the next system call of an operation.
    pub(crate) fn start(&self, ops: &OpTable, key: usize) {
        let Some(call) = ops.call(key) else { return };
        if call.way == Way::Here {
            return self.here.push(key);
        }
        let (results, bell) = (self.results.clone(), self.bell.clone());
        let owner = call.owner.jobs;
        let job = move || {
            let result = call.run();
            results.lock().unwrap_or_else(PoisonError::into_inner).push((key, result));
            bell.ring();
        };
        self.helpers.run(owner, Box::new(job));
    }
    /// Whether [`Offload::collect`] would find something.
    pub(crate) fn has_results(&self) -> bool {
        !self.here.is_empty()
            || !self.results.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
    /// Hands results to their operations and goes on with those that need it.
    pub(crate) fn collect(&self, ops: &OpTable) {
        let done =
            std::mem::take(&mut *self.results.lock().unwrap_or_else(PoisonError::into_inner));
        for (key, result) in done {
            if ops.finish(key, result) {
                self.start(ops, key);
            }
        }
        self.here.work(ops);
    }
}
