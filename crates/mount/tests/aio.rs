//! Writes that the kernel sends as several requests at once (io_submit, io_uring), and what it does when they fail.

use crate::common::{TestMount, alone, has, sh};
use glowfs_mount::ram::{LONGER_BEFORE_WRITE, ROOM_FOR_WRITES, XATTRS_SLOW};
use std::fs;
use std::sync::atomic::Ordering::SeqCst;

/// `submit(fd, bytes, offset)`: one write, as a program does it that goes on meanwhile; returns how it ended.
const SUBMIT: &str = r#"
import ctypes, mmap, os, platform, struct
SETUP, SUBMIT, EVENTS = {"x86_64": (206, 209, 208), "aarch64": (0, 2, 4)}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    done = libc.syscall(*args)
    if done < 0: raise OSError(ctypes.get_errno(), "call %d" % args[0])
    return done
context = ctypes.c_ulong(0)
call(SETUP, 8, ctypes.byref(context))
def submit(fd, bytes, offset):
    memory = mmap.mmap(-1, len(bytes)); memory.write(bytes)
    first = ctypes.c_char.from_buffer(memory)
    PWRITE = 1
    q = ctypes.create_string_buffer(struct.pack("=QIIHhIQQqQII", 0, 0, 0, PWRITE, 0, fd, ctypes.addressof(first), len(bytes), offset, 0, 0, 0))
    all = (ctypes.c_void_p * 1)(ctypes.addressof(q))
    assert call(SUBMIT, context, ctypes.c_long(1), all) == 1
    event = ctypes.create_string_buffer(32)
    assert call(EVENTS, context, ctypes.c_long(1), ctypes.c_long(1), event, None) == 1
    return struct.unpack("=QQqq", event.raw)[2]
"#;

/// `fails(fd, bytes, offset)`: there is no room for it.
const FAILS: &str = r#"
def fails(fd, bytes, offset):
    done = submit(fd, bytes, offset)
    assert done < 0, done
MIB = 1 << 20
"#;

fn python(m: &TestMount, script: &str) {
    sh(m.path(), &format!("timeout 30 python3 - <<'PY'\n{SUBMIT}\n{FAILS}\n{script}\nPY\n"));
}

#[test]
fn the_pieces_of_one_append_are_stored_in_their_order() {
    let _alone = alone();
    if !has("python3") {
        return;
    }
    let Some(m) = TestMount::new(60) else { return };
    fs::write(m.join("f"), "begun").expect("write");
    // The first piece asks for what is to be taken away before a write, for all of them.
    XATTRS_SLOW.store(true, SeqCst);
    python(
        &m,
        r#"
bytes = b"".join(bytes([i]) * (1 << 20) for i in range(1, 5))
fd = os.open("f", os.O_WRONLY | os.O_APPEND)
assert submit(fd, bytes, 0) == len(bytes)
"#,
    );
    XATTRS_SLOW.store(false, SeqCst);
    let found = fs::read(m.join("f")).expect("read");
    let order: Vec<u8> = found[5..].chunks(1 << 20).map(|piece| piece[0]).collect();
    assert_eq!(order, [1, 2, 3, 4]);
    assert!(found[5..].chunks(1 << 20).all(|piece| piece.iter().all(|b| *b == piece[0])));
}

/// The kernel cuts the file to the length that it knows.
#[test]
fn a_failed_write_takes_nothing_away_that_others_have_appended() {
    let _alone = alone();
    if !has("python3") {
        return;
    }
    let Some(m) = TestMount::new(60) else { return };
    for (flags, room) in [("O_APPEND", 0), ("O_DIRECT", 0), ("O_APPEND", 1), ("O_DIRECT", 1)] {
        fs::write(m.join("f"), "begun").expect("write");
        let others = (room << 20) + 3000;
        LONGER_BEFORE_WRITE.store(others + 1, SeqCst);
        ROOM_FOR_WRITES.store(room + 1, SeqCst);
        python(&m, &format!("fails(os.open('f', os.O_WRONLY | os.{flags}), b'x' * 2 * MIB, 0)"));
        ROOM_FOR_WRITES.store(0, SeqCst);
        let found = fs::read(m.join("f")).expect("read");
        assert_eq!(found.len() as u64, others, "{flags}, room for {room}");
        assert!(found[others as usize - 2000..].iter().all(|b| *b == b'o' || *b == b'x'));
        fs::remove_file(m.join("f")).expect("remove");
    }
}

