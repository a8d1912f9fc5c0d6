//! Files that a program has mapped, and stored into, while others change them.

use crate::common::{TestMount, alone, has};
use glowfs_mount::ram::{CUT_BEFORE_WRITE, LONGER_UNSEEN, READS_WAIT_AT};
use rustix::fs::{FallocateFlags, copy_file_range, fallocate};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, SystemTime};

/// A program that maps the file, stores 'm' into it from there on, and has that written back when it is told to. It is another process, and ended after a while: one
/// that maps a file that it serves itself may wait for itself.
const MAPS: &str = r#"
import mmap, sys
f = open(sys.argv[1], "r+b")
m = mmap.mmap(f.fileno(), 0)
at = int(sys.argv[2])
m[at:] = b"m" * (len(m) - at)
print("stored", flush=True)
sys.stdin.readline()
m.flush()
print("written back", flush=True)
"#;

/// That program at work. It has the file mapped until it has written back.
pub struct Mapping {
    program: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Mapping {
    pub fn stored(path: &Path, at: u64) -> Self {
        let mut program = Command::new("timeout")
            .args(["-s", "KILL", "20", "python3", "-c", MAPS])
            .arg(path)
            .arg(at.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let said = BufReader::new(program.stdout.take().expect("its output")).lines();
        let mut mapping = Self { program, said };
        assert_eq!(mapping.hears(), "stored");
        mapping
    }
    fn hears(&mut self) -> String {
        self.said.next().and_then(Result::ok).unwrap_or_default()
    }
    /// The program ends, whatever becomes of what it has stored.
    pub fn end(mut self) {
        let mut go = self.program.stdin.take().expect("its input");
        go.write_all(b"\n").expect("told");
        self.program.wait().expect("its end");
    }
    pub fn write_back(mut self) {
        let mut go = self.program.stdin.take().expect("its input");
        go.write_all(b"\n").expect("told");
        assert_eq!(self.hears(), "written back");
        assert!(self.program.wait().expect("its end").success());
    }
}

/// How this client hears of the new length, by the file's path and a descriptor of it.
type Hears = fn(&Path, &File);
const WAYS: [(&str, Hears); 6] = [
    ("fstat", |_, f| assert!(f.metadata().expect("fstat").is_file())),
    ("stat", |path, _| assert!(std::fs::metadata(path).expect("stat").is_file())),
    ("chmod", |path, _| {
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).expect("chmod")
    }),
    ("a listing", |path, _| {
        assert!(std::fs::read_dir(path.parent().expect("a directory")).expect("list").count() > 0)
    }),
    ("an open that may make it", |path, _| {
        drop(OpenOptions::new().create(true).append(true).open(path).expect("open"));
    }),
    ("a link", |path, _| {
        let other = path.with_extension("other");
        std::fs::hard_link(path, &other).expect("link");
        std::fs::remove_file(other).expect("unlink");
    }),
];

/// The kernel has zeros behind the end that it knows, and would write them back as far as it is told that the file is long.
#[test]
fn the_last_page_of_a_mapping_does_not_lie_over_what_another_client_appended() {
    let _alone = alone();
    if !has("python3") {
        return;
    }
    let Some(m) = TestMount::new(60) else { return };
    for (way, hears) in WAYS {
        for len in [100, 4096, 5000] {
            let path = m.join(&format!("f-{len}"));
            std::fs::write(&path, vec![b'a'; len]).expect("write");
            let f = File::open(&path).expect("open");
            let mapping = Mapping::stored(&path, 0);
            LONGER_UNSEEN.store(len as u64 + 50 + 1, SeqCst);
            hears(&path, &f);
            assert_eq!(LONGER_UNSEEN.load(SeqCst), 0, "{way} asks");
            mapping.write_back();
            let found = std::fs::read(&path).expect("read");
            let of = |b| found.iter().filter(|x| **x == b).count();
            assert_eq!((found.len(), of(b'm'), of(b'o')), (len + 50, len, 50), "after {way}");
            std::fs::remove_file(&path).expect("unlink");
        }
    }
}

/// Open before anything is stored, for at an open the kernel gives pages back.
struct Opened {
    path: PathBuf,
    writes: File,
    appends: File,
}

/// How this client makes the file so long itself (from where another one has made it end), and with which bytes.
type Lengthens = fn(&Opened, u64, u64);
const OWN_WAYS: [(&str, Lengthens, u8); 5] = [
    ("a write", |f, end, to| f.writes.write_all_at(&written(end, to), end).expect("write"), b'w'),
    ("an append", |f, end, to| (&f.appends).write_all(&written(end, to)).expect("append"), b'w'),
    ("ftruncate", |f, _, to| f.writes.set_len(to).expect("ftruncate"), 0),
    (
        "fallocate",
        |f, _, to| fallocate(&f.writes, FallocateFlags::empty(), 0, to).expect("fallocate"),
        0,
    ),
    (
        "copy_file_range",
        |f, mut end, to| {
            let source = File::open(f.path.with_file_name("source")).expect("open");
            let n = written(end, to).len();
            assert_eq!(copy_file_range(source, None, &f.writes, Some(&mut end), n), Ok(n));
        },
        b'w',
    ),
];

fn written(end: u64, to: u64) -> Vec<u8> {
    vec![b'w'; (to - end) as usize]
}

/// As above, but the kernel takes the file for longer because of what it does itself.
#[test]
fn nor_where_this_client_makes_the_file_longer_itself() {
    let _alone = alone();
    if !has("python3") {
        return;
    }
    let Some(m) = TestMount::new(60) else { return };
    // Longer than what another client makes of the files.
    std::fs::write(m.join("source"), [b'w'; 10_000]).expect("write");
    for (way, lengthens, with) in OWN_WAYS {
        for (len, more) in [(100, 60), (100, 9000), (4096, 60), (5000, 60), (5000, 9000)] {
            let path = m.join(&format!("f-{len}"));
            std::fs::write(&path, vec![b'a'; len]).expect("write");
            let writes = OpenOptions::new().write(true).open(&path).expect("open");
            let appends = OpenOptions::new().append(true).open(&path).expect("open");
            let f = Opened { path: path.clone(), writes, appends };
            let mapping = Mapping::stored(&path, 0);
            LONGER_UNSEEN.store(len as u64 + 50 + 1, SeqCst);
            lengthens(&f, len as u64 + 50, (len + more) as u64);
            assert_eq!(LONGER_UNSEEN.load(SeqCst), 0, "{way} asks");
            mapping.write_back();
            let found = std::fs::read(&path).expect("read");
            let mut expected = [vec![b'm'; len], vec![b'o'; 50]].concat();
            expected.resize(len + more, with);
            let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
            assert_eq!(
                (found.len(), wrong),
                (expected.len(), None),
                "after {way} to {len} and {more}"
            );
            std::fs::remove_file(&path).expect("unlink");
        }
    }
}

/// A program that maps the file and does what it is told, a line at a time.
const OBEYS: &str = r#"
import mmap, sys
f = open(sys.argv[1], "r+b")
m = mmap.mmap(f.fileno(), 0)
print("done", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"#;

struct Obeys(Child, Lines<BufReader<ChildStdout>>);

impl Obeys {
    fn of(path: &Path) -> Self {
        let mut program = Command::new("timeout")
            .args(["-s", "KILL", "20", "python3", "-c", OBEYS])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let said = BufReader::new(program.stdout.take().expect("its output")).lines();
        let mut obeys = Self(program, said);
        obeys.hears();
        obeys
    }
    fn hears(&mut self) {
        assert_eq!(self.1.next().and_then(Result::ok).unwrap_or_default(), "done");
    }
    fn begins(&mut self, line: &str) {
        writeln!(self.0.stdin.as_mut().expect("its input"), "{line}").expect("told");
    }
    fn does(&mut self, line: &str) {
        self.begins(line);
        self.hears();
    }
    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("its end").success());
    }
}

