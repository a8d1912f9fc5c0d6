//! Applications that mean harm to the mount, or know no better: bad numbers, memory that is not what it should be, wild indices.

use super::{EBADF, ioctl, next, noise, open, raw};
use crate::common::TestMount;
use glowfs_usrbio::control;
use glowfs_usrbio::{Connection, Kind, Ring, RingOptions, Submission};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

const EINVAL: i64 = 22;
const EFAULT: i64 = 14;

/// Makes the daemon look at the ring, whatever stands in it.
fn ring_bell(ring: &mut Ring) {
    let sleeps = ring.memory().as_ptr().wrapping_add(320).cast::<u32>();
    // SAFETY: inside the mapping.
    unsafe { sleeps.write_volatile(1) };
    let _ = ring.submit();
}

/// A sealed memfd of this length, with nothing in it yet.
fn sealed(len: u64, huge: bool) -> std::os::fd::OwnedFd {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let kind = if huge { MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB } else { MemfdFlags::empty() };
    let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING | kind).unwrap();
    ftruncate(&fd, len).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    fd
}

/// A page that does not come as long as this lives (userfaultfd(2)).
struct MissingPage {
    page: usize,
    _faults: std::os::fd::OwnedFd,
}

impl MissingPage {
    fn new() -> Option<Self> {
        use std::os::fd::FromRawFd;
        const API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
        const REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
        // SAFETY: makes a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } as i32;
        if fd < 0 {
            eprintln!("SKIPPED: no userfaultfd: {}", io::Error::last_os_error());
            return None;
        }
        // SAFETY: new, and nobody else's.
        let faults = unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) };
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place of the kernel's choice; it stays.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, prot, flags, -1, 0) } as usize;
        let (mut api, mut register) = ([0xaa_u64, 0, 0], [page as u64, 4096, 1, 0]);
        // SAFETY: records of the sizes that stand in the commands.
        let done = unsafe {
            libc::ioctl(fd, API, api.as_mut_ptr()) == 0
                && libc::ioctl(fd, REGISTER, register.as_mut_ptr()) == 0
        };
        assert!(done, "{}", io::Error::last_os_error());
        Some(Self { page, _faults: faults })
    }
}

/// An application writes to its own memory, from a page that does not come: for so long it has the lock of the memory's inode.
#[test]
fn who_locks_his_memory_keeps_nobody_waiting() {
    let Some(m) = TestMount::new(60) else { return };
    let Some(missing) = MissingPage::new() else { return };
    let c = Connection::open(m.path()).unwrap();
    let file = open(&m, "f");
    file.write_all_at(&noise(1 << 20, 5), 0).unwrap();
    let f = c.register(&file).unwrap();
    let buffer = c.buffer(1 << 20).unwrap();
    let mut ring = c.ring(RingOptions::new(Kind::Read, 8)).unwrap();
    let (memory, page) = (buffer.memory().as_fd().as_raw_fd(), missing.page);
    let writer = std::thread::spawn(move || {
        // SAFETY: the page is mapped, and stays.
        unsafe { libc::pwrite(memory, page as *const libc::c_void, 4096, 4096) }
    });
    std::thread::sleep(Duration::from_millis(200));
    assert!(!writer.is_finished(), "it waits for its page");
    for (user, at, len) in [(1, 0, 4096), (2, 4096, 4096), (3, 0, 1 << 20)] {
        ring.prepare(&f, 0, &buffer, at, len, user).unwrap();
        assert_eq!(next(&mut ring), (user, len as i64));
    }
    assert!(buffer.copy_out(0, 1 << 20) == noise(1 << 20, 5));
    assert_eq!(std::fs::metadata(m.join("f")).unwrap().size(), 1 << 20, "the mount lives");
    assert!(!writer.is_finished(), "it still waits");
    drop(missing);
    assert_eq!(writer.join().unwrap(), 4096);
}

