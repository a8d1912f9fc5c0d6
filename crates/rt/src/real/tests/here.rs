//! Files that lie in memory.

use super::*;
use std::collections::BTreeSet;

/// The largest that are done here; of so many all are more than a turn may have.
const LARGE: usize = 64 << 10;
const READS: usize = 8;

/// How many threads the kernel has made for what this thread's ring was asked and would have blocked.
fn workers() -> usize {
    let mine = format!("iou-wrk-{}", rustix::thread::gettid().as_raw_nonzero());
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads").flatten();
    let names = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok());
    names.filter(|name| name.trim() == mine).count()
}

#[test]
fn what_lies_in_memory_wakes_no_other_thread_and_a_turn_reads_a_bounded_part() {
    on_each(|rt| async move {
        let place = tempfile::tempdir_in("/dev/shm").expect("Linux has a tmpfs here");
        let dir = rt.open_dir(place.path()).expect("dir");
        let options = OpenOptions { create: true, direct: true };
        let file = dir.open("file", options).await.expect("open");
        let mut data = rt.alloc(READS * LARGE);
        data.iter_mut().enumerate().for_each(|(i, b)| *b = (i / 4096) as u8);
        let data = data.freeze();
        for at in (0..data.len()).step_by(LARGE) {
            file.write(vec![data.slice(at..at + LARGE)], at as u64).await.expect("write");
        }
        file.sync().await.expect("sync");
        let turns = async |bytes: usize| {
            let turns = Rc::new(RefCell::new(BTreeSet::new()));
            let reads = (0..READS).map(|i| {
                let (rt, file, data, turns) =
                    (rt.clone(), file.clone(), data.clone(), turns.clone());
                async move {
                    let (n, got) = file.read(rt.alloc(bytes), (i * bytes) as u64).await;
                    assert_eq!(n.expect("read"), bytes);
                    assert!(got[..] == data[i * bytes..(i + 1) * bytes]);
                    turns.borrow_mut().insert(rt.turn_began());
                }
            });
            let tasks: Vec<_> = reads.map(|r| rt.spawn(r)).collect();
            for t in tasks {
                t.await;
            }
            turns.take().len()
        };
        assert_eq!((turns(LARGE).await, turns(4096).await), (2, 1));
        let (n, got) = file.read(rt.alloc(8192), (READS * LARGE) as u64 - 4096).await;
        assert_eq!((n.expect("the end"), got[0]), (4096, data[READS * LARGE - 1]));
        assert_eq!(workers(), 0);
        // One whose future was dropped is done all the same, and its buffer given back.
        drop(file.read(rt.alloc(4096), 0));
        let used = rt.pool().stats().bytes_used;
        rt.sleep(Duration::from_millis(1)).await;
        assert!(rt.pool().stats().bytes_used < used);
    });
}
