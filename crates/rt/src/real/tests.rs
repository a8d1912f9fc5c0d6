//! The same tests over every way of waiting.

use super::*;
use crate::backend::OpenOptions;
use crate::sync::{Either, channel, join_all, select};
use std::future::poll_fn;
use std::io::{IoSlice, IoSliceMut, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

mod here;
mod hung;

fn on_each<F: Future<Output = ()> + 'static>(test: impl Fn(Rt) -> F) {
    for (io, commands) in [(Io::Uring, false), (Io::Uring, true), (Io::Epoll, false)] {
        run_with(Config { io, commands, ..Config::default() }, &test).expect("a runtime");
    }
}

async fn write_all(s: &Stream, mut bytes: &[u8], mut fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    while !bytes.is_empty() {
        let n = poll_fn(|cx| s.poll_write(cx, &[IoSlice::new(bytes)], fds)).await?;
        bytes = &bytes[n..];
        fds = &[];
    }
    Ok(())
}

async fn read_exact(s: &Stream, out: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < out.len() {
        let n = poll_fn(|cx| s.poll_read(cx, &mut [IoSliceMut::new(&mut out[done..])])).await?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        done += n;
    }
    Ok(())
}

async fn accept(l: &Listener) -> Stream {
    poll_fn(|cx| l.poll_accept(cx)).await.expect("accept")
}

/// What posts were told.
#[derive(Default)]
struct Told(RefCell<Vec<(u64, Result<usize, i32>)>>);
impl crate::backend::Posted for Told {
    fn posted(&self, tag: u64, outcome: io::Result<usize>) {
        let outcome = outcome.map_err(|e| e.raw_os_error().unwrap_or(0));
        self.0.borrow_mut().push((tag, outcome));
    }
}

#[test]
fn a_message_is_written_whole_and_told_or_given_back() {
    use crate::backend::Post;
    use rustix::pipe::{PipeFlags, pipe_with};
    on_each(|rt| async move {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).expect("pipe");
        let (told, writer) = (Rc::new(Told::default()), Arc::new(writer));
        let post = |tag: u64| {
            let mut payload = rt.alloc(5);
            payload.fill(tag as u8);
            let (fd, tell, payload) = (writer.clone(), told.clone(), payload.freeze());
            rt.post(Post { fd, head: [tag as u8 + 100; 16], payload, tell, tag })
        };
        if post(1).is_err() {
            return; // This way of waiting has no queue.
        }
        for tag in 2..=100 {
            assert!(post(tag).is_ok());
        }
        while told.0.borrow().len() < 100 {
            rt.sleep(Duration::from_millis(1)).await;
        }
        let mut all = vec![0; 5000];
        assert_eq!(rustix::io::read(&reader, &mut all).expect("read"), 2100);
        for (tag, message) in (1..).zip(all[..2100].chunks(21)) {
            assert_eq!(message, [vec![tag + 100; 16], vec![tag; 5]].concat());
        }
        assert!(told.0.take().into_iter().zip(1..).all(|(told, tag)| told == (tag, Ok(21))));
        drop(reader);
        assert!(post(7).is_ok());
        rt.sleep(Duration::from_millis(5)).await;
        assert_eq!(told.0.take(), [(7, Err(libc::EPIPE))]);
    });
}

async fn echo(rt: Rt, address: Address, bytes: usize) {
    let listener = rt.listen(&address).expect("listen");
    let to = listener.local();
    let server = rt.spawn(async move {
        let s = accept(&listener).await;
        let mut all = vec![0; bytes];
        read_exact(&s, &mut all).await.expect("server reads");
        write_all(&s, &all, &[]).await.expect("server writes");
        s
    });
    let s = rt.connect(&to).await.expect("connect");
    let data: Vec<u8> = (0..bytes).map(|i| (i * 7) as u8).collect();
    write_all(&s, &data, &[]).await.expect("write");
    let mut back = vec![0; bytes];
    read_exact(&s, &mut back).await.expect("read");
    assert!(back == data);
    drop(server.await);
    // The other end is gone.
    assert!(read_exact(&s, &mut [0]).await.is_err());
}

