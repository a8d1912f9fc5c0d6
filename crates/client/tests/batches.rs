//! Reads of batches that other clients' changes of the file overtake.

use crate::fake::{CHUNK, Fake, Fault, open};
use glowfs_client::{Batch, BatchConfig, Holes, OpenFile};
use glowfs_rt::real::run;
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::method;
use glowfs_types::*;
use std::rc::Rc;

const LATE: Duration = Duration::from_millis(150);
const WANT: usize = 100;

/// Reads a part of a file; every storage answers late, with what was there before `change`.
async fn overtaken(
    rt: &Rt,
    fake: &Fake,
    file: &Rc<OpenFile>,
    offset: u64,
    change: impl FnOnce(),
) -> Vec<u8> {
    let batch = Batch::new(file.client(), BatchConfig::default()).expect("batch");
    for node in [20, 21, 22] {
        fake.fault(NodeId(node), method::READ, &[Fault::AnswerLate(LATE)]);
    }
    batch.prepare_read(file, offset, rt.alloc(WANT), Holes::Zeros, 1).expect("prepared");
    batch.submit();
    rt.sleep(LATE / 3).await;
    change();
    let done = batch.wait(1, None).await.pop().expect("a completion");
    let n = done.result.expect("read");
    done.buf.expect("its buffer")[..n].to_vec()
}

#[test]
fn of_a_file_that_grows_meanwhile_no_zeros_are_read_for_data() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        let file = open(&client).await;
        let found = overtaken(&rt, &fake, &file, 0, || fake.put(&[7; WANT])).await;
        assert!(found.iter().all(|b| *b == 7), "{found:?}");
        // Of two chunks the second one is there when it is read, and the first one not yet.
        let chunk = |index| ChunkId { volume: VolumeId(1), data: DataId(7), index };
        fake.state.chunks.borrow_mut().clear();
        fake.state.chunks.borrow_mut().insert(chunk(1), vec![7; WANT]);
        fake.state.len.set(0);
        let begin = CHUNK - 50;
        let grow = || fake.put(&[7; CHUNK as usize]);
        let found = overtaken(&rt, &fake, &file, begin, grow).await;
        assert!(found.iter().all(|b| *b == 7), "{found:?}");
        fake.state.chunks.borrow_mut().clear();
        // A hole is one.
        fake.put(&[7; 10]);
        fake.state.len.set(60);
        let found = overtaken(&rt, &fake, &file, 0, || ()).await;
        assert_eq!((found.len(), &found[..10], &found[10..]), (60, &[7; 10][..], &[0; 50][..]));
    });
}

#[test]
fn of_a_file_that_is_replaced_meanwhile_no_zeros_are_read_for_data() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        fake.state.uncollected.set(true);
        let client = fake.client().await;
        let file = open(&client).await;
        fake.put(&[7; 10]);
        let replace = || {
            fake.state.epoch.set(fake.state.epoch.get() + 1);
            fake.put(&[8; WANT]);
        };
        assert_eq!(overtaken(&rt, &fake, &file, 0, replace).await, [8; WANT]);
        let shorter = || {
            fake.state.epoch.set(fake.state.epoch.get() + 1);
            fake.put(&[9; 5]);
        };
        fake.put(&[8; 50]);
        assert_eq!(overtaken(&rt, &fake, &file, 0, shorter).await, [9; 5]);
    });
}