/// As from another PID namespace: the numbers that the daemon knows lead to other memory there.
#[test]
fn other_memory_is_not_taken_for_the_named_one() {
    let Some(m) = TestMount::new(60) else { return };
    let dir = File::open(m.path()).unwrap();
    ioctl(&dir, &mut control::Open { version: 1, ..Default::default() }).unwrap();
    let mut named = sealed(8192, false);
    rustix::fs::fallocate(&named, rustix::fs::FallocateFlags::empty(), 0, 8192).unwrap();
    let mut q = control::AddBuffer { fd: named.as_raw_fd(), buffer: 0, len: 8192 };
    ioctl(&dir, &mut q).unwrap();
    let name = *b"fedcba9876543210";
    ioctl(&dir, &mut control::NameBuffer { name, buffer: q.buffer, reserved: 0 }).unwrap();
    let c = Connection::open(m.path()).unwrap();
    assert_eq!(c.find(name).unwrap().len(), 8192);
    // As older applications ask.
    let mut older = control::FindBuffer { name, ..Default::default() };
    ioctl(&dir, &mut older).unwrap();
    let here = (std::process::id(), named.as_raw_fd(), 8192);
    assert_eq!((older.process, older.fd, older.len), here);
    let device = File::options().read(true).write(true).open("/dev/null").unwrap();
    for other in [sealed(16384, false), device.into()] {
        rustix::io::dup2(&other, &mut named).unwrap();
        let found = c.find(name).map(|b| b.len()).unwrap_err();
        assert_eq!(found.kind(), io::ErrorKind::NotFound, "{found}");
        assert!(found.to_string().contains("PID namespace"), "{found}");
    }
}

#[test]
fn a_hostile_application_hurts_only_itself() {
    let Some(m) = TestMount::new(90) else { return };
    let c = Connection::open(m.path()).unwrap();
    let file = open(&m, "f");
    file.write_all_at(&noise(8192, 5), 0).unwrap();
    let f = c.register(&file).unwrap();
    let buffer = c.buffer(8192).unwrap();
    let mut ring = c.ring(RingOptions::new(Kind::Read, 8)).unwrap();
    ring.prepare(&f, 0, &buffer, 0, 16, 0).unwrap();
    assert_eq!(next(&mut ring).1, 16);
    // Numbers go up by one: what comes first belongs to this session.
    let (file_number, buffer_number) = (1, 2);
    let good = Submission {
        kind: 1,
        file: file_number,
        buffer: buffer_number,
        len: 16,
        ..Default::default()
    };
    assert_eq!(raw(&mut ring, good), 16);
    let cases = [
        (Submission { kind: 2, ..good }, -EINVAL),
        (Submission { kind: 99, ..good }, -EINVAL),
        (Submission { flags: 1 << 31, ..good }, -EINVAL),
        (Submission { reserved: [1, 0], ..good }, -EINVAL),
        (Submission { file: 12345, ..good }, -EBADF),
        (Submission { buffer: 12345, ..good }, -EBADF),
        (Submission { buffer_offset: 8192, ..good }, -EFAULT),
        (Submission { buffer_offset: u64::MAX, ..good }, -EFAULT),
        (Submission { len: 8193, ..good }, -EFAULT),
        (Submission { len: u64::MAX, ..good }, -EINVAL),
        (Submission { file_offset: u64::MAX - 3, ..good }, -EINVAL),
        (Submission { file_offset: i64::MAX as u64, ..good }, -EINVAL),
        (Submission { len: 0, ..good }, 0),
    ];
    for (s, want) in cases {
        assert_eq!(raw(&mut ring, s), want, "{s:?}");
    }

    // Descriptors that are something else; of this very mount, too, where every question about them would wait for the daemon.
    let dir = File::open(m.path()).unwrap();
    let mut q = control::Open { version: 1, ..Default::default() };
    ioctl(&dir, &mut q).unwrap();
    assert_eq!(
        ioctl(&dir, &mut q).unwrap_err().raw_os_error(),
        Some(16),
        "one session a directory"
    );
    let mut old = control::Open { version: 99, ..Default::default() };
    assert_eq!(
        ioctl(&File::open(m.path()).unwrap(), &mut old).unwrap_err().raw_os_error(),
        Some(95)
    );
    for fd in [file.as_raw_fd(), dir.as_raw_fd(), 0, -1, 1_000_000] {
        let mut b = control::AddBuffer { fd, buffer: 0, len: 4096 };
        assert!(ioctl(&dir, &mut b).is_err(), "memory {fd}");
        let mut r = control::AddRing {
            memory: fd,
            doorbell: fd,
            entries: 8,
            kind: 1,
            ..Default::default()
        };
        assert!(ioctl(&dir, &mut r).is_err(), "ring {fd}");
    }
    for entries in [0, 3, u32::MAX, 1 << 17] {
        let memory = ring.memory().as_fd().as_raw_fd();
        let mut r =
            control::AddRing { memory, doorbell: memory, entries, kind: 1, ..Default::default() };
        assert!(ioctl(&dir, &mut r).is_err(), "{entries} entries");
    }
    // More than the memory has, and none.
    for len in [0, 1 << 30, u64::MAX] {
        let fd = buffer.memory().as_fd().as_raw_fd();
        let mut b = control::AddBuffer { fd, buffer: 0, len };
        assert!(ioctl(&dir, &mut b).is_err(), "{len} bytes");
    }
    // An unknown command, and one with another size.
    // SAFETY: the commands carry no argument that is read or written.
    let r = unsafe { libc::ioctl(dir.as_raw_fd(), 0x4799 as libc::Ioctl, 0) };
    assert!(r < 0);

    // Wild indices: this ring is over, another one of the same process goes on.
    let mut other = c.ring(RingOptions::new(Kind::Read, 8)).unwrap();
    let tail = ring.memory().as_ptr().wrapping_add(64).cast::<u32>();
    // SAFETY: inside the mapping.
    unsafe { tail.write_volatile(0x7fff_0000) };
    // The daemon looks when it is woken.
    let mut woken = false;
    for _ in 0..100 {
        if ring.submit().is_err()
            || ring.wait(Some(Instant::now() + Duration::from_millis(50))).is_err()
        {
            woken = true;
            break;
        }
        ring_bell(&mut ring);
    }
    assert!(woken, "the application is told");
    other.prepare(&f, 0, &buffer, 0, 16, 0).unwrap();
    assert_eq!(next(&mut other).1, 16);
    assert_eq!(std::fs::metadata(m.join("f")).unwrap().size(), 8192, "the mount lives");
}