#[test]
fn streams_carry_bytes() {
    on_each(|rt| async move {
        let dir = tempfile::tempdir().expect("dir");
        for bytes in [1, 5000, 3 << 20] {
            echo(rt.clone(), "127.0.0.1:0".parse().expect("address"), bytes).await;
            echo(rt.clone(), Address::Unix(dir.path().join("s")), bytes).await;
            let long = dir.path().join("x".repeat(100)).join("y".repeat(50));
            std::fs::create_dir_all(long.parent().expect("parent")).expect("mkdir");
            echo(rt.clone(), Address::Unix(long), bytes).await;
        }
    });
}

#[test]
fn refused_connections_say_so() {
    on_each(|rt| async move {
        let free = rt.listen(&"127.0.0.1:0".parse().expect("address")).expect("listen").local();
        let e = rt.connect(&free).await.err().expect("nobody listens");
        assert_eq!(e.kind(), io::ErrorKind::ConnectionRefused);
        let e = rt.connect(&Address::Unix("/nonexistent/x".into())).await.err().expect("no file");
        assert_eq!(e.kind(), io::ErrorKind::NotFound);
    });
}

/// The child of the test below: listens until it is killed.
const LISTEN: &str = "GLOWFS_RT_TEST_LISTEN";

#[test]
fn a_killed_process_leaves_its_address_free() {
    use std::io::BufRead;
    if let Ok(io) = std::env::var(LISTEN) {
        let io = if io == "uring" { Io::Uring } else { Io::Epoll };
        return run_with(Config { io, ..Config::default() }, |rt| async move {
            let l = rt.listen(&"127.0.0.1:0".parse().expect("address")).expect("listen");
            println!("\n{}", l.local());
            loop {
                accept(&l).await;
            }
        })
        .expect("a runtime");
    }
    let name = "real::tests::a_killed_process_leaves_its_address_free";
    for io in ["uring", "epoll"].repeat(5) {
        let mut child = std::process::Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", name, "--nocapture"])
            .env(LISTEN, io)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("child");
        let said = io::BufReader::new(child.stdout.take().expect("piped")).lines();
        let said = said.map(|l| l.expect("a line"));
        let at = said.filter_map(|l| Some(l.strip_prefix("tcp://")?.to_owned())).next();
        let at = at.expect("an address");
        // So that it waits for a connection (too early, and the test shows nothing).
        std::thread::sleep(Duration::from_millis(30));
        child.kill().expect("kill");
        child.wait().expect("gone");
        if let Err(e) = std::net::TcpListener::bind(&at) {
            panic!("{io}: the address {at} of a killed process is not free: {e}");
        }
    }
}

#[test]
fn a_stale_unix_socket_is_replaced_and_a_live_one_is_not() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    on_each(|rt| async move {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("s");
        let address = Address::Unix(path.clone());
        drop(std::os::unix::net::UnixListener::bind(&path).expect("a stale one"));
        let first = rt.listen(&address).expect("replaces the stale one");
        let meta = std::fs::metadata(&path).expect("it is there");
        assert!(meta.file_type().is_socket());
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        assert_eq!(rt.listen(&address).err().expect("in use").kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists());
        std::fs::write(&path, "precious").expect("a plain file");
        assert!(rt.listen(&address).is_err());
        assert!(path.exists());
    });
}

#[test]
fn file_descriptors_pass_over_unix_sockets() {
    on_each(|rt| async move {
        let dir = tempfile::tempdir().expect("dir");
        let address = Address::Unix(dir.path().join("s"));
        let listener = rt.listen(&address).expect("listen");
        let a = rt.connect(&address).await.expect("connect");
        let b = accept(&listener).await;
        let mut file = tempfile::tempfile().expect("file");
        file.write_all(b"through").expect("write");
        write_all(&a, b"hello", &[file.as_fd(), file.as_fd()]).await.expect("send");
        let mut text = [0; 5];
        read_exact(&b, &mut text).await.expect("receive");
        let fds = b.take_fds();
        assert_eq!(fds.len(), 2);
        let mut content = [0; 7];
        rustix::io::pread(&fds[1], &mut content, 0).expect("read");
        assert_eq!(&content, b"through");
        // More than fit in a message are refused at both ends.
        let many = vec![file.as_fd(); socket::FDS_PER_MESSAGE_MAX + 1];
        assert!(write_all(&a, b"x", &many).await.is_err());
    });
}

