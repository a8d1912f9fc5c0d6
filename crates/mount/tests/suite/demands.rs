//! What the test suites of other file systems demand (xfstests' generic group, LTP), and nothing else here asks for.

use crate::common::{self, TestMount};

macro_rules! mounted {
    ($m:ident) => {
        let Some($m) = TestMount::new(60) else { return };
    };
}

/// generic/035 and its like: not only files live on in the hands of those who have them.
#[test]
fn what_is_removed_can_still_be_asked_for_by_who_has_it() {
    mounted!(m);
    common::sh(
        m.path(),
        r#"
        python3 - <<'PY'
import os, stat
def check(fd, kind):
    s = os.fstat(fd)
    assert s.st_nlink == 0 and kind(s.st_mode) and stat.S_IMODE(s.st_mode) == 0o700, s
os.umask(0)
os.mkdir("d", 0o700); was = os.stat("d")
fd = os.open("d", os.O_RDONLY); os.rmdir("d"); check(fd, stat.S_ISDIR)
now = os.fstat(fd)
assert now.st_ino == was.st_ino and now.st_mtime_ns == was.st_mtime_ns and now.st_ctime_ns >= was.st_ctime_ns
assert os.listdir(".") == []
# Replaced, and with a past in which names came and went.
os.mkdir("old", 0o700); os.mkdir("new"); open("old/f", "w").close(); os.unlink("old/f"); was = os.stat("old")
fd = os.open("old", os.O_RDONLY); os.rename("new", "old"); check(fd, stat.S_ISDIR)
assert os.fstat(fd).st_mtime_ns == was.st_mtime_ns and os.stat("old").st_nlink == 2
# The directory that one works in.
here = os.open(".", os.O_RDONLY)
os.mkdir("cwd", 0o700); os.chdir("cwd"); os.rmdir("../cwd")
assert os.stat(".").st_nlink == 0
for act in (lambda: os.open("x", os.O_CREAT | os.O_WRONLY), lambda: os.mkdir("x")):
    try: act(); assert False
    except FileNotFoundError: pass
os.fchdir(here)
# Everything else that is not a file.
def node(name, kind):
    if kind == stat.S_ISFIFO: os.mkfifo(name, 0o700)
    elif kind == stat.S_ISCHR: os.mknod(name, 0o700 | stat.S_IFCHR, os.makedev(1, 3))
    else: os.mknod(name, 0o700 | stat.S_IFSOCK)
for flags, kind in [(os.O_RDWR, stat.S_ISFIFO), (os.O_PATH, stat.S_ISCHR), (os.O_PATH, stat.S_ISSOCK)]:
    node("n", kind)
    fd = os.open("n", flags); os.link("n", "m"); os.unlink("n")
    assert os.fstat(fd).st_nlink == 1
    os.unlink("m"); check(fd, kind)
os.symlink("x", "s"); fd = os.open("s", os.O_PATH | os.O_NOFOLLOW); os.unlink("s")
assert os.fstat(fd).st_nlink == 0
PY
        "#,
    );
}

/// generic/736: the listing must end, wherever a rename puts an entry. What was there when it began comes once.
#[test]
fn a_listing_ends_though_its_reader_renames_what_he_reads() {
    mounted!(m);
    common::sh(
        m.path(),
        r#"
        mkdir d; cd d; seq -f '%05.0f-with-a-name-that-needs-many-pages' 1 3000 | xargs touch
        python3 - <<'PY'
import os
seen = 0
for e in os.scandir("."):
    os.rename(e.name, "p_" + e.name); seen += 1
    open("made-%d" % seen, "w").close()
    assert seen <= 3000
assert seen == 3000
# Whoever begins anew sees what was made since.
assert len(os.listdir(".")) == 6000
PY
        "#,
    );
}

/// Names that no file can have are refused as such, whoever made the directory, and however long the kernel lets them be.
#[test]
fn names_that_are_too_long_are_called_so() {
    mounted!(m);
    common::sh(
        m.path(),
        r#"
        mkdir d
        python3 - <<'PY'
import errno, os
for dir in (".", "d"):
    here = os.open(dir, os.O_RDONLY)
    for n in (256, 1024, 1025, 4000, 4095):
        name = "n" * n
        for act in (lambda: os.stat(name, dir_fd=here), lambda: os.mkdir(name, dir_fd=here), lambda: os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=here)):
            try: act(); assert False
            except OSError as e: assert e.errno == errno.ENAMETOOLONG, (dir, n, e)
PY
        "#,
    );
}
