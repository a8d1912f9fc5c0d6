//! Sockets: TCP and Unix streams, listeners, connecting, passing file descriptors.

use super::driver::{Direction, Driver, Source};
use crate::Address;
use crate::backend::{FDS_PENDING_MAX, ListenerIo, Stream, StreamIo};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
    sockopt,
};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// File descriptors in one message; more break the connection.
pub(crate) const FDS_PER_MESSAGE_MAX: usize = 16;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

pub(crate) struct Socket {
    // In front of `fd`: forgotten before the descriptor closes.
    source: Source,
    fd: OwnedFd,
    unix: bool,
    broken: Cell<bool>,
    /// The last read took all that was there.
    drained: Cell<bool>,
    fds: RefCell<Vec<OwnedFd>>,
    peer: String,
}

impl Socket {
    fn new(driver: &Rc<dyn Driver>, fd: OwnedFd, unix: bool, peer: String) -> Self {
        if !unix {
            // Only a matter of speed.
            let _ = sockopt::set_tcp_nodelay(&fd, true);
        }
        let source = Source::new(driver, fd.as_raw_fd());
        let (broken, drained) = (Cell::new(false), Cell::new(false));
        Self { source, fd, unix, broken, drained, fds: RefCell::default(), peer }
    }

    fn receive(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if !self.unix {
            return Ok(rustix::io::readv(&self.fd, bufs)?);
        }
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = rustix::net::recvmsg(&self.fd, bufs, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let mut fds = self.fds.borrow_mut();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(new) = message {
                fds.extend(new);
            }
        }
        if got.flags.contains(ReturnFlags::CTRUNC) || fds.len() > FDS_PENDING_MAX {
            fds.clear();
            drop(fds);
            self.shutdown();
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the peer passed too many file descriptors; the connection was ended",
            ));
        }
        Ok(got.bytes)
    }

    fn send(&self, bufs: &[IoSlice<'_>], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let passed = fds.is_empty()
            || (self.unix
                && fds.len() <= FDS_PER_MESSAGE_MAX
                && control.push(SendAncillaryMessage::ScmRights(fds)));
        if !passed {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} file descriptors cannot be passed here", fds.len()),
            ));
        }
        Ok(rustix::net::sendmsg(&self.fd, bufs, &mut control, SendFlags::NOSIGNAL)?)
    }
}

