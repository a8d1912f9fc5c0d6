//! A disk that hangs, as far as that can be made: reads of a FIFO that nobody writes to, and files that cannot be opened before a lease is
//! given back.

use super::*;
use crate::backend::{Dir, is_late};
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

/// What the kernel has is counted, and not what waits for its turn behind it.
#[test]
fn a_directory_tells_since_when_its_oldest_operation_has_been_under_way() {
    let config = Config { io: Io::Uring, ..Config::default() };
    let work = |rt: Rt| async move {
        let temp = tempfile::tempdir().expect("dir");
        let [hung, beside] = [0; 2].map(|_| rt.open_dir(temp.path()).expect("open"));
        let names = ["first", "second"].map(|name| temp.path().join(name));
        names.iter().for_each(|path| make_fifo(path));
        let first = hung.open("first", OpenOptions::default()).await.expect("open");
        let second = hung.open("second", OpenOptions::default()).await.expect("open");
        let feed = |path: &Path, bytes: usize| {
            let mut writer = std::fs::File::options().write(true).open(path).expect("open");
            writer.write_all(&vec![1; bytes]).expect("write");
        };
        let idle = async {
            // The thread that has opened them is done a moment after it has told so.
            while hung.under_way_since().is_some() {
                rt.sleep(Duration::from_millis(1)).await;
            }
        };
        rt.timeout(SOON, idle).await.expect("nothing is asked");

        let begun = rt.now();
        rt.sleep(Duration::from_millis(5)).await;
        let mut reads: Vec<_> =
            (0..uring::RING_OPS_OF_DIRECTORY_MAX).map(|_| first.read(rt.alloc(1), 0)).collect();
        let waits = second.read(rt.alloc(1), 0);
        rt.sleep(Duration::from_millis(20)).await;
        let since = hung.under_way_since().expect("they hang");
        assert!(begun < since && since < rt.now());
        assert_eq!(beside.under_way_since(), None, "the same directory, opened by itself");
        // Nobody waits for it any more, and the kernel has it all the same.
        drop(reads.remove(0));
        rt.sleep(Duration::from_millis(20)).await;
        assert_eq!(hung.under_way_since(), Some(since));

        let fed = rt.now();
        feed(&names[0], uring::RING_OPS_OF_DIRECTORY_MAX);
        let ended = rt.timeout(Duration::from_secs(20), join_all(reads)).await.expect("all end");
        assert!(ended.iter().all(|(n, _)| matches!(n, Ok(1))));
        let began = rt.timeout(SOON, async {
            while hung.under_way_since().is_none_or(|at| at == since) {
                rt.sleep(Duration::from_millis(1)).await;
            }
        });
        began.await.expect("the next one's turn comes");
        assert!(hung.under_way_since().expect("it hangs") >= fed, "it has waited until now");
        feed(&names[1], 1);
        assert!(matches!(rt.timeout(SOON, waits).await.expect("it ends").0, Ok(1)));
        assert_eq!(hung.under_way_since(), None);
    };
    run_with(config, work).expect("a runtime");
}

/// A read that waits for its turn until nobody wants it any more is not done, and its memory comes back.
#[test]
fn a_read_whose_time_is_over_when_its_turn_comes_is_not_done() {
    let config = Config { io: Io::Uring, ..Config::default() };
    let work = |rt: Rt| async move {
        let temp = tempfile::tempdir().expect("dir");
        let dir = rt.open_dir(temp.path()).expect("open");
        let names = ["first", "second"].map(|name| temp.path().join(name));
        names.iter().for_each(|path| make_fifo(path));
        let first = dir.open("first", OpenOptions::default()).await.expect("open");
        let second = dir.open("second", OpenOptions::default()).await.expect("open");
        let reads: Vec<_> =
            (0..uring::RING_OPS_OF_DIRECTORY_MAX).map(|_| first.read(rt.alloc(1), 0)).collect();
        let by = |ms| rt.now() + Duration::from_millis(ms);
        let late = second.read_by(rt.alloc(1), 0, by(30));
        let early = second.read_by(rt.alloc(1), 0, by(60_000));
        rt.sleep(Duration::from_millis(60)).await;
        let feed = |path: &Path, bytes: usize| {
            let mut writer = std::fs::File::options().write(true).open(path).expect("open");
            writer.write_all(&vec![1; bytes]).expect("write");
        };
        // The kernel has room for both then.
        feed(&names[0], uring::RING_OPS_OF_DIRECTORY_MAX);
        let (outcome, buf) = rt.timeout(SOON, late).await.expect("it does not wait for the disk");
        assert!(is_late(&outcome.expect_err("it is not done")));
        assert_eq!(buf.len(), 1);
        feed(&names[1], 1);
        assert!(matches!(rt.timeout(SOON, early).await.expect("it ends").0, Ok(1)));
        rt.timeout(SOON, join_all(reads)).await.expect("all end");
    };
    run_with(config, work).expect("a runtime");
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
        let before = rt.now();
        assert_eq!(hung.under_way_since(), None);
        let opens: Vec<_> = (0..100)
            .map(|_| {
                let hung = hung.clone();
                rt.spawn(async move { hung.open("leased", OpenOptions::default()).await })
            })
            .collect();
        rt.sleep(Duration::from_millis(50)).await;
        assert!(opens.iter().all(|o| !o.is_done()), "the lease holds them up");
        let since = hung.under_way_since().expect("some are being opened");
        assert!(before <= since && since < rt.now());
        is_healthy(&rt, &other).await;
        assert_eq!(hung.under_way_since(), Some(since), "the same one");
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
