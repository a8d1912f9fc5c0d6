//! `glowfs.Ring`: batches of reads or writes.

use crate::buffer::Buffer;
use crate::error::{from_io, os_error};
use crate::file::File;
use crate::fork::Owned;
use crate::operation::{Operation, Request, offsets};
use glowfs_usrbio as usrbio;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use usrbio::RingError;

/// While this waits it looks so often whether the interpreter has a signal (Ctrl-C) for it.
const SIGNALS: Duration = Duration::from_millis(100);
/// And so often whether the daemon still lives.
const ALIVE: Duration = Duration::from_secs(1);
/// The longest that a caller can wait by number; more is for ever.
const LONGEST_SECONDS: f64 = 1e9;

/// What became of one operation that was `prepare`d.
#[pyclass(module = "glowfs", frozen)]
pub struct Completion {
    /// What `prepare` was given.
    #[pyo3(get)]
    tag: Py<PyAny>,
    /// Bytes done, or a negated errno.
    #[pyo3(get)]
    result: i64,
}

#[pymethods]
impl Completion {
    /// The OSError of an operation that failed, else None.
    #[getter]
    fn error(&self) -> Option<PyErr> {
        errno_of(self.result).map(|e| os_error(e, "an operation of the ring"))
    }
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let tag = self.tag.bind(py).repr()?;
        Ok(format!("<glowfs.Completion tag={tag} result={}>", self.result))
    }
}

fn errno_of(result: i64) -> Option<i32> {
    (result < 0).then(|| i32::try_from(-result).unwrap_or(libc::EIO))
}

/// Who hears of an operation.
enum Hearer {
    /// `wait`.
    Tag(Py<PyAny>),
    /// The call of `transfer` with this number, for its n-th request. One that was interrupted hears of nothing any more.
    Call(u64, usize),
}

/// An operation that the daemon has. It holds memory and file until its completion is taken.
struct Pending {
    hearer: Hearer,
    _operation: Operation,
}

/// A ring of reads or of writes. One thread uses it at a time (another one gets RuntimeError).
///
/// `depth` N > 0: exactly N at a time, fewer wait for at most `timeout` seconds (0: for ever); 0: as soon as possible; N < 0: at
/// most -N at a time. `priority` below 0: before others. `forbid_holes`: a read ends before a hole, and one that begins in it or finds
/// data behind it fails with ENODATA.
#[pyclass(module = "glowfs", weakref)]
pub struct Ring {
    ring: Option<Owned<usrbio::Ring>>,
    connection: usrbio::Connection,
    pending: HashMap<u64, Pending>,
    next_user: u64,
    calls: u64,
    /// Completions that came while another call waited for its own.
    arrived: Vec<(Py<PyAny>, i64)>,
}

/// One call of `transfer`: which requests were begun, and what became of them.
struct Progress {
    call: u64,
    results: Vec<i64>,
    begun: usize,
    left: usize,
}

fn closed() -> PyErr {
    PyValueError::new_err("the ring is closed")
}

fn refused(e: RingError) -> PyErr {
    match e {
        RingError::Full => os_error(
            libc::EAGAIN,
            "as many operations as the ring has entries are outstanding: wait for completions first",
        ),
        other => PyValueError::new_err(other.to_string()),
    }
}

impl Ring {
    /// Shows it to Python.
    pub fn new(ring: usrbio::Ring, connection: usrbio::Connection) -> Self {
        Self {
            ring: Some(Owned::new(ring)),
            connection,
            pending: HashMap::new(),
            next_user: 0,
            calls: 0,
            arrived: Vec::new(),
        }
    }
    fn ring(&mut self) -> PyResult<&mut usrbio::Ring> {
        self.ring.as_mut().ok_or_else(closed)?.get_mut()
    }
    fn look(&self) -> PyResult<&usrbio::Ring> {
        self.ring.as_ref().ok_or_else(closed)?.get()
    }

    /// Puts an operation into the ring.
    fn put(&mut self, op: Operation, hearer: Hearer) -> PyResult<()> {
        let user = self.next_user;
        let ring = self.ring()?;
        let (file, memory) = (op.file.get()?, op.buffer.get()?);
        ring.prepare(file, op.offset, memory, op.at, op.length, user).map_err(refused)?;
        self.next_user += 1;
        self.pending.insert(user, Pending { hearer, _operation: op });
        Ok(())
    }

    /// Takes the completions that are there; those of `progress` go to it, those with a tag are kept for `wait`.
    fn take(&mut self, progress: Option<&mut Progress>) -> PyResult<()> {
        let mut progress = progress;
        while let Some(done) = self.ring()?.take() {
            // The daemon answers what it was asked; an answer to something else is dropped.
            let Some(pending) = self.pending.remove(&done.user) else { continue };
            match pending.hearer {
                Hearer::Tag(tag) => self.arrived.push((tag, done.result)),
                Hearer::Call(call, index) => {
                    if let Some(p) = progress.as_mut().filter(|p| p.call == call) {
                        p.results[index] = done.result;
                        p.left -= 1;
                    }
                }
            }
        }
        Ok(())
    }