impl StreamIo for Socket {
    fn poll_read(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.broken.get() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if self.drained.take() {
            return self.source.wait(cx, Direction::Read);
        }
        let room: usize = bufs.iter().map(|b| b.len()).sum();
        let got = self.source.poll(cx, Direction::Read, || self.receive(bufs));
        // A system call that only says that there is no more is saved. (At the end of the stream there is no more to wait for.)
        if let Poll::Ready(Ok(n)) = got {
            self.drained.set(n > 0 && n < room && self.source.arms_by_level());
        }
        got
    }
    fn poll_write(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
        fds: &[BorrowedFd<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.broken.get() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        self.source.poll(cx, Direction::Write, || self.send(bufs, fds))
    }
    fn unsent(&self) -> usize {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the descriptor is open, and the kernel writes one int to where the pointer shows.
        let done = unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if done == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
    }
    fn take_fds(&self) -> Vec<OwnedFd> {
        self.fds.take()
    }
    fn shutdown(&self) {
        self.broken.set(true);
        // This also wakes whoever waits for the socket.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
    }
    fn shutdown_write(&self) {
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
    }
    fn peer(&self) -> String {
        self.peer.clone()
    }
    fn can_pass_fds(&self) -> bool {
        self.unix
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A ring may still hold the file; the peer must see the end now.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
    }
}

/// The socket address of a path, also of one that is too long for `sockaddr_un` (through a descriptor of its
/// directory, which must live as long as the address is used).
fn unix_address(path: &Path) -> io::Result<(rustix::net::SocketAddrUnix, Option<OwnedFd>)> {
    if let Ok(a) = rustix::net::SocketAddrUnix::new(path) {
        return Ok((a, None));
    }
    let bad = || io::Error::new(io::ErrorKind::InvalidInput, "not a path of a Unix socket");
    let (dir, name) = (path.parent().ok_or_else(bad)?, path.file_name().ok_or_else(bad)?);
    use rustix::fs::{Mode, OFlags};
    let fd =
        rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let short = Path::new("/proc/self/fd").join(fd.as_raw_fd().to_string()).join(name);
    Ok((rustix::net::SocketAddrUnix::new(short.as_path())?, Some(fd)))
}

/// Connects.
pub(crate) async fn connect(
    driver: Rc<dyn Driver>,
    rt: crate::Rt,
    address: Address,
) -> io::Result<Stream> {
    let (fd, unix) = match &address {
        Address::Tcp(a) => {
            let family = if a.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let fd = rustix::net::socket_with(family, SocketType::STREAM, FLAGS, None)?;
            (fd, false)
        }
        Address::Unix(_) => {
            (rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?, true)
        }
    };
    loop {
        let result = match &address {
            Address::Tcp(a) => rustix::net::connect(&fd, a),
            Address::Unix(p) => {
                let (a, _keep) = unix_address(p)?;
                rustix::net::connect(&fd, &a)
            }
        };
        match result {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => break,
            Err(rustix::io::Errno::INTR) => {}
            // The listener's backlog is full. The caller's time-out bounds this.
            Err(rustix::io::Errno::AGAIN) if unix => {
                rt.sleep(crate::Duration::from_millis(2)).await;
            }
            Err(e) => return Err(e.into()),
        }
    }
    let socket = Socket::new(&driver, fd, unix, address.to_string());
    poll_fn(|cx| {
        socket.source.poll(cx, Direction::Write, || {
            sockopt::socket_error(&socket.fd)??;
            match rustix::net::getpeername(&socket.fd) {
                Ok(_) => Ok(()),
                Err(rustix::io::Errno::NOTCONN) => Err(io::ErrorKind::WouldBlock.into()),
                Err(e) => Err(e.into()),
            }
        })
    })
    .await?;
    refuse_oneself(&socket.fd)?;
    Ok(Rc::new(socket))
}

/// Refuses a TCP connection of a socket with itself. The kernel makes one when it happens to choose the port that is asked for as the
/// socket's own ("simultaneous open", RFC 9293 section 3.5); it would also keep the service that is to listen there from its port.
fn refuse_oneself(fd: &OwnedFd) -> io::Result<()> {
    let internet = |a: rustix::net::SocketAddrAny| std::net::SocketAddr::try_from(a).ok();
    let ours = internet(rustix::net::getsockname(fd)?);
    let theirs = rustix::net::getpeername(fd)?.and_then(internet);
    if ours.is_none() || ours != theirs {
        return Ok(());
    }
    // Reset, or the port would be taken for another minute.
    let _ = sockopt::set_socket_linger(fd, Some(crate::Duration::ZERO));
    Err(io::ErrorKind::ConnectionRefused.into())
}

struct Listening {
    /// Of `ready`.
    source: Source,
    ready: OwnedFd,
    fd: OwnedFd,
    local: Address,
    driver: Rc<dyn Driver>,
    /// Of a Unix socket: what we made, so that only that is removed.
    inode: Option<(u64, u64)>,
}

/// Listens.
pub(crate) fn listen(
    driver: &Rc<dyn Driver>,
    address: &Address,
) -> io::Result<crate::backend::Listener> {
    let (fd, local) = match address {
        Address::Tcp(a) => {
            let family = if a.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let fd = rustix::net::socket_with(family, SocketType::STREAM, FLAGS, None)?;
            sockopt::set_socket_reuseaddr(&fd, true)?;
            rustix::net::bind(&fd, a)?;
            let real = rustix::net::getsockname(&fd)?;
            let real = std::net::SocketAddr::try_from(real).unwrap_or(*a);
            (fd, Address::Tcp(real))
        }
        Address::Unix(path) => (bind_unix(path)?, address.clone()),
    };
    rustix::net::listen(&fd, BACKLOG)?;
    let inode = match address {
        Address::Unix(path) => rustix::fs::stat(path).ok().map(|s| (s.st_dev, s.st_ino)),
        Address::Tcp(_) => None,
    };
    let ready = readiness(&fd)?;
    let source = Source::new(driver, ready.as_raw_fd());
    Ok(Rc::new(Listening { source, ready, fd, local, driver: driver.clone(), inode }))
}

/// What becomes readable with `fd`, without being a reference to it. A ring holds the files it waits for until the kernel has taken it
/// down, some ten milliseconds after its process is gone; a listener's address would be taken for so long, and the service that is
/// started in the killed one's place would be refused.
fn readiness(fd: &OwnedFd) -> io::Result<OwnedFd> {
    use rustix::event::epoll;
    let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&ready, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    Ok(ready)
}

fn bind_unix(path: &Path) -> io::Result<OwnedFd> {
    let new = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None);
    let fd = new()?;
    // On Linux the path gets the mode of the socket itself, so there is no moment in which others may connect.
    rustix::fs::fchmod(&fd, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    let (address, _keep) = unix_address(path)?;
    match rustix::net::bind(&fd, &address) {
        Err(rustix::io::Errno::ADDRINUSE) => {}
        other => return Ok(other.map(|()| fd)?),
    }
    // Something is there. It is stale only if it is a socket (connecting to a plain file is refused, too) and
    // nobody listens on it.
    let mode = rustix::fs::lstat(path)?.st_mode;
    let is_socket = rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Socket;
    match rustix::net::connect(&new()?, &address) {
        Err(rustix::io::Errno::CONNREFUSED) if is_socket => {
            rustix::fs::unlink(path)?;
            rustix::net::bind(&fd, &address)?;
            Ok(fd)
        }
        _ => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!("{} is in use by another process", path.display()),
        )),
    }
}