/// The daemon waits for more of them, and then there is none at all.
#[test]
fn submissions_that_are_taken_back_keep_nobody_waiting() {
    let Some(m) = TestMount::new(60) else { return };
    let c = Connection::open(m.path()).unwrap();
    let file = open(&m, "f");
    file.write_all_at(&noise(4096, 3), 0).unwrap();
    let f = c.register(&file).unwrap();
    let buffer = c.buffer(4096).unwrap();
    let options = RingOptions { io_depth: 2, timeout_ms: 200, ..RingOptions::new(Kind::Read, 8) };
    let mut ring = c.ring(options).unwrap();
    ring.prepare(&f, 0, &buffer, 0, 16, 1).unwrap();
    ring.submit().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let tail = ring.memory().as_ptr().wrapping_add(64).cast::<u32>();
    // SAFETY: inside the mapping.
    unsafe { tail.write_volatile(0) };
    std::thread::sleep(Duration::from_millis(500));
    let path = m.join("f");
    let (told, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || told.send(File::create(path.with_file_name("g")).is_ok()));
    assert!(heard.recv_timeout(Duration::from_secs(5)).expect("the mount lives"));
}

/// A semaphore gives one of its count to each reading.
#[test]
fn a_doorbell_that_never_falls_silent_keeps_nobody_busy() {
    let Some(m) = TestMount::new(60) else { return };
    let c = Connection::open(m.path()).unwrap();
    let ring = c.ring(RingOptions::new(Kind::Read, 8)).unwrap();
    let dir = File::open(m.path()).unwrap();
    let mut q = control::Open { version: 1, ..Default::default() };
    ioctl(&dir, &mut q).unwrap();
    let bell = rustix::event::eventfd(u32::MAX, rustix::event::EventfdFlags::SEMAPHORE).unwrap();
    let (memory, doorbell) = (ring.memory().as_fd().as_raw_fd(), bell.as_raw_fd());
    let mut r = control::AddRing { memory, doorbell, entries: 8, kind: 1, ..Default::default() };
    ioctl(&dir, &mut r).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{doorbell}")).unwrap();
    let count = info.lines().find_map(|l| l.strip_prefix("eventfd-count:")).unwrap();
    let left = u64::from_str_radix(count.trim(), 16).unwrap();
    let taken = u64::from(u32::MAX) - left;
    assert!((1..2000).contains(&taken), "listened to {taken} times");
}

