//! [`Owned`]: something that belongs to the process that made it.
//!
//! A forked child has the same open directory, so what it says to the daemon is said in its parent's session: a buffer that the
//! child lets go of would be taken from the parent. So the child lets go of nothing, and is told to make a connection of its own.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::mem::ManuallyDrop;

/// See the module.
pub struct Owned<T> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T> Owned<T> {
    /// It belongs to this process.
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: std::process::id() }
    }
    fn ours(&self) -> bool {
        self.process == std::process::id()
    }
    fn check(&self) -> PyResult<()> {
        if self.ours() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(format!(
            "this was made by process {}, and this one was forked from it: connect anew in each process",
            self.process
        )))
    }
    /// The value, in the process that made it.
    pub fn get(&self) -> PyResult<&T> {
        self.check().map(|()| &*self.value)
    }
    /// The same, to change it.
    pub fn get_mut(&mut self) -> PyResult<&mut T> {
        self.check()?;
        Ok(&mut self.value)
    }
    /// The value in any process, for what needs no daemon.
    pub fn anywhere(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.ours() {
            // SAFETY: dropped once, here; nobody sees it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