/// The kernel has found by reading that the file is shorter, and nobody has told it.
#[test]
fn nor_where_the_kernel_has_read_that_the_file_was_cut() {
    const WAS: u64 = 20_000;
    let _alone = alone();
    if !has("python3") {
        return;
    }
    let Some(m) = TestMount::new(60) else { return };
    for cut in [5000, 100, 4096 + 4000] {
        let cases = WAYS[..3].iter().map(|(way, hears)| (*way, Some(*hears), None));
        let own = OWN_WAYS.iter().map(|(way, lengthens, _)| (*way, None, Some(*lengthens)));
        for (way, hears, lengthens) in cases.chain(own) {
            let path = m.join("f");
            std::fs::write(&path, vec![b'a'; WAS as usize]).expect("write");
            std::fs::write(m.join("source"), [b'w'; 30_000]).expect("write");
            let writes = OpenOptions::new().write(true).open(&path).expect("open");
            let appends = OpenOptions::new().append(true).open(&path).expect("open");
            let f = Opened { path: path.clone(), writes, appends };
            let reads = File::open(&path).expect("open");
            let mut program = Obeys::of(&path);
            CUT_BEFORE_WRITE.store(cut + 1, SeqCst);
            f.writes.write_all_at(b"a", 0).expect("write");
            // The kernel gives its pages back beside that.
            std::thread::sleep(Duration::from_millis(100));
            let last = cut - cut % 4096;
            program.does(&format!("x = m[{last}]"));
            program.does(&format!("m[{last}:{cut}] = b'm' * {}", cut - last));
            let end = cut + 50;
            LONGER_UNSEEN.store(end + 1, SeqCst);
            if let Some(hears) = hears {
                hears(&path, &reads);
            }
            let to = lengthens.map_or(end, |lengthens| {
                lengthens(&f, end, end + 100);
                end + 100
            });
            assert_eq!(LONGER_UNSEEN.load(SeqCst), 0, "{way} asks");
            program.does("m.flush()");
            program.end();
            let found = std::fs::read(&path).expect("read");
            let (with, cut, end) = (&found[end as usize..], cut as usize, end as usize);
            let is = |range: std::ops::Range<usize>, b| found[range].iter().all(|x| *x == b);
            assert_eq!(found.len() as u64, to, "{way}, cut to {cut}");
            assert!(is(0..last as usize, b'a') && is(last as usize..cut, b'm'), "{way}, {cut}");
            assert!(is(cut..end, b'o'), "{way}, cut to {cut}: {:?}", &found[cut..end]);
            assert!(with.iter().all(|x| *x == 0 || *x == b'w'), "{way}, cut to {cut}");
            std::fs::remove_file(&path).expect("unlink");
        }
    }
}