#[test]
fn shutdown_wakes_a_reader() {
    on_each(|rt| async move {
        let listener = rt.listen(&"127.0.0.1:0".parse().expect("address")).expect("listen");
        let a = rt.connect(&listener.local()).await.expect("connect");
        let _b = accept(&listener).await;
        let reader = a.clone();
        let task = rt.spawn(async move { read_exact(&reader, &mut [0]).await });
        rt.sleep(Duration::from_millis(1)).await;
        a.shutdown();
        assert!(rt.timeout(Duration::from_secs(5), task).await.expect("in time").is_err());
    });
}

#[test]
fn time_passes_in_order() {
    on_each(|rt| async move {
        let begin = rt.now();
        let (tx, mut rx) = channel(8);
        for ms in [30u64, 10, 20] {
            let (rt2, tx) = (rt.clone(), tx.clone());
            rt.spawn_detached(async move {
                rt2.sleep(Duration::from_millis(ms)).await;
                tx.try_send(ms).expect("room");
            });
        }
        drop(tx);
        let mut order = Vec::new();
        while let Some(ms) = rx.recv().await {
            order.push(ms);
        }
        assert_eq!(order, [10, 20, 30]);
        assert!(rt.now().since(begin) >= Duration::from_millis(30));
        assert!(rt.timeout(Duration::from_millis(2), std::future::pending::<()>()).await.is_err());
        let first =
            select(rt.sleep(Duration::from_secs(60)), rt.sleep(Duration::from_millis(1))).await;
        assert_eq!(first, Either::Right(()));
    });
}

#[test]
fn blocking_work_runs_elsewhere() {
    on_each(|rt| async move {
        let here = std::thread::current().id();
        let work = (0..50).map(|i| {
            rt.unblock(move || {
                std::thread::sleep(Duration::from_millis(1));
                (std::thread::current().id() != here, i)
            })
        });
        let done = join_all(work).await;
        assert!(done.iter().enumerate().all(|(i, d)| *d == (true, i)));
    });
}

#[test]
fn files_hold_what_is_written() {
    on_each(|rt| async move {
        let temp = tempfile::tempdir().expect("dir");
        let dir = rt.open_dir(&temp.path().join("a/b")).expect("open");
        for (name, direct) in [("direct", true), ("cached", false)] {
            let options = OpenOptions { create: true, direct };
            let file = dir.open(name, options).await.expect("open");
            let bufs: Vec<_> = (0..2000u32)
                .map(|i| {
                    let mut b = rt.alloc(4096);
                    b.fill((i % 251) as u8);
                    b.freeze()
                })
                .collect();
            file.write(bufs, 8192).await.expect("write");
            file.sync().await.expect("sync");
            assert_eq!(file.len().expect("len"), 8192 + 2000 * 4096);
            let (n, got) = file.read(rt.alloc(2002 * 4096 + 8192), 0).await;
            assert_eq!(n.expect("read"), 8192 + 2000 * 4096);
            assert!(got[..8192].iter().all(|b| *b == 0));
            for i in 0..2000 {
                let at = 8192 + i * 4096;
                assert!(got[at..at + 4096].iter().all(|b| *b == (i % 251) as u8), "{i}");
            }
            file.punch(8192, 4096).await.expect("punch");
            file.allocate(16 << 20, 4096).await.expect("allocate");
            assert_eq!(file.len().expect("len"), (16 << 20) + 4096);
            // Not every file system tells.
            if let Some(parts) = file.rooms().await.expect("asked") {
                let has = |at| parts.iter().any(|p| p.start <= at && at + 4096 <= p.end);
                assert!(has(16 << 20) && has(12288) && has(8192 + 1999 * 4096), "{parts:?}");
                assert!(!has(8192) && !has(12 << 20), "{parts:?}");
                assert!(parts.windows(2).all(|w| w[0].end < w[1].start), "{parts:?}");
            }
            let (n, got) = file.read(rt.alloc(8192), 8192).await;
            assert_eq!(n.expect("read"), 8192);
            assert!(got[..4096].iter().all(|b| *b == 0) && got[4096] == 1);
            file.set_len(12288 + 100).await.expect("cut");
            let (n, _) = file.read(rt.alloc(65536), 8192).await;
            assert_eq!(n.expect("read"), 4196);
            let (n, _) = file.read(rt.alloc(4096), 1 << 30).await;
            assert_eq!(n.expect("past the end"), 0);
            assert!(file.write(vec![rt.alloc(4096).freeze()], u64::MAX - 4096).await.is_err());
        }
        assert_eq!(dir.list().await.expect("list"), ["cached", "direct"]);
        dir.rename("cached", "renamed").await.expect("rename");
        dir.remove("direct").await.expect("remove");
        dir.sync().await.expect("sync");
        assert_eq!(dir.list().await.expect("list"), ["renamed"]);
        let none = OpenOptions::default();
        assert_eq!(
            dir.open("gone", none).await.err().expect("gone").kind(),
            io::ErrorKind::NotFound
        );
        for bad in ["", ".", "..", "a/b", "a\0b"] {
            assert!(dir.open(bad, none).await.is_err(), "{bad:?}");
        }
        assert!(dir.space().expect("space").total_bytes > 0);
    });
}

