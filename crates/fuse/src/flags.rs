//! [`MountFlags`]: what the kernel itself does with a mount, as bits of mount(2) and as words of fusermount3.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What the kernel itself does with a mount. By default as every FUSE file system: no set-user-id programs, no devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MountFlags {
    /// It refuses changes.
    pub read_only: bool,
    /// It honours set-user-id and set-group-id bits of programs. Only root can say so.
    pub suid: bool,
    /// It opens special files as devices. Only root can say so.
    pub dev: bool,
    /// It runs no programs.
    pub noexec: bool,
    /// Shown as such: no read moves a time of last access.
    pub noatime: bool,
    /// Shown as such: every read moves a time of last access.
    pub strictatime: bool,
    /// Shown as such: no read of a directory moves its time of last access.
    pub nodiratime: bool,
}

impl MountFlags {
    /// For mount(2).
    pub(crate) fn bits(self) -> libc::c_ulong {
        let all = [
            (self.read_only, libc::MS_RDONLY),
            (!self.suid, libc::MS_NOSUID),
            (!self.dev, libc::MS_NODEV),
            (self.noexec, libc::MS_NOEXEC),
            (self.noatime, libc::MS_NOATIME),
            (self.strictatime, libc::MS_STRICTATIME),
            (self.nodiratime, libc::MS_NODIRATIME),
        ];
        all.into_iter().filter(|(on, _)| *on).fold(0, |bits, (_, bit)| bits | bit)
    }
    /// For fusermount3. It takes no other words about times of last access, which the daemon sees to anyway.
    pub(crate) fn words(self) -> impl Iterator<Item = &'static str> {
        let all = [
            (self.read_only, "ro"),
            (true, if self.suid { "suid" } else { "nosuid" }),
            (true, if self.dev { "dev" } else { "nodev" }),
            (self.noexec, "noexec"),
            (self.noatime, "noatime"),
        ];
        all.into_iter().filter(|(on, _)| *on).map(|(_, word)| word)
    }
    /// The one that only root can ask for.
    pub(crate) fn for_root_only(self) -> Option<&'static str> {
        if self.suid { Some("suid") } else { self.dev.then_some("dev") }
    }
}

/// Gives a mount that is there other flags. Only root can. The daemon does not hear of it.
pub fn remount(path: &Path, flags: MountFlags) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let bits = libc::MS_REMOUNT | flags.bits();
    let none = std::ptr::null();
    // SAFETY: the path ends with NUL and outlives the call; a remount reads neither source nor type, and may have no data.
    match unsafe { libc::mount(c"glowfs".as_ptr(), path.as_ptr(), none, bits, none.cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_is_as_every_fuse_file_system() {
        let none = MountFlags::default();
        assert_eq!(none.bits(), libc::MS_NOSUID | libc::MS_NODEV);
        assert_eq!(none.words().collect::<Vec<_>>(), ["nosuid", "nodev"]);
        assert_eq!(none.for_root_only(), None);
    }

    #[test]
    fn each_flag_is_passed_on() {
        let all = MountFlags {
            read_only: true,
            suid: true,
            dev: true,
            noexec: true,
            noatime: true,
            strictatime: false,
            nodiratime: true,
        };
        let want = libc::MS_RDONLY | libc::MS_NOEXEC | libc::MS_NOATIME | libc::MS_NODIRATIME;
        assert_eq!(all.bits(), want);
        assert_eq!(all.words().collect::<Vec<_>>(), ["ro", "suid", "dev", "noexec", "noatime"]);
        assert_eq!(all.for_root_only(), Some("suid"));
        let strict = MountFlags { strictatime: true, ..MountFlags::default() };
        assert_eq!(strict.bits() & libc::MS_STRICTATIME, libc::MS_STRICTATIME);
    }
}
