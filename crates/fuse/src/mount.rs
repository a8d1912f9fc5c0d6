//! Making and ending the mount itself. Everything here blocks: call it through `Rt::unblock`.
//!
//! Root mounts directly; others (and root where mount(2) is refused, as in some containers) go through the set-user-id
//! helper `fusermount3`, which sends the device over a socket.

use crate::flags::MountFlags;
use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The device.
const DEVICE: &str = "/dev/fuse";
/// The helper's name, as distributions install it.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Where.
    pub mountpoint: PathBuf,
    /// What stands in the first column of /proc/mounts.
    pub source: String,
    /// The part after `fuse.` in the type.
    pub subtype: String,
    /// Whether other users may use it; only root (or `user_allow_other` in /etc/fuse.conf) can say so.
    pub allow_other: bool,
    /// Whether the kernel checks permission bits.
    pub default_permissions: bool,
    /// What the kernel itself does with it.
    pub flags: MountFlags,
    /// Whether the mount point may have entries (they are hidden while mounted).
    pub allow_non_empty: bool,
}

impl MountOptions {
    /// Options with the kernel checking permissions, for all users if we are root.
    pub fn new(mountpoint: impl Into<PathBuf>, source: &str, subtype: &str) -> Self {
        Self {
            mountpoint: mountpoint.into(),
            source: source.to_owned(),
            subtype: subtype.to_owned(),
            allow_other: rustix::process::geteuid().is_root(),
            default_permissions: true,
            flags: MountFlags::default(),
            allow_non_empty: false,
        }
    }
}

/// Why it could not be mounted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum MountError {
    #[error(
        "{DEVICE} is missing: load the module (modprobe fuse), or give the container the device (--device {DEVICE})"
    )]
    NoDevice,
    #[error("{DEVICE} cannot be opened ({0}): give its group or this user access to it")]
    DeviceRefused(io::Error),
    #[error("mount point {0} does not exist: make it with mkdir -p")]
    Missing(PathBuf),
    #[error("mount point {0} is not a directory")]
    NotDirectory(PathBuf),
    #[error(
        "mount point {0} is not empty: choose an empty directory, or allow this in the configuration"
    )]
    NotEmpty(PathBuf),
    #[error(
        "mount point {0} is already a mount: unmount it first (umount {0}), or choose another directory"
    )]
    AlreadyMounted(PathBuf),
    #[error(
        "mount point {0} belongs to a mount daemon that is gone: release it with umount -l {0}"
    )]
    Stale(PathBuf),
    #[error("mount point {0} cannot be read: {1}")]
    Unreadable(PathBuf, io::Error),
    #[error(
        "mounting on {path} is not permitted: run as root, or install fusermount3 (package fuse3); {detail}"
    )]
    NotPermitted { path: PathBuf, detail: String },
    #[error("only root can mount with `{0}`")]
    RootOnly(&'static str),
    #[error("mounting on {0} failed: {1}")]
    Failed(PathBuf, String),
}

/// A mount that exists.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    by_helper: bool,
    connection: Option<u32>,
}

/// Checks the mount point and mounts. The device is for [`crate::Session::start`].
pub fn mount(options: &MountOptions) -> Result<(Mounted, OwnedFd), MountError> {
    if let Some(flag) = options.flags.for_root_only()
        && !rustix::process::geteuid().is_root()
    {
        return Err(MountError::RootOnly(flag));
    }
    let path = check_mountpoint(options)?;
    let (fd, by_helper) = match mount_direct(&path, options) {
        Ok(fd) => (fd, false),
        Err(MountError::NotPermitted { detail, .. }) => {
            (mount_by_helper(&path, options, &detail)?, true)
        }
        Err(e) => return Err(e),
    };
    let connection = connection_of(&path);
    Ok((Mounted { path, by_helper, connection }, fd))
}

