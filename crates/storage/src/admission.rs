//! Admission: a bound on requests and bytes in work, so that past the knee the rest is refused at once.

use glowfs_types::{Error, Result, Status};
use std::cell::Cell;
use std::rc::Rc;

/// What is in work now, and how much may be.
pub(crate) struct Admission {
    bytes: Cell<u64>,
    ops: Cell<u64>,
    bytes_max: u64,
    ops_max: u64,
}

/// A request in work; gives its part back when dropped.
pub(crate) struct Admitted {
    admission: Rc<Admission>,
    bytes: u64,
}

impl Admission {
    pub fn new(bytes_max: u64, ops_max: u64) -> Rc<Self> {
        Rc::new(Self { bytes: Cell::new(0), ops: Cell::new(0), bytes_max, ops_max })
    }
    /// Takes a request of so many bytes in, or says `Overloaded`. One request is always let in, whatever its size.
    pub fn admit(self: &Rc<Self>, bytes: u64) -> Result<Admitted> {
        let (have_bytes, have_ops) = (self.bytes.get(), self.ops.get());
        if have_ops >= self.ops_max
            || (have_ops > 0 && have_bytes.saturating_add(bytes) > self.bytes_max)
        {
            return Err(Error::new(
                Status::Overloaded,
                format!(
                    "{have_ops} requests with {have_bytes} bytes are in work; retry after a pause"
                ),
            ));
        }
        self.bytes.set(have_bytes + bytes);
        self.ops.set(have_ops + 1);
        Ok(Admitted { admission: self.clone(), bytes })
    }
    /// Requests in work.
    pub fn ops(&self) -> u64 {
        self.ops.get()
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let a = &self.admission;
        a.bytes.set(a.bytes.get().saturating_sub(self.bytes));
        a.ops.set(a.ops.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_and_room_comes_back() {
        let a = Admission::new(100, 2);
        let first = a.admit(500).expect("one is always let in");
        assert_eq!(a.admit(1).err().map(|e| e.status), Some(Status::Overloaded));
        drop(first);
        let _one = a.admit(60).expect("room");
        assert!(a.admit(60).is_err(), "bytes");
        let _two = a.admit(40).expect("room");
        assert!(a.admit(0).is_err(), "requests");
        assert_eq!(a.ops(), 2);
    }
}