/// It has read the last page before it has taken in the answer to another read, by which it takes the file to end farther behind.
#[test]
fn nor_where_the_kernel_has_passed_over_what_it_has_read() {
    let _alone = alone();
    if !has("python3") {
        return;
    }
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    std::fs::write(&path, [b'a'; 20_000]).expect("write");
    let writes = OpenOptions::new().write(true).open(&path).expect("open");
    let reads = File::open(&path).expect("open");
    let (mut program, mut other) = (Obeys::of(&path), Obeys::of(&path));
    for program in [&mut program, &mut other] {
        program.does("m.madvise(mmap.MADV_RANDOM)");
    }
    CUT_BEFORE_WRITE.store(5001, SeqCst);
    writes.write_all_at(b"a", 0).expect("write");
    std::thread::sleep(Duration::from_millis(100));
    READS_WAIT_AT.store(4097, SeqCst);
    program.begins("x = m[4096]");
    std::thread::sleep(Duration::from_millis(200));
    // There is no such page any more, and it is killed.
    other.begins("x = m[12288]");
    assert!(!other.0.wait().expect("its end").success());
    READS_WAIT_AT.store(0, SeqCst);
    program.hears();
    program.does("m[4096:5000] = b'm' * 904");
    LONGER_UNSEEN.store(5051, SeqCst);
    assert_eq!(reads.metadata().expect("fstat").len(), 5050);
    program.does("m.flush()");
    program.end();
    let found = std::fs::read(&path).expect("read");
    assert!(found[..4096] == [b'a'; 4096] && found[4096..5000] == [b'm'; 904]);
    assert!(found[5000..] == [b'o'; 50], "{:?}", &found[5000..]);
}

/// A page is being read as the file is made longer here: what is stored into it then is no more behind the end.
#[test]
fn what_is_stored_into_a_page_that_was_read_beside_a_write_stays() {
    let _alone = alone();
    if !has("python3") {
        return;
    }
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    std::fs::write(&path, [b'a'; 5000]).expect("write");
    let writes = OpenOptions::new().write(true).open(&path).expect("open");
    let (mut reads, mut stores) = (Obeys::of(&path), Obeys::of(&path));
    reads.does("m.madvise(mmap.MADV_RANDOM)");
    // More than there is yet: who maps or opens it later would wait for the page.
    stores.does("import ctypes; c = ctypes.CDLL(None); c.mmap.restype = ctypes.c_void_p");
    stores.does("p = c.mmap(None, ctypes.c_size_t(12288), 3, 1, f.fileno(), ctypes.c_long(0))");
    READS_WAIT_AT.store(4097, SeqCst);
    reads.begins("x = m[4096]");
    std::thread::sleep(Duration::from_millis(200));
    writes.write_all_at(&[b'w'; 808], 8192).expect("write");
    READS_WAIT_AT.store(0, SeqCst);
    reads.hears();
    stores.does("c.memset(ctypes.c_void_p(p + 6000), 0x6d, ctypes.c_size_t(1))");
    assert_eq!(writes.metadata().expect("stat").len(), 9000);
    stores.does("c.msync(ctypes.c_void_p(p), ctypes.c_size_t(12288), 4)");
    stores.end();
    reads.end();
    let found = std::fs::read(&path).expect("read");
    assert_eq!((found.len(), found[4999], found[5000], found[8192]), (9000, b'a', 0, b'w'));
    assert_eq!(found[6000], b'm');
}

/// What was stored before a time was set does not move it when it is written back.
#[test]
fn a_time_that_is_set_after_stores_through_a_mapping_stays() {
    let _alone = alone();
    if !has("python3") {
        return;
    }
    let Some(m) = TestMount::new(60) else { return };
    let path = m.join("f");
    std::fs::write(&path, [b'a'; 5000]).expect("write");
    let mapping = Mapping::stored(&path, 0);
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let f = File::open(&path).expect("open");
    f.set_modified(time).expect("utimensat");
    mapping.write_back();
    drop(f);
    let is = std::fs::metadata(&path).expect("stat").modified().expect("a time");
    assert_eq!(is, time);
    assert!(std::fs::read(&path).expect("read").iter().all(|b| *b == b'm'));
}