    /// Sleeps until a completion is there (true) or the time has come, with the interpreter free; hears signals, and notices when the
    /// daemon has died.
    fn sleep(&self, py: Python<'_>, until: Option<Instant>) -> PyResult<bool> {
        let ring = self.look()?;
        let (completions, taken) = (ring.completions(), ring.taken());
        let mut look_at = Instant::now() + ALIVE;
        loop {
            let now = Instant::now();
            let piece = until.map_or(now + SIGNALS, |u| u.min(now + SIGNALS));
            let there = py.detach(|| completions.wait(taken, Some(piece)));
            if there.map_err(|e| from_io(&e, "waiting for completions"))? {
                return Ok(true);
            }
            py.check_signals()?;
            if until.is_some_and(|u| u <= Instant::now()) {
                return Ok(false);
            }
            // A daemon that is only slow is not waited for: it would keep us from our time, and from signals.
            if Instant::now() >= look_at {
                look_at = Instant::now() + ALIVE;
                if py.detach(|| self.connection.is_gone()) {
                    return Err(os_error(libc::ENOTCONN, "waiting for completions"));
                }
            }
        }
    }

    fn send(&mut self) -> PyResult<()> {
        self.ring()?.submit().map_err(|e| from_io(&e, "submitting"))
    }

    /// Carries out all operations, as many at a time as the ring has entries.
    fn run(
        &mut self,
        py: Python<'_>,
        operations: Vec<Operation>,
        until: Option<Instant>,
    ) -> PyResult<Vec<i64>> {
        self.check_depth(operations.len())?;
        self.check_all(&operations)?;
        self.calls += 1;
        let count = operations.len();
        let mut progress =
            Progress { call: self.calls, results: vec![0; count], begun: 0, left: count };
        let mut waiting = operations.into_iter();
        while progress.left > 0 {
            let room = {
                let ring = self.look()?;
                (ring.options().entries - ring.outstanding()) as usize
            };
            for op in waiting.by_ref().take(room) {
                let index = progress.begun;
                progress.begun += 1;
                self.put(op, Hearer::Call(progress.call, index))?;
            }
            self.send()?;
            self.take(Some(&mut progress))?;
            // What was just taken may have made room; with nothing on its way, no completion would ever come.
            let full = self.look()?.outstanding() == self.look()?.options().entries;
            let all_begun = waiting.len() == 0;
            if progress.left > 0 && (full || all_begun) && !self.sleep(py, until)? {
                let what = format!("{} of {count} operations are not done in time", progress.left);
                return Err(os_error(libc::ETIMEDOUT, &what));
            }
        }
        Ok(progress.results)
    }

    /// Whether none of them is refused when it is prepared, or those before it would stay prepared, for the next call to carry out.
    fn check_all(&self, operations: &[Operation]) -> PyResult<()> {
        let ring = self.look()?;
        let may =
            |op: &Operation| ring.may_prepare(op.file.get()?, op.buffer.get()?).map_err(refused);
        operations.iter().try_for_each(may)
    }

    /// A ring that waits for ever for exactly N would never finish a batch that is no multiple of N.
    fn check_depth(&self, count: usize) -> PyResult<()> {
        let options = self.look()?.options();
        let Ok(depth @ 1..) = usize::try_from(options.io_depth) else { return Ok(()) };
        if options.timeout_ms == 0 && !count.is_multiple_of(depth) {
            return Err(PyValueError::new_err(format!(
                "{count} operations on a ring that takes exactly {depth} at a time and has no timeout would wait for ever"
            )));
        }
        Ok(())
    }
}

/// Raises the first error, unless they are wanted as numbers.
fn judged(results: Vec<i64>, errors: &str) -> PyResult<Vec<i64>> {
    let first = results.iter().enumerate().find_map(|(i, r)| Some((i, errno_of(*r)?)));
    match first {
        Some((index, errno)) if errors == "raise" => {
            Err(os_error(errno, &format!("operation {index} of {}", results.len())))
        }
        _ => Ok(results),
    }
}

fn check_errors(errors: &str) -> PyResult<()> {
    if matches!(errors, "raise" | "return") {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("errors is \"raise\" or \"return\", not {errors:?}")))
}

fn end_of(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    match timeout {
        None => Ok(None),
        Some(s) if s >= LONGEST_SECONDS => Ok(None),
        Some(s) if s >= 0.0 => Ok(Some(Instant::now() + Duration::from_secs_f64(s))),
        Some(_) => Err(PyValueError::new_err("a timeout is a number of seconds, 0 or more")),
    }
}

#[pymethods]
impl Ring {
    /// Carries out a batch of `(file, offset, length, buffer, at)`: `length` bytes between the file at `offset` and the buffer at `at`.
    ///
    /// Returns the bytes done of each (fewer at the end of a file). The first error is raised when all are done; with `errors="return"`,
    /// negated errnos stand among the results instead. After `timeout` seconds: TimeoutError, and the operations go on unheard.
    #[pyo3(signature = (requests, *, timeout=None, errors="raise"))]
    fn transfer(
        &mut self,
        py: Python<'_>,
        requests: Vec<Request<'_>>,
        timeout: Option<f64>,
        errors: &str,
    ) -> PyResult<Vec<i64>> {
        check_errors(errors)?;
        let operations: PyResult<Vec<_>> = requests.iter().map(Operation::from_request).collect();
        let results = self.run(py, operations?, end_of(timeout)?)?;
        judged(results, errors)
    }

