//! One operation as Python states it, checked before any is begun.

use crate::buffer::{Buffer, Memory};
use crate::file::{File, Registered};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Bytes between a file and a buffer.
pub struct Operation {
    /// The file.
    pub file: Registered,
    /// Where in the file.
    pub offset: u64,
    /// How many bytes.
    pub length: usize,
    /// The buffer.
    pub buffer: Memory,
    /// Where in the buffer.
    pub at: usize,
}

/// As Python states it: (file, offset, length, buffer, at).
pub type Request<'py> = (Bound<'py, File>, u64, usize, Bound<'py, Buffer>, usize);

impl Operation {
    /// Checks that its bytes lie in the buffer.
    pub fn new(
        file: Registered,
        offset: u64,
        length: usize,
        buffer: Memory,
        at: usize,
    ) -> PyResult<Self> {
        let size = buffer.get()?.len();
        if at.checked_add(length).is_none_or(|end| end > size) {
            return Err(PyValueError::new_err(format!(
                "{length} bytes at {at} do not lie in the buffer, which has {size}"
            )));
        }
        let end = offset.checked_add(length as u64);
        if end.is_none_or(|e| i64::try_from(e).is_err()) {
            let what = format!("{length} bytes at {offset} are behind what a file can have");
            return Err(PyValueError::new_err(what));
        }
        file.get()?;
        Ok(Self { file, offset, length, buffer, at })
    }
    /// From a tuple of Python.
    pub fn from_request(r: &Request<'_>) -> PyResult<Self> {
        Self::new(r.0.get().shared()?, r.1, r.2, r.3.get().shared()?, r.4)
    }
}

/// Offsets: an array of 64-bit numbers (copied at once), or any sequence of numbers.
pub fn offsets(given: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let py = given.py();
    if let Ok(array) = PyBuffer::<i64>::get(given) {
        let signed = array.to_vec(py)?;
        let all: Result<Vec<u64>, _> = signed.into_iter().map(u64::try_from).collect();
        return all.map_err(|_| PyValueError::new_err("an offset is negative"));
    }
    if let Ok(array) = PyBuffer::<u64>::get(given) {
        return array.to_vec(py);
    }
    given.extract()
}