#[test]
fn a_locked_directory_stays_locked() {
    on_each(|rt| async move {
        let temp = tempfile::tempdir().expect("dir");
        let one = rt.open_dir(temp.path()).expect("open");
        let two = rt.open_dir(temp.path()).expect("open");
        one.lock().expect("lock");
        assert!(two.lock().is_err());
        let e = rt.lock_dir(&two).await.expect_err("still");
        assert_eq!(e.kind(), std::io::ErrorKind::ResourceBusy);
        let later = rt.clone();
        rt.spawn_detached(async move {
            later.sleep(Duration::from_millis(50)).await;
            drop(one);
        });
        rt.lock_dir(&two).await.expect("free again");
    });
}

#[test]
fn dropped_operations_keep_their_buffers() {
    on_each(|rt| async move {
        let temp = tempfile::tempdir().expect("dir");
        let dir = rt.open_dir(temp.path()).expect("open");
        let file = dir.open("f", OpenOptions { create: true, direct: true }).await.expect("open");
        for i in 0..64u64 {
            let mut buf = rt.alloc(1 << 16);
            buf.fill(i as u8);
            drop(file.write(vec![buf.freeze()], i << 16));
            drop(file.read(rt.alloc(1 << 16), i << 16));
            // Would be overwritten with this if it were free already.
            rt.alloc(1 << 16).fill(0xff);
        }
        // Dropped operations still run; wait for them by content.
        for i in 0..64u64 {
            loop {
                let (n, got) = file.read(rt.alloc(1 << 16), i << 16).await;
                let n = n.expect("read");
                if n == 1 << 16 && got[65535] == i as u8 {
                    assert!(got.iter().all(|b| *b == i as u8));
                    break;
                }
                assert!(got[..n].iter().all(|b| *b != 0xff));
                rt.sleep(Duration::from_millis(1)).await;
            }
        }
    });
}

#[test]
fn readiness_of_any_descriptor() {
    on_each(|rt| async move {
        let (read, write) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).expect("pipe");
        let rt2 = rt.clone();
        let task = rt.spawn(async move {
            let mut got = Vec::new();
            while got.len() < 3 {
                let mut byte = [0];
                match rustix::io::read(&read, &mut byte) {
                    Ok(_) => got.push(byte[0]),
                    Err(_) => {
                        poll_fn(|cx| rt2.poll_readable(read.as_fd(), cx)).await.expect("poll")
                    }
                }
            }
            rt2.forget_readable(read.as_fd());
            got
        });
        for b in [1u8, 2, 3] {
            rt.sleep(Duration::from_millis(2)).await;
            rustix::io::write(&write, &[b]).expect("write");
        }
        assert_eq!(rt.timeout(Duration::from_secs(5), task).await.expect("in time"), [1, 2, 3]);
    });
}

#[test]
fn tasks_are_dropped_at_the_end() {
    let guard = Rc::new(());
    let held = guard.clone();
    on_each(move |rt| {
        let held = held.clone();
        async move {
            let rt2 = rt.clone();
            rt.spawn_detached(async move {
                rt2.sleep(Duration::from_secs(3600)).await;
                drop(held);
            });
            rt.yield_now().await;
        }
    });
    assert_eq!(Rc::strong_count(&guard), 1);
}

#[test]
fn random_numbers_differ() {
    on_each(|rt| async move {
        let mut all: Vec<_> = (0..1000).map(|_| rt.random_u128()).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 1000);
    });
}

impl crate::backend::Commanded for Told {
    fn commanded(&self, tag: u64, answer: i32) {
        self.0.borrow_mut().push((tag, usize::try_from(answer).map_err(|_| -answer)));
    }
}

