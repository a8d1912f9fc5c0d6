//! `glowfs.Connection`: a session with the daemon of a mount.

use crate::buffer::Buffer;
use crate::error::{from_io, os_error};
use crate::file::File;
use crate::fork::Owned;
use crate::ring::Ring;
use glowfs_usrbio as usrbio;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

/// A session with the daemon of the mount that `path` is on.
///
/// Buffers, files and rings belong to it and keep it alive. It belongs to the process that made it: after a fork, the child
/// makes one of its own.
#[pyclass(module = "glowfs", frozen, weakref)]
pub struct Connection {
    inner: Owned<usrbio::Connection>,
}

/// The descriptor of an int or of whatever has `fileno()`.
pub fn descriptor(file: &Bound<'_, PyAny>) -> PyResult<i32> {
    let fd = match file.extract::<i32>() {
        Ok(fd) => fd,
        Err(_) => file.call_method0("fileno")?.extract()?,
    };
    // Borrowing a descriptor needs one that can exist.
    if fd < 0 {
        return Err(os_error(libc::EBADF, "a descriptor"));
    }
    Ok(fd)
}

fn name_bytes(name: &[u8]) -> PyResult<[u8; 16]> {
    name.try_into()
        .map_err(|_| PyValueError::new_err("a name has 16 bytes, like those of uuid.uuid4().bytes"))
}

#[pymethods]
impl Connection {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let opened = py.detach(|| usrbio::Connection::open(&path));
        let what = format!("connecting to the mount of {}", path.display());
        let inner = opened.map_err(|e| from_io(&e, &what))?;
        Ok(Self { inner: Owned::new(inner) })
    }

    /// Where the file system is mounted.
    #[getter]
    fn mount_point(&self) -> PathBuf {
        self.inner.anywhere().mount_point().to_owned()
    }

    /// The device number of the mount: `st_dev` of all its files.
    #[getter]
    fn device(&self) -> PyResult<u64> {
        self.inner.anywhere().device().map_err(|e| from_io(&e, "the mount's device"))
    }

    /// Whether the daemon still serves.
    fn is_alive(&self, py: Python<'_>) -> PyResult<bool> {
        let connection = self.inner.get()?;
        Ok(py.detach(|| connection.is_alive()))
    }

    /// New shared memory of `size` bytes, zeroed, all of it there.
    fn buffer(&self, py: Python<'_>, size: usize) -> PyResult<Buffer> {
        let connection = self.inner.get()?;
        let made = py.detach(|| connection.buffer(size));
        let made = made.map_err(|e| from_io(&e, &format!("a buffer of {size} bytes")))?;
        Ok(Buffer::new(made))
    }

    /// Names a buffer with 16 bytes, so that other processes can `find` its memory. Sixteen zeros take the name away.
    fn name(&self, py: Python<'_>, buffer: &Buffer, name: &[u8]) -> PyResult<()> {
        let (name, memory) = (name_bytes(name)?, buffer.shared()?);
        let (connection, memory) = (self.inner.get()?, memory.get()?);
        py.detach(|| connection.name(memory, name)).map_err(|e| from_io(&e, "naming a buffer"))
    }

    /// The memory that another process has named so, shared with this session too.
    fn find(&self, py: Python<'_>, name: &[u8]) -> PyResult<Buffer> {
        let (name, connection) = (name_bytes(name)?, self.inner.get()?);
        let found = py.detach(|| connection.find(name));
        Ok(Buffer::new(found.map_err(|e| from_io(&e, "a named buffer"))?))
    }

    /// Lets rings use an open file (a descriptor, or what has `fileno()`), with the rights it is open with. The caller may
    /// close its own descriptor.
    fn register(&self, py: Python<'_>, file: &Bound<'_, PyAny>) -> PyResult<File> {
        let (fd, connection) = (descriptor(file)?, self.inner.get()?);
        let made = py.detach(|| {
            // SAFETY: not negative; the caller's object keeps it open during this call, and if he closes it in another thread the
            // kernel says EBADF or registers what took its number, as with every call on a descriptor.
            connection.register(unsafe { BorrowedFd::borrow_raw(fd) })
        });
        Ok(File::new(made.map_err(|e| from_io(&e, &format!("registering descriptor {fd}")))?))
    }

    /// A ring; see `Ring`.
    #[pyo3(signature = (kind, entries=128, *, depth=0, priority=0, timeout=0.0, forbid_holes=false))]
    #[allow(clippy::too_many_arguments)] // as Python calls it: all but two are keywords
    fn ring(
        &self,
        py: Python<'_>,
        kind: &str,
        entries: u32,
        depth: i32,
        priority: i32,
        timeout: f64,
        forbid_holes: bool,
    ) -> PyResult<Ring> {
        let kind = match kind {
            "read" => usrbio::Kind::Read,
            "write" => usrbio::Kind::Write,
            other => {
                let what = format!("a ring is for \"read\" or \"write\", not {other:?}");
                return Err(PyValueError::new_err(what));
            }
        };
        let most = usrbio::ENTRIES_MAX;
        if entries == 0 || entries > most {
            return Err(PyValueError::new_err(format!("a ring has 1 to {most} entries")));
        }
        let entries = entries.next_power_of_two();
        if i64::from(depth) > i64::from(entries) {
            let what = format!("depth {depth} is more than the ring's {entries} entries");
            return Err(PyValueError::new_err(what));
        }
        if !(0.0..=4e6).contains(&timeout) {
            return Err(PyValueError::new_err("a timeout is a number of seconds, 0 or more"));
        }
        let options = usrbio::RingOptions {
            entries,
            kind,
            io_depth: depth,
            priority,
            timeout_ms: (timeout * 1000.0).ceil() as u32,
            flags: if forbid_holes { usrbio::flags::FORBID_READ_HOLES } else { 0 },
        };
        let connection = self.inner.get()?;
        let made = py.detach(|| connection.ring(options)).map_err(|e| from_io(&e, "a ring"))?;
        Ok(Ring::new(made, connection.clone()))
    }

    fn __repr__(&self) -> String {
        format!("<glowfs.Connection to {}>", self.inner.anywhere().mount_point().display())
    }
}

/// Whether a descriptor (or what has `fileno()`) is of a GlowFS mount.
#[pyfunction]
pub fn is_glowfs(py: Python<'_>, file: &Bound<'_, PyAny>) -> PyResult<bool> {
    let fd = descriptor(file)?;
    // SAFETY: not negative; the caller keeps it open, and the kernel answers for whatever it is.
    Ok(py.detach(|| usrbio::Connection::is_ours(unsafe { BorrowedFd::borrow_raw(fd) })))
}

/// Where the file system that `path` is on is mounted; OSError if that is not GlowFS.
#[pyfunction]
pub fn mount_point_of(py: Python<'_>, path: PathBuf) -> PyResult<PathBuf> {
    let found = py.detach(|| usrbio::mount_point_of(&path));
    found.map_err(|e| from_io(&e, &path.display().to_string()))
}
