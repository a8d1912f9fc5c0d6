//! A disk that hangs, as far as that can be made: reads of a FIFO that nobody writes to, and files that cannot be opened before a lease is
//! given back.

use super::*;
use crate::backend::Dir;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

/// More than the kernel, or all helper threads, have of one directory at once.
const HANGING: usize = 1100;
/// What a healthy directory may take.
const SOON: Duration = Duration::from_secs(1);
const CREATE: OpenOptions = OpenOptions { create: true, direct: false };

/// All that a store asks of its directory.
async fn is_healthy(rt: &Rt, dir: &Dir) {
    let work = async {
        let file = dir.open("plain", CREATE).await.expect("open");
        // Longer than what is done on the loop.
        let mut block = rt.alloc(128 << 10);
        block.fill(7);
        file.write(vec![block.freeze()], 0).await.expect("write");
        file.sync().await.expect("sync");
        let (n, got) = file.read(rt.alloc(4096), 0).await;
        assert!(matches!(n, Ok(4096)) && got[..] == [7; 4096]);
        file.set_len(4096).await.expect("cut");
        assert_eq!(dir.list().await.expect("list"), ["plain"]);
        dir.sync().await.expect("sync");
    };
    rt.timeout(SOON, work).await.expect("it does not wait for the other directory");
}

fn make_fifo(path: &Path) {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: a path that ends with a zero.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

#[test]
fn operations_that_hang_hold_up_no_other_directory() {
    for commands in [false, true] {
        let config = Config { io: Io::Uring, commands, ..Config::default() };
        let work = |rt: Rt| async move {
            let temp = tempfile::tempdir().expect("dir");
            let hung = rt.open_dir(&temp.path().join("hung")).expect("open");
            let other = rt.open_dir(&temp.path().join("other")).expect("open");
            make_fifo(&temp.path().join("hung/fifo"));
            let fifo = hung.open("fifo", OpenOptions::default()).await.expect("open");
            let reads: Vec<_> = (0..HANGING).map(|_| fifo.read(rt.alloc(1), 0)).collect();
            rt.sleep(Duration::from_millis(20)).await;
            is_healthy(&rt, &other).await;
            // A directory that is closed meanwhile leaves its share when the last one ends; a new one has its own.
            drop((fifo, hung));
            let new = rt.open_dir(&temp.path().join("new")).expect("open");
            is_healthy(&rt, &new).await;
            is_healthy(&rt, &other).await;
            let mut writer = std::fs::File::options()
                .write(true)
                .open(temp.path().join("hung/fifo"))
                .expect("open");
            writer.write_all(&[1; HANGING]).expect("write");
            let reads =
                rt.timeout(Duration::from_secs(20), join_all(reads)).await.expect("all end");
            assert!(reads.iter().all(|(n, _)| matches!(n, Ok(1))));
        };
        run_with(config, work).expect("a runtime");
    }
}

/// fcntl: which signal tells of whoever waits (include/uapi/asm-generic/fcntl.h).
const F_SETSIG: libc::c_int = 10;

/// Whoever opens the file waits until the lease is given back.
struct Lease(std::fs::File);

impl Lease {
    fn take(path: &Path) -> Self {
        let file = std::fs::File::create(path).expect("create");
        let fd = file.as_raw_fd();
        // SAFETY: plain calls on an open descriptor. The kernel tells of whoever waits by a signal that is ignored as it comes.
        let taken = unsafe {
            libc::fcntl(fd, F_SETSIG, libc::SIGURG);
            libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK)
        };
        assert_eq!(taken, 0, "a lease: {}", io::Error::last_os_error());
        Self(file)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
}

#[test]
fn helper_threads_that_hang_hold_up_no_other_directory() {
    on_each(|rt| async move {
        let temp = tempfile::tempdir().expect("dir");
        let hung = rt.open_dir(&temp.path().join("hung")).expect("open");
        let other = rt.open_dir(&temp.path().join("other")).expect("open");
        let lease = Lease::take(&temp.path().join("hung/leased"));
        let opens: Vec<_> = (0..100)
            .map(|_| {
                let hung = hung.clone();
                rt.spawn(async move { hung.open("leased", OpenOptions::default()).await })
            })
            .collect();
        rt.sleep(Duration::from_millis(50)).await;
        assert!(opens.iter().all(|o| !o.is_done()), "the lease holds them up");
        is_healthy(&rt, &other).await;
        let nobodys = rt.timeout(SOON, rt.unblock(|| 1)).await;
        assert_eq!(nobodys, Ok(1), "names are looked up");
        drop((hung, lease));
        let opens = rt.timeout(Duration::from_secs(20), join_all(opens)).await.expect("all end");
        assert!(opens.iter().all(Result::is_ok));
    });
}

#[test]
fn a_runtime_ends_though_operations_hang() {
    let temp = tempfile::tempdir().expect("dir");
    let path = temp.path().to_owned();
    make_fifo(&path.join("fifo"));
    let began = Instant::now();
    let config = Config { io: Io::Uring, ..Config::default() };
    let work = |rt: Rt| async move {
        let dir = rt.open_dir(&path).expect("open");
        let fifo = dir.open("fifo", OpenOptions::default()).await.expect("open");
        (0..HANGING).for_each(|_| drop(fifo.read(rt.alloc(4096), 0)));
        rt.sleep(Duration::from_millis(20)).await;
    };
    // On a thread of its own, so that this one can tell.
    let (tell, told) = std::sync::mpsc::channel::<()>();
    spawn_thread("hangs", config, move |rt| async move {
        work(rt).await;
        tell
    })
    .map(|thread| drop(std::thread::spawn(move || drop(thread.join()))))
    .expect("a thread");
    let ended = told.recv_timeout(Duration::from_secs(20));
    assert_eq!(ended, Err(std::sync::mpsc::RecvTimeoutError::Disconnected), "it ended");
    assert!(began.elapsed() >= driver::DRAIN_PATIENCE);
}

/// Operations that cannot be begun without blocking take a thread of the kernel each.
#[test]
fn the_kernel_may_have_a_thread_for_all_that_hangs() {
    let bell = Bell::new().expect("a bell");
    let offload = offload::Offload::new(helpers::Helpers::new(1), bell.clone());
    let ring = Rc::new(uring::Uring::<Entry>::new(bell, offload).expect("a ring"));
    let driver: Rc<dyn Driver> = ring.clone();
    let shares: Vec<_> = (0..3).map(|_| driver::Share::new(&driver)).collect();
    assert_eq!(ring.workers_max().expect("asked"), 4 * uring::RING_OPS_OF_DIRECTORY_MAX as u32);
    drop(shares);
}