impl ListenerIo for Listening {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        let unix = self.inode.is_some() || matches!(self.local, Address::Unix(_));
        self.source.poll(cx, Direction::Read, || {
            loop {
                let (fd, from) = match rustix::net::acceptfrom_with(&self.fd, FLAGS) {
                    // The peer gave up before we took it.
                    Err(rustix::io::Errno::CONNABORTED) => continue,
                    other => other?,
                };
                let peer = match from.and_then(|a| std::net::SocketAddr::try_from(a).ok()) {
                    Some(a) => format!("tcp://{a}"),
                    None => self.local.to_string(),
                };
                return Ok(Rc::new(Socket::new(&self.driver, fd, unix, peer)) as Stream);
            }
        })
    }
    fn local(&self) -> Address {
        self.local.clone()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // A socket that was passed on by accident must not keep waking the source.
        let _ = rustix::event::epoll::delete(&self.ready, &self.fd);
        let _ = rustix::net::shutdown(self.fd.as_fd(), Shutdown::Both);
        let Address::Unix(path) = &self.local else { return };
        let now = rustix::fs::lstat(path).ok().map(|s| (s.st_dev, s.st_ino));
        if now.is_some() && now == self.inode {
            let _ = rustix::fs::unlink(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_with_itself_is_refused() {
        let fd = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("fd");
        let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        rustix::net::bind(&fd, &any).expect("bind");
        let own = std::net::SocketAddr::try_from(rustix::net::getsockname(&fd).expect("name"));
        let own = own.expect("an internet address");
        rustix::net::connect(&fd, &own).expect("the kernel allows it");
        let e = refuse_oneself(&fd).expect_err("refused");
        assert_eq!(e.kind(), io::ErrorKind::ConnectionRefused);
        drop(fd);
        // And nothing is left of it.
        std::net::TcpListener::bind(own).expect("the port is free");
    }

    #[test]
    fn a_connection_with_another_is_not() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
        let stream = std::net::TcpStream::connect(listener.local_addr().expect("address"));
        refuse_oneself(&OwnedFd::from(stream.expect("connect"))).expect("fine");
    }
}
