//! Writes that the kernel sends as several requests at once (io_submit, io_uring). The switches are the process's.

mod common;

use common::{TestMount, has, sh};
use glowfs_mount::ram::XATTRS_SLOW;
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

fn python(m: &TestMount, script: &str) {
    sh(m.path(), &format!("timeout 30 python3 - <<'PY'\n{SUBMIT}\n{script}\nPY\n"));
}

#[test]
fn the_pieces_of_one_append_are_stored_in_their_order() {
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