fn check_mountpoint(options: &MountOptions) -> Result<PathBuf, MountError> {
    let given = &options.mountpoint;
    let refuse = |e: io::Error| match e.raw_os_error() {
        Some(libc::ENOENT) => MountError::Missing(given.clone()),
        Some(libc::ENOTDIR) => MountError::NotDirectory(given.clone()),
        Some(libc::ENOTCONN | libc::ECONNABORTED) => MountError::Stale(given.clone()),
        _ => MountError::Unreadable(given.clone(), e),
    };
    let meta = std::fs::metadata(given).map_err(refuse)?;
    if !meta.is_dir() {
        return Err(MountError::NotDirectory(given.clone()));
    }
    let path = given.canonicalize().map_err(refuse)?;
    if connection_of(&path).is_some() {
        return Err(MountError::AlreadyMounted(path));
    }
    if !options.allow_non_empty && std::fs::read_dir(&path).map_err(refuse)?.next().is_some() {
        return Err(MountError::NotEmpty(path));
    }
    Ok(path)
}

/// The connection of what is mounted at `path`.
fn connection_of(path: &Path) -> Option<u32> {
    crate::table::at(path)?.minor
}

fn open_device() -> Result<OwnedFd, MountError> {
    let options = std::fs::OpenOptions::new().read(true).write(true).open(DEVICE);
    match options {
        Ok(file) => Ok(file.into()),
        Err(e) => Err(match e.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => MountError::NoDevice,
            _ => MountError::DeviceRefused(e),
        }),
    }
}

fn mount_direct(path: &Path, o: &MountOptions) -> Result<OwnedFd, MountError> {
    let not_permitted = |detail: String| MountError::NotPermitted { path: path.into(), detail };
    if !rustix::process::geteuid().is_root() {
        return Err(not_permitted("this user is not root".into()));
    }
    let fd = open_device()?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        fd.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    if o.default_permissions {
        data.push_str(",default_permissions");
    }
    if o.allow_other {
        data.push_str(",allow_other");
    }
    let c = |bytes: &[u8]| {
        CString::new(bytes)
            .map_err(|_| MountError::Failed(path.into(), "a NUL byte in an option".into()))
    };
    let (source, kind) = (c(o.source.as_bytes())?, c(format!("fuse.{}", o.subtype).as_bytes())?);
    let (target, data) = (c(path.as_os_str().as_bytes())?, c(data.as_bytes())?);
    let flags = o.flags.bits();
    // SAFETY: all four strings end with NUL and outlive the call.
    let done = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast())
    };
    if done == 0 {
        return Ok(fd);
    }
    let e = io::Error::last_os_error();
    Err(match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => not_permitted(format!("mount(2) says: {e}")),
        Some(libc::ENODEV) => MountError::NoDevice,
        _ => MountError::Failed(path.into(), e.to_string()),
    })
}

fn mount_by_helper(path: &Path, o: &MountOptions, why: &str) -> Result<OwnedFd, MountError> {
    let failed = |what: String| MountError::Failed(path.into(), what);
    let (ours, theirs) =
        std::os::unix::net::UnixStream::pair().map_err(|e| failed(e.to_string()))?;
    // The helper finds its socket by number, so it must survive exec.
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())
        .map_err(|e| failed(e.to_string()))?;
    let options = helper_options(o);
    let mut said = String::new();
    for helper in HELPERS {
        let run = Command::new(helper)
            .arg("-o")
            .arg(&options)
            .arg("--")
            .arg(path)
            .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
            .stdin(Stdio::null())
            .output();
        match run {
            Ok(out) if out.status.success() => {
                drop(theirs);
                return receive_fd(&ours)
                    .map_err(|e| failed(format!("{helper} sent no device: {e}")));
            }
            Ok(out) => {
                said = format!("{helper} says: {}", String::from_utf8_lossy(&out.stderr).trim());
                break;
            }
            Err(e) => said = format!("{helper}: {e}"),
        }
    }
    if said.contains("not permitted") || said.contains("No such file") {
        return Err(MountError::NotPermitted {
            path: path.into(),
            detail: format!("{why}; {said}"),
        });
    }
    Err(failed(said))
}

