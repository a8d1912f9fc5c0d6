//! The portable way of waiting: epoll for sockets, helper threads for files.

use super::driver::{self, Direction, Driver, Owner, SourceKey};
use super::helpers::Helpers;
use super::notify::Bell;
use super::offload::Offload;
use super::ops::OpTable;
use rustix::event::{Timespec, epoll};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::task::Waker;
use std::time::Duration;

/// Events fetched in one go.
const EVENTS_MAX: usize = 256;
/// The key of the doorbell.
const BELL: u64 = 0;

pub(crate) struct Epoll {
    fd: OwnedFd,
    bell: Bell,
    sources: RefCell<Sources>,
    ops: OpTable,
    offload: Offload,
    events: RefCell<Vec<epoll::Event>>,
}

#[derive(Default)]
struct Sources {
    last: u64,
    all: BTreeMap<u64, Entry>,
}

struct Entry {
    fd: RawFd,
    registered: bool,
    wakers: [Option<Waker>; 2],
    events: [bool; 2],
}

impl Epoll {
    pub(crate) fn new(bell: Bell, offload: Offload) -> io::Result<Self> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&fd, bell.fd(), epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Self {
            fd,
            bell,
            sources: RefCell::default(),
            ops: OpTable::default(),
            offload,
            events: RefCell::new(Vec::with_capacity(EVENTS_MAX)),
        })
    }

    fn wake(&self, key: u64, flags: epoll::EventFlags) {
        let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        let wanted = [
            broken || flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP),
            broken || flags.contains(epoll::EventFlags::OUT),
        ];
        for (direction, _) in wanted.iter().enumerate().filter(|(_, w)| **w) {
            let waker = {
                let mut sources = self.sources.borrow_mut();
                let Some(entry) = sources.all.get_mut(&key) else { return };
                entry.events[direction] = true;
                entry.wakers[direction].take()
            };
            if let Some(w) = waker {
                w.wake();
            }
        }
    }
}

impl Driver for Epoll {
    fn name(&self) -> &'static str {
        "epoll"
    }

    fn add_source(&self, fd: RawFd) -> SourceKey {
        let mut sources = self.sources.borrow_mut();
        sources.last += 1;
        let key = sources.last;
        let entry = Entry { fd, registered: false, wakers: [None, None], events: [false; 2] };
        sources.all.insert(key, entry);
        SourceKey(key)
    }

    fn arm(&self, key: SourceKey, direction: Direction, waker: &Waker) -> io::Result<()> {
        let mut sources = self.sources.borrow_mut();
        let Some(entry) = sources.all.get_mut(&key.0) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        match &mut entry.wakers[direction as usize] {
            Some(old) => old.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        if !entry.registered {
            use epoll::EventFlags as F;
            // SAFETY: the owner of the source keeps the descriptor open until `remove_source`.
            let fd = unsafe { BorrowedFd::borrow_raw(entry.fd) };
            // Edge-triggered, once for the source's life: an edge after "would block" is never missed.
            let flags = F::IN | F::OUT | F::RDHUP | F::ET;
            epoll::add(&self.fd, fd, epoll::EventData::new_u64(key.0), flags)?;
            entry.registered = true;
        }
        Ok(())
    }

    fn take_event(&self, key: SourceKey, direction: Direction) -> bool {
        let mut sources = self.sources.borrow_mut();
        let entry = sources.all.get_mut(&key.0);
        entry.is_some_and(|e| std::mem::take(&mut e.events[direction as usize]))
    }

    fn remove_source(&self, key: SourceKey) {
        let Some(entry) = self.sources.borrow_mut().all.remove(&key.0) else { return };
        if entry.registered {
            // SAFETY: as in `arm`.
            let fd = unsafe { BorrowedFd::borrow_raw(entry.fd) };
            let _ = epoll::delete(&self.fd, fd);
        }
    }

    fn add_owner(&self) -> Owner {
        Owner { jobs: self.helpers().add_owner(), ..Owner::NOBODY }
    }

    fn remove_owner(&self, owner: Owner) {
        self.helpers().remove_owner(owner.jobs);
    }

    fn helpers(&self) -> &Helpers {
        self.offload.helpers()
    }

    fn ops(&self) -> &OpTable {
        &self.ops
    }

    fn start(&self, key: usize) {
        self.offload.start(&self.ops, key);
    }

    fn turn(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = if self.offload.has_results() { Some(Duration::ZERO) } else { timeout };
        let spec = timeout.map(|d| Timespec {
            tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: d.subsec_nanos().into(),
        });
        let mut events = std::mem::take(&mut *self.events.borrow_mut());
        events.clear();
        match epoll::wait(&self.fd, rustix::buffer::spare_capacity(&mut events), spec.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        for event in &events {
            match event.data.u64() {
                BELL => self.bell.drain(),
                key => self.wake(key, event.flags),
            }
        }
        *self.events.borrow_mut() = events;
        self.offload.collect(&self.ops);
        Ok(())
    }

    fn drain(&self) {
        driver::drain(self, || self.bell.about_to_sleep());
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        // Files may outlive the runtime and begin operations; their memory must not be freed under them.
        self.drain();
    }
}
