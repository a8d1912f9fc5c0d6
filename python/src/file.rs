//! `glowfs.File`: an open file that rings may use.

use crate::fork::Owned;
use glowfs_usrbio as usrbio;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What operations hold while they are on their way.
pub type Registered = Arc<Owned<usrbio::RegisteredFile>>;

/// A file that rings may use. It stays open until it is closed here and the last operation on it is done, whatever the caller does with
/// the descriptor that it was made from.
#[pyclass(module = "glowfs", frozen, weakref)]
pub struct File {
    registered: Mutex<Option<Registered>>,
}

impl File {
    /// Shows it to Python.
    pub fn new(file: usrbio::RegisteredFile) -> Self {
        Self { registered: Mutex::new(Some(Arc::new(Owned::new(file)))) }
    }
    fn lock(&self) -> MutexGuard<'_, Option<Registered>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The file, for an operation.
    pub fn shared(&self) -> PyResult<Registered> {
        self.lock().clone().ok_or_else(|| PyValueError::new_err("the file is closed"))
    }
}

#[pymethods]
impl File {
    /// The descriptor that is kept open for it.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.shared()?.anywhere().as_raw_fd())
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.lock().is_none()
    }

    /// Ends its use. Operations that are on their way end first.
    fn close(&self, py: Python<'_>) {
        let gone = self.lock().take();
        py.detach(|| drop(gone));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }
    #[pyo3(signature = (*_why))]
    fn __exit__(&self, py: Python<'_>, _why: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        match &*self.lock() {
            Some(f) => format!("<glowfs.File of descriptor {}>", f.anywhere().as_raw_fd()),
            None => "<glowfs.File, closed>".into(),
        }
    }
}