#[test]
fn memory_that_could_vanish_or_is_too_much_is_refused() {
    let Some(m) = TestMount::new(60) else { return };
    let file = open(&m, "f");
    file.write_all_at(&noise(4096, 5), 0).unwrap();
    let dir = File::open(m.path()).unwrap();
    let mut q = control::Open { version: 1, ..Default::default() };
    ioctl(&dir, &mut q).unwrap();
    let add = |fd: &dyn AsRawFd, len| {
        let mut q = control::AddBuffer { fd: fd.as_raw_fd(), buffer: 0, len };
        ioctl(&dir, &mut q).map(|()| q.buffer).map_err(|e| e.raw_os_error())
    };
    // It could be shrunk under the daemon, which would end with SIGBUS; so could what has huge pages, of which there may be none.
    let loose = rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&loose, 1 << 20).unwrap();
    assert_eq!(add(&loose, 1 << 20), Err(Some(EINVAL as i32)));
    let huge = sealed(4 << 20, true);
    assert_eq!(add(&huge, 4 << 20), Err(Some(EINVAL as i32)));
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    for memory in [&loose, &huge] {
        let (memory, doorbell) = (memory.as_raw_fd(), bell.as_raw_fd());
        let mut r =
            control::AddRing { memory, doorbell, entries: 8, kind: 1, ..Default::default() };
        assert_eq!(ioctl(&dir, &mut r).unwrap_err().raw_os_error(), Some(EINVAL as i32));
    }
    // The daemon would have to make its pages.
    let sparse = sealed(1 << 40, false);
    assert_eq!(add(&sparse, 1 << 40), Err(Some(EINVAL as i32)));
    let (memory, doorbell) = (sparse.as_raw_fd(), bell.as_raw_fd());
    let mut r = control::AddRing { memory, doorbell, entries: 8, kind: 1, ..Default::default() };
    assert_eq!(ioctl(&dir, &mut r).unwrap_err().raw_os_error(), Some(EINVAL as i32));
    Connection::open(m.path()).unwrap().buffer(1 << 20).unwrap();
    assert_eq!(std::fs::read(m.join("f")).unwrap().len(), 4096, "the mount lives");
}

/// An application gives the pages of its buffer back, and has the daemon make them anew, as many as the machine has.
#[test]
fn the_daemon_makes_no_pages_of_a_buffer() {
    const LEN: usize = 8 << 20;
    let Some(m) = TestMount::new(60) else { return };
    let c = Connection::open(m.path()).unwrap();
    let file = open(&m, "f");
    file.write_all_at(&noise(LEN, 5), 0).unwrap();
    let f = c.register(&file).unwrap();
    let mut ring = c.ring(RingOptions::new(Kind::Read, 64)).unwrap();
    let buffer = c.buffer(LEN).unwrap();
    ring.prepare(&f, 0, &buffer, 0, LEN, 1).unwrap();
    assert_eq!(next(&mut ring), (1, LEN as i64));
    let memory = buffer.memory().as_fd();
    let (punch, keep) = (libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_KEEP_SIZE);
    // SAFETY: nothing in this process reads the memory any more.
    unsafe { libc::fallocate(memory.as_raw_fd(), punch | keep, 0, LEN as i64) };
    for (user, at) in [(2, 0), (3, 1 << 20), (4, LEN - 4096)] {
        ring.prepare(&f, 0, &buffer, at, 4096, user).unwrap();
        assert_eq!(next(&mut ring), (user, -EFAULT));
    }
    assert_eq!(rustix::fs::fstat(memory).unwrap().st_blocks, 0, "no page was made");
}