/// Of the pieces of one write some are stored before another fails.
#[test]
fn what_a_failed_write_has_stored_goes_and_what_others_had_appended_before_stays() {
    let _alone = alone();
    if !has("python3") {
        return;
    }
    let Some(m) = TestMount::new(60) else { return };
    let cases = [("O_APPEND", 0, 0), ("O_APPEND", 3000, 0), ("O_DIRECT", 0, 0), ("O_APPEND", 0, 3)];
    for (flags, others, before) in cases {
        fs::write(m.join("f"), "begun").expect("write");
        ROOM_FOR_WRITES.store(2 + u64::from(others > 0) + before, SeqCst);
        let script = format!(
            r#"
fd = os.open('f', os.O_RDWR | os.{flags})
if {others}:
    # By a write to a place that is there, of which the end is not.
    other = os.open('f', os.O_RDWR)
    os.pwrite(other, b'B', 0)
# They look as more pieces of it.
for _ in range({before}): assert submit(fd, b'w' * MIB, 0) == MIB
fails(fd, b'x' * 2 * MIB, 5)
end = os.stat('f').st_size
assert end == max(5, {others}) + {before} * MIB, end
os.truncate('f', 6 * MIB)
assert not any(open('f', 'rb').read()[end:]), 'not zeros'
"#
        );
        if others > 0 {
            LONGER_BEFORE_WRITE.store(others + 1, SeqCst);
        }
        python(&m, &script);
        ROOM_FOR_WRITES.store(0, SeqCst);
        fs::remove_file(m.join("f")).expect("remove");
    }
}

/// It looks as what the kernel does after a failed write.
#[test]
fn a_program_may_cut_the_file_after_a_write_that_failed() {
    let _alone = alone();
    if !has("python3") {
        return;
    }
    let Some(m) = TestMount::new(60) else { return };
    for how in ["fails(fd, b'x' * 2 * MIB, 100)", "refused(fd)"] {
        for flags in ["O_APPEND", "O_DIRECT"] {
            fs::write(m.join("f"), [b'a'; 100]).expect("write");
            ROOM_FOR_WRITES.store(1, SeqCst);
            python(
                &m,
                &format!(
                    r#"
def refused(fd):
    try: os.pwrite(fd, b'x' * 2 * MIB, 100)
    except OSError: return
    assert False
fd = os.open('f', os.O_RDWR | os.{flags})
for to in [50, 20, 4000, 0]:
    {how}
    os.ftruncate(fd, to)
    assert os.fstat(fd).st_size == to, to
"#
                ),
            );
            ROOM_FOR_WRITES.store(0, SeqCst);
        }
    }
    // To just the length that the kernel knows, and others have made it longer: nobody undoes a synchronous write.
    for flags in ["O_APPEND", "O_DIRECT"] {
        fs::write(m.join("f"), [b'a'; 100]).expect("write");
        LONGER_BEFORE_WRITE.store(3001, SeqCst);
        ROOM_FOR_WRITES.store(1, SeqCst);
        python(
            &m,
            &format!(
                r#"
fd = os.open('f', os.O_RDWR | os.{flags})
try: os.pwrite(fd, b'x' * 2 * MIB, 100)
except OSError: pass
else: assert False
os.ftruncate(fd, 100)
assert os.fstat(fd).st_size == 100, os.fstat(fd)
"#
            ),
        );
        ROOM_FOR_WRITES.store(0, SeqCst);
    }
    // Others have made it longer, and it is cut all the same: the kernel has undone the write before that.
    fs::write(m.join("f"), [b'a'; 100]).expect("write");
    LONGER_BEFORE_WRITE.store(3001, SeqCst);
    ROOM_FOR_WRITES.store(1, SeqCst);
    python(
        &m,
        r#"
fd = os.open('f', os.O_RDWR | os.O_APPEND)
fails(fd, b'x' * 2 * MIB, 0)
assert os.fstat(fd).st_size == 3000
os.ftruncate(fd, 100)
assert os.fstat(fd).st_size == 100
"#,
    );
    ROOM_FOR_WRITES.store(0, SeqCst);
}
