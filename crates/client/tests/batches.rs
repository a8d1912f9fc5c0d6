//! Reads of batches that other clients' changes of the file overtake.

use crate::fake::{CHUNK, Fake, Fault, open};
use glowfs_client::{Batch, BatchConfig, Holes, OpenFile};
use glowfs_rt::real::run;
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::meta::SetAttr;
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

/// Reads a part of a file.
async fn read(rt: &Rt, file: &Rc<OpenFile>, offset: u64) -> Vec<u8> {
    let batch = Batch::new(file.client(), BatchConfig::default()).expect("batch");
    batch.prepare_read(file, offset, rt.alloc(WANT), Holes::Zeros, 1).expect("prepared");
    batch.submit();
    let done = batch.wait(1, None).await.pop().expect("a completion");
    let n = done.result.expect("read");
    done.buf.expect("its buffer")[..n].to_vec()
}

/// Whole reads went out as they were found, so they told of a file that had been replaced long before, half of it if two chunks were read.
#[test]
fn of_a_file_that_was_replaced_nothing_old_is_read() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        fake.state.uncollected.set(true);
        let client = fake.client().await;
        let file = open(&client).await;
        let replace = |by: u8| {
            fake.state.epoch.set(fake.state.epoch.get() + 1);
            let chunk = |index| ChunkId {
                volume: VolumeId(1),
                data: DataId(7 + fake.state.epoch.get()),
                index,
            };
            fake.put(&[by; CHUNK as usize]);
            fake.state.chunks.borrow_mut().insert(chunk(1), vec![by; CHUNK as usize]);
            fake.state.len.set(2 * CHUNK);
        };
        fake.put(&[7; WANT]);
        assert_eq!(read(&rt, &file, 0).await, [7; WANT]);
        // This client has no lease, and is not told.
        replace(8);
        assert_eq!(read(&rt, &file, 0).await, [8; WANT]);
        replace(9);
        assert_eq!(read(&rt, &file, CHUNK - 50).await, [9; WANT]);
    });
}

/// A write over two chunks of which one found no room leaves bytes in the other one, behind the end.
#[test]
fn nothing_is_read_behind_the_end_of_a_file() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        let file = open(&client).await;
        fake.put(&[7; 2 * WANT]);
        fake.state.len.set(40);
        assert_eq!(read(&rt, &file, 0).await, [7; 40]);
        assert!(read(&rt, &file, 60).await.is_empty());
        // What was written here counts before meta hears of it, through whichever open file.
        let writer = open(&client).await;
        writer.write(40, glowfs_rt::Buf::from_vec(vec![8; 30])).await.expect("write");
        assert_eq!(read(&rt, &file, 40).await, [8; 30]);
    });
}

#[test]
fn what_is_leased_is_not_asked_for_and_what_was_changed_is() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        fake.state.uncollected.set(true);
        let client = fake.client().await;
        let file = open(&client).await;
        fake.put(&[7; WANT]);
        let asked = || fake.calls(NodeId(10), method::GETATTR);
        // Many at once share a question, also without a lease.
        let batch = Batch::new(&client, BatchConfig::default()).expect("batch");
        for user in 0..50 {
            batch.prepare_read(&file, 0, rt.alloc(WANT), Holes::Zeros, user).expect("prepared");
        }
        batch.submit();
        let done = batch.wait_all(None).await;
        assert!(done.iter().all(|c| matches!(c.result, Ok(WANT))), "{done:?}");
        assert!(asked() < 25, "asked {} times", asked());

        fake.state.lease_ms.set(60_000);
        read(&rt, &file, 0).await;
        let leased = asked();
        for _ in 0..5 {
            assert_eq!(read(&rt, &file, 0).await, [7; WANT]);
        }
        assert_eq!(asked(), leased);
        // Another client cuts it, and this one is told.
        fake.cut().await;
        fake.put(&[8; 60]);
        assert_eq!(read(&rt, &file, 0).await, [8; 60]);
        // It is cut by this client, of which meta does not tell it.
        let q = SetAttr { inode: InodeId(5), len: Some(0), ..SetAttr::default() };
        client.setattr(q).await.expect("cut");
        fake.put(&[9; 30]);
        assert_eq!(read(&rt, &file, 0).await, [9; 30]);
        let leased = asked();
        assert_eq!((read(&rt, &file, 0).await, asked()), (vec![9; 30], leased));
        // A recall that overtakes the answer takes the lease that it brings.
        fake.state.lease_ms.set(0);
        fake.try_recall(fake.state.epoch.get()).await.expect("told");
        read(&rt, &file, 0).await;
        fake.state.lease_ms.set(60_000);
        fake.fault(NodeId(10), method::GETATTR, &[Fault::AnswerLate(LATE)]);
        let before = asked();
        let (rt_, file_) = (rt.clone(), file.clone());
        let reader = rt.spawn(async move { read(&rt_, &file_, 0).await });
        while asked() == before {
            rt.sleep(Duration::from_millis(1)).await;
        }
        fake.try_recall(fake.state.epoch.get()).await.expect("told");
        reader.await;
        let leased = asked();
        read(&rt, &file, 0).await;
        assert_eq!(asked(), leased + 1);
    });
}