#[test]
fn a_buffer_that_is_taken_away_in_the_middle() {
    let Some(m) = TestMount::new(90) else { return };
    let c = Connection::open(m.path()).unwrap();
    let file = open(&m, "f");
    file.write_all_at(&noise(8 << 20, 5), 0).unwrap();
    let f = c.register(&file).unwrap();
    let few = RingOptions { io_depth: -4, ..RingOptions::new(Kind::Read, 64) };
    let mut ring = c.ring(few).unwrap();
    let mut in_the_middle = 0;
    for round in 0..20 {
        let buffer = c.buffer(8 << 20).unwrap();
        for i in 0..64 {
            ring.prepare(&f, 0, &buffer, 0, 8 << 20, i).unwrap();
        }
        ring.submit().unwrap();
        // Its pages go, then the daemon's name of it and the mapping here, at another moment each time.
        std::thread::sleep(Duration::from_micros(round * 300));
        let memory = buffer.memory().as_fd();
        let (punch, keep) = (libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_KEEP_SIZE);
        // SAFETY: nothing in this process reads the memory any more.
        unsafe { libc::fallocate(memory.as_raw_fd(), punch | keep, 0, 8 << 20) };
        let done: Vec<_> = std::iter::from_fn(|| ring.take()).collect();
        in_the_middle += u32::from(done.len() < 64);
        drop(buffer);
        let mut seen = [false; 64];
        let mut check = |user: u64, result| {
            assert!(!std::mem::replace(&mut seen[user as usize], true), "answered twice");
            assert!([8 << 20, -EBADF, -EFAULT].contains(&result), "{result}");
        };
        done.iter().for_each(|c| check(c.user, c.result));
        for _ in done.len()..64 {
            let (user, result) = next(&mut ring);
            check(user, result);
        }
    }
    assert!(in_the_middle > 0, "all was done before");
    let buffer = c.buffer(4096).unwrap();
    ring.prepare(&f, 0, &buffer, 0, 4096, 1).unwrap();
    assert_eq!(next(&mut ring), (1, 4096));
}

#[test]
fn wrong_paths_and_descriptors_of_others() {
    let (Some(m), Some(n)) = (TestMount::new(60), TestMount::new(60)) else { return };
    let kind = |path: &std::path::Path| Connection::open(path).err().map(|e| e.kind());
    assert_eq!(kind(&m.join("nothing/here")), Some(io::ErrorKind::NotFound));
    for elsewhere in ["/proc", "/dev/null", "/"] {
        let e = Connection::open(elsewhere.as_ref()).err().unwrap().to_string();
        assert!(e.contains(elsewhere) && e.contains("not on a GlowFS mount"), "{e}");
    }
    let (mine, theirs) = (open(&m, "f"), open(&n, "f"));
    mine.write_all_at(b"mine", 0).unwrap();
    // A path may be of anything on the mount, a file too.
    let c = Connection::open(&m.join("f")).unwrap();
    let error = |fd: &dyn AsFd| c.register(fd.as_fd()).err().and_then(|e| e.raw_os_error());
    assert_eq!(error(&theirs), Some(13), "another mount's");
    assert_eq!(error(&File::open(m.path()).unwrap()), Some(25), "a directory");
    assert_eq!(error(&File::open("/proc/self/exe").unwrap()), Some(25), "no FUSE at all");
    assert_eq!(error(&io::pipe().unwrap().0), Some(25), "a pipe");
    // And the right one still works.
    let f = c.register(&mine).unwrap();
    let buffer = c.buffer(4096).unwrap();
    let mut ring = c.ring(RingOptions::new(Kind::Read, 8)).unwrap();
    ring.prepare(&f, 0, &buffer, 0, 4, 0).unwrap();
    assert_eq!(next(&mut ring).1, 4);
}