/// `/dev/null` takes any command and answers at once; a pipe takes none.
#[test]
fn commands_reach_their_drivers() {
    let config = Config { io: Io::Uring, commands: true, ..Config::default() };
    let work = |rt: Rt| async move {
        if !rt.takes_commands() {
            eprintln!("SKIPPED: this kernel's io_uring takes no commands");
            return;
        }
        let null = std::fs::File::open("/dev/null").expect("it is there");
        let (pipe, _end) = rustix::pipe::pipe().expect("pipe");
        let told = Rc::new(Told::default());
        let tell: Rc<dyn crate::backend::Commanded> = told.clone();
        let memory = Rc::new(());
        let fds = [Arc::new(null.into()), Arc::new(pipe)];
        // More than the ring has room for at once; and the kernel has none at all for a while.
        uring::NO_ROOM.set(3);
        for tag in 0..600 {
            let command = Command {
                fd: fds[(tag % 2) as usize].clone(),
                op: 1,
                place: (std::ptr::null(), 0),
                data: [0; crate::backend::COMMAND_BYTES],
                keep: memory.clone(),
                tell: Rc::downgrade(&tell),
                tag,
            };
            // SAFETY: neither driver touches memory.
            assert!(unsafe { rt.command(command) });
        }
        rt.handed_over().await;
        while told.0.borrow().len() < 600 {
            rt.sleep(Duration::from_millis(1)).await;
        }
        for (tag, answer) in told.0.borrow().iter() {
            assert_eq!(*answer, if tag % 2 == 0 { Ok(0) } else { Err(libc::EOPNOTSUPP) });
        }
        assert_eq!(Rc::strong_count(&memory), 1, "what was answered keeps nothing");
    };
    run_with(config, work).expect("a runtime");
    // A backend that cannot says so.
    for (io, commands) in [(Io::Uring, false), (Io::Epoll, true)] {
        let config = Config { io, commands, ..Config::default() };
        run_with(config, |rt| async move { assert!(!rt.takes_commands()) }).expect("a runtime");
    }
}

/// Memory is short in the kernel, in the middle of a turn: operations and waits for readiness begin later, and none is lost or fails.
#[test]
fn what_the_kernel_has_no_room_for_is_asked_again() {
    const OPERATIONS: usize = 1500;
    const BELLS: usize = 300;
    let work = |rt: Rt| async move {
        let temp = tempfile::tempdir().expect("dir");
        let dir = rt.open_dir(temp.path()).expect("open");
        let options = OpenOptions { create: true, direct: false };
        let file = dir.open("f", options).await.expect("open");
        for i in 0..OPERATIONS {
            let mut b = rt.alloc(512);
            b.fill((i % 251) as u8);
            file.write(vec![b.freeze()], i as u64 * 512).await.expect("write");
        }
        uring::NO_ROOM.set(5);
        let reads = join_all((0..OPERATIONS).map(|i| file.read(rt.alloc(512), i as u64 * 512)));
        let all = rt.timeout(Duration::from_secs(20), reads).await.expect("none is lost");
        for (i, (n, got)) in all.iter().enumerate() {
            assert!(matches!(n, Ok(512)), "{n:?}");
            assert!(got[..] == [(i % 251) as u8; 512]);
        }
        assert_eq!(uring::NO_ROOM.get(), 0);

        use rustix::event::{EventfdFlags, eventfd};
        let bells: Vec<_> =
            (0..BELLS).map(|_| eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd")).collect();
        uring::NO_ROOM.set(1);
        let waits = join_all(
            bells.iter().map(|b| poll_fn(|cx| rt.poll_readable(b.as_fd(), cx))).collect::<Vec<_>>(),
        );
        let ring = async {
            rt.sleep(Duration::from_millis(20)).await;
            bells.iter().for_each(|b| {
                rustix::io::write(b, &1u64.to_ne_bytes()).expect("it rings");
            });
            std::future::pending::<()>().await
        };
        let waits = rt.timeout(Duration::from_secs(20), select(waits, ring)).await;
        assert!(matches!(waits, Ok(Either::Left(all)) if all.iter().all(Result::is_ok)));
        assert_eq!(uring::NO_ROOM.get(), 0);
        bells.iter().for_each(|b| rt.forget_readable(b.as_fd()));
    };
    for commands in [false, true] {
        let config = Config { io: Io::Uring, commands, ..Config::default() };
        run_with(config, work).expect("a runtime");
    }
}
