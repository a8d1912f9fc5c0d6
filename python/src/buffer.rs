//! `glowfs.Buffer`: memory that Python and the mount daemon share, as the buffer protocol shows memory.

use crate::fork::Owned;
use glowfs_usrbio as usrbio;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What operations hold while they are on their way.
pub type Memory = Arc<Owned<usrbio::Buffer>>;

/// Memory shared with the mount daemon: `memoryview(buffer)` and `numpy.frombuffer(buffer, ...)` are that memory, with no copy.
///
/// It stays mapped as long as a view, an operation on its way or this object uses it. Do not look at bytes of a read, nor change those of
/// a write, before its completion.
#[pyclass(module = "glowfs", frozen, weakref)]
pub struct Buffer {
    state: Mutex<State>,
}

struct State {
    memory: Option<Memory>,
    /// Views that are not released.
    views: usize,
}

fn closed() -> PyErr {
    PyValueError::new_err("the buffer is closed")
}

impl Buffer {
    /// Shows the memory to Python.
    pub fn new(memory: usrbio::Buffer) -> Self {
        Self { state: Mutex::new(State { memory: Some(Arc::new(Owned::new(memory))), views: 0 }) }
    }
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The memory, for an operation.
    pub fn shared(&self) -> PyResult<Memory> {
        self.state().memory.clone().ok_or_else(closed)
    }
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.state().memory.as_ref().map_or(0, |m| m.anywhere().len())
    }

    /// Its size in bytes; 0 when it is closed.
    #[getter]
    fn nbytes(&self) -> usize {
        self.__len__()
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.state().memory.is_none()
    }

    /// Gives the memory back. BufferError while a view of it exists or an operation uses it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.state();
        if state.views > 0 {
            let what = format!("{} views of the buffer exist: release them first", state.views);
            return Err(PyBufferError::new_err(what));
        }
        let memory = match state.memory.take().map(Arc::try_unwrap) {
            None => return Ok(()),
            Some(Ok(memory)) => memory,
            Some(Err(used)) => {
                state.memory = Some(used);
                let what = "operations on the buffer are outstanding: take their completions first";
                return Err(PyBufferError::new_err(what));
            }
        };
        drop(state);
        py.detach(|| drop(memory));
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }
    #[pyo3(signature = (*_why))]
    fn __exit__(&self, py: Python<'_>, _why: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        match &self.state().memory {
            Some(m) => format!("<glowfs.Buffer of {} bytes>", m.anywhere().len()),
            None => "<glowfs.Buffer, closed>".into(),
        }
    }

    /// # Safety
    /// Called by the interpreter, with a view to fill in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let mut state = slf.get().state();
        let memory = state.memory.as_ref().ok_or_else(closed)?.anywhere();
        let len = memory.len() as ffi::Py_ssize_t;
        // SAFETY: the memory is mapped until `close` or the end of the object: the first is refused while views are counted, and the
        // view holds a reference to the object. `view` is the interpreter's.
        let r = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), memory.as_ptr().cast(), len, 0, flags)
        };
        if r != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        state.views += 1;
        Ok(())
    }

    /// # Safety
    /// Called by the interpreter, with a view that `__getbuffer__` filled in.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.state().views -= 1;
    }
}