    /// A batch of equal pieces of one file: `size` bytes at each of `offsets` (an array of 64-bit numbers, or a sequence), one after the
    /// other in the buffer from `at` on, `stride` bytes (default `size`) from one to the next. Else like `transfer`.
    #[pyo3(signature = (file, offsets, size, buffer, at=0, *, stride=None, timeout=None, errors="raise"))]
    #[allow(clippy::too_many_arguments)] // as Python calls it
    fn gather(
        &mut self,
        py: Python<'_>,
        file: &File,
        #[pyo3(from_py_with = offsets)] offsets: Vec<u64>,
        size: usize,
        buffer: &Buffer,
        at: usize,
        stride: Option<usize>,
        timeout: Option<f64>,
        errors: &str,
    ) -> PyResult<Vec<i64>> {
        check_errors(errors)?;
        let (file, memory) = (file.shared()?, buffer.shared()?);
        let stride = stride.unwrap_or(size);
        let place = |i: usize| i.checked_mul(stride).and_then(|n| n.checked_add(at));
        let operations: PyResult<Vec<_>> = offsets
            .into_iter()
            .enumerate()
            .map(|(i, offset)| {
                let at = place(i).unwrap_or(usize::MAX);
                Operation::new(file.clone(), offset, size, memory.clone(), at)
            })
            .collect();
        let results = self.run(py, operations?, end_of(timeout)?)?;
        judged(results, errors)
    }

    /// Prepares one operation; `submit` shows it to the daemon, `wait` returns its completion with `tag`.
    #[pyo3(signature = (file, offset, length, buffer, at=0, tag=None))]
    #[allow(clippy::too_many_arguments)] // as Python calls it
    fn prepare(
        &mut self,
        py: Python<'_>,
        file: &File,
        offset: u64,
        length: usize,
        buffer: &Buffer,
        at: usize,
        tag: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let op = Operation::new(file.shared()?, offset, length, buffer.shared()?, at)?;
        self.put(op, Hearer::Tag(tag.unwrap_or_else(|| py.None())))
    }

    /// Shows the daemon what was prepared.
    fn submit(&mut self) -> PyResult<()> {
        self.send()
    }

    /// Waits until at least `least` completions of prepared operations are there, or `timeout` seconds have passed; returns those that are there.
    #[pyo3(signature = (least=1, timeout=None))]
    fn wait(
        &mut self,
        py: Python<'_>,
        least: usize,
        timeout: Option<f64>,
    ) -> PyResult<Vec<Completion>> {
        let until = end_of(timeout)?;
        loop {
            self.take(None)?;
            let heard = |p: &Pending| matches!(p.hearer, Hearer::Tag(_));
            let coming = self.pending.values().filter(|p| heard(p)).count();
            if self.arrived.len() < least
                && coming + self.arrived.len() < least
                && timeout.is_none()
            {
                return Err(PyRuntimeError::new_err(format!(
                    "{least} completions can never be there: {} operations are prepared or done",
                    coming + self.arrived.len()
                )));
            }
            if self.arrived.len() >= least || !self.sleep(py, until)? {
                break;
            }
        }
        let arrived = std::mem::take(&mut self.arrived);
        Ok(arrived.into_iter().map(|(tag, result)| Completion { tag, result }).collect())
    }

    /// Operations that were prepared and whose completions were not taken.
    #[getter]
    fn outstanding(&self) -> PyResult<u32> {
        Ok(self.look()?.outstanding())
    }
    /// How many operations fit.
    #[getter]
    fn entries(&self) -> PyResult<u32> {
        Ok(self.look()?.options().entries)
    }
    /// "read" or "write".
    #[getter]
    fn kind(&self) -> PyResult<&'static str> {
        Ok(match self.look()?.options().kind {
            usrbio::Kind::Read => "read",
            usrbio::Kind::Write => "write",
        })
    }
    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.ring.is_none()
    }

    /// Ends the ring. Operations that the daemon has taken are carried out, and nobody hears of them: their memory stays shared until then.
    fn close(&mut self, py: Python<'_>) {
        let ring = self.ring.take();
        let pending = std::mem::take(&mut self.pending);
        self.arrived.clear();
        // The ring first: nothing more is taken from it when memory and files go.
        py.detach(|| drop(ring));
        drop(pending);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }
    #[pyo3(signature = (*_why))]
    fn __exit__(&mut self, py: Python<'_>, _why: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        match self.ring.as_ref().map(|r| r.anywhere().options()) {
            Some(o) => format!("<glowfs.Ring of {} entries, {:?}>", o.entries, o.kind),
            None => "<glowfs.Ring, closed>".into(),
        }
    }
}