/// All in one string, separated by commas, so in a name they are escaped.
fn helper_options(o: &MountOptions) -> String {
    let name = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let mut options = format!("fsname={},subtype={}", name(&o.source), name(&o.subtype));
    let more = [(o.default_permissions, "default_permissions"), (o.allow_other, "allow_other")];
    let more = more.into_iter().filter(|(on, _)| *on).map(|(_, word)| word);
    for word in o.flags.words().chain(more) {
        options.push(',');
        options.push_str(word);
    }
    options
}

fn receive_fd(socket: &std::os::unix::net::UnixStream) -> io::Result<OwnedFd> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message
            && let Some(fd) = fds.next()
        {
            return Ok(fd);
        }
    }
    Err(io::Error::other("no file descriptor in the message"))
}

impl Mounted {
    /// Where it is mounted (absolute).
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// The number of its connection under /sys/fs/fuse/connections.
    pub fn connection(&self) -> Option<u32> {
        self.connection
    }
    /// Unmounts. With `force`, detaches it even if it is in use; without, EBUSY says that it is. A mount that is gone
    /// already is no error.
    pub fn unmount(&self, force: bool) -> io::Result<()> {
        match connection_of(&self.path) == self.connection {
            true if self.by_helper => unmount_by_helper(&self.path, force),
            true => unmount_direct(&self.path, force),
            false => Ok(()),
        }
    }
    /// Ends every request at once with an error (last resort against a hang). Root only.
    pub fn abort(&self) -> io::Result<()> {
        self.connection.map_or(Ok(()), abort_connection)
    }
}

fn unmount_direct(path: &Path, force: bool) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if force { libc::MNT_DETACH } else { 0 };
    // SAFETY: the string ends with NUL and outlives the call.
    match unsafe { libc::umount2(path.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn unmount_by_helper(path: &Path, force: bool) -> io::Result<()> {
    let mut said = String::new();
    for helper in HELPERS {
        let mut command = Command::new(helper);
        command.arg(if force { "-uz" } else { "-u" }).arg("--").arg(path);
        match command.stdin(Stdio::null()).output() {
            Ok(out) if out.status.success() => return Ok(()),
            Ok(out) => said = String::from_utf8_lossy(&out.stderr).trim().to_owned(),
            Err(e) if said.is_empty() => said = e.to_string(),
            Err(_) => {}
        }
    }
    let busy = said.to_lowercase().contains("busy");
    Err(if busy { io::Error::from_raw_os_error(libc::EBUSY) } else { io::Error::other(said) })
}

/// Releases a mount point whose daemon is gone (all that it answers is ENOTCONN). Anything else is left alone. Whether there was one.
pub fn release_dead(path: &Path) -> io::Result<bool> {
    match std::fs::metadata(path).map_err(|e| e.raw_os_error()) {
        Err(Some(libc::ENOTCONN | libc::ECONNABORTED)) => {}
        _ => return Ok(false),
    }
    unmount_direct(path, true).or_else(|_| unmount_by_helper(path, true))?;
    Ok(true)
}

/// Ends every request of a connection at once with an error. Root only.
pub fn abort_connection(connection: u32) -> io::Result<()> {
    std::fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), b"1")
}

/// Has the kernel read so many KiB ahead of whoever reads a file in order through its cache. A new connection begins with 128, and INIT can only lower that. Root only.
/// Source: Documentation/ABI/testing/sysfs-class-bdi.
pub fn set_read_ahead(connection: u32, kib: u32) -> io::Result<()> {
    std::fs::write(read_ahead_file(connection), kib.to_string())
}

/// What [`set_read_ahead`] sets.
pub fn read_ahead_file(connection: u32) -> PathBuf {
    // The device of a FUSE mount has no major number, and the connection's as its minor one.
    format!("/sys/class/bdi/0:{connection}/read_ahead_kb").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_of_a_name_do_not_end_it() {
        let mut o = MountOptions::new("/mnt", "10.0.0.1:80,10.0.0.2:80\\x", "glowfs");
        (o.allow_other, o.flags.read_only) = (true, true);
        let want = "fsname=10.0.0.1:80\\,10.0.0.2:80\\\\x,subtype=glowfs,ro,nosuid,nodev,default_permissions,allow_other";
        assert_eq!(helper_options(&o), want);
    }
}
