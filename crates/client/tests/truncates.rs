//! The client while others truncate the files that it writes: against a cluster in memory, over real connections.

use crate::fake::{CHUNK, Fake, Fault, OTHER_DATA, bytes, open, open_other, read};
use glowfs_client::{Client, OpenFile};
use glowfs_rt::real::run;
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_types::wire::meta::*;
use glowfs_types::wire::method;
use glowfs_types::*;
use std::rc::Rc;

/// A client whose writes pause for long before they are sent again, and its file.
async fn patient(rt: &Rt, fake: &Fake) -> Rc<OpenFile> {
    let mut config = fake.config();
    let pause = Duration::from_millis(1500);
    (config.backoff_min, config.backoff_max) = (pause, pause);
    open(&Client::connect(rt, config).await.expect("connects")).await
}

/// A write is done and its answer lost; before it is sent again another client cuts it off.
#[test]
fn a_write_that_is_retried_after_a_truncate_is_there() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let file = patient(&rt, &fake).await;
        fake.fault(NodeId(20), method::WRITE, &[Fault::DoAndCut]);
        let (writer, data) = (file.clone(), bytes(4096, 9));
        let sent = Buf::from_vec(data.clone());
        let write = rt.spawn(async move { writer.write(4096, sent).await });
        while fake.content(7, 4096, 4096) != data {
            rt.sleep(Duration::from_millis(5)).await;
        }
        fake.shorten(1024).await;
        assert_eq!(fake.calls(NodeId(20), method::WRITE), 1, "it still waits");
        write.await.expect("written");
        assert_eq!((file.data(), file.epoch()), (DataId(7), TruncateEpoch(1)));
        assert_eq!(file.len_written(), Some(8192));
        assert!(fake.content(7, 4096, 4096) == data, "acknowledged, and not there");
        let sent = fake.state.channels.borrow().len();
        assert_eq!(sent, 2, "another epoch, another identity");
    });
}

/// A file that is cut to nothing has other data, on other chains, from then on.
#[test]
fn what_goes_on_after_a_truncate_goes_to_the_chains_of_the_new_data() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        let file = open(&client).await;
        for round in 1..6 {
            // Known to be over, but not yet what comes after it.
            fake.cut().await;
            file.write(0, Buf::from_vec(vec![round; 10])).await.expect("written");
            fake.cut().await;
            let data = DataId(fake.state.epoch.get() + 7);
            for index in 0..2 {
                let id = ChunkId { volume: VolumeId(1), data, index };
                fake.state.chunks.borrow_mut().insert(id, vec![round; CHUNK as usize]);
            }
            let found = read(&rt, &file, CHUNK - 4, 8).await.expect("read");
            assert_eq!(found, (8, vec![round; 8]));
            fake.cut().await;
            file.write(CHUNK - 4, Buf::from_vec(vec![round; 8])).await.expect("written");
            assert_eq!(file.len_written(), Some(CHUNK + 4));
        }
    });
}

/// Where a write goes was computed from the length that the file had; before it is sent again another client cuts the file.
#[test]
fn a_write_whose_place_is_of_before_a_truncate_hears_of_it() {
    run(|rt| async move {
        // Within one chunk, and over two of them.
        for len in [4096, 2 * CHUNK as usize] {
            let fake = Fake::start(&rt, 1, 1).await;
            let file = patient(&rt, &fake).await;
            fake.fault(NodeId(20), method::WRITE, &[Fault::DoAndCut]);
            let (writer, data) = (file.clone(), bytes(len, 9));
            let (under, sent) = (Some(file.epoch()), Buf::from_vec(data.clone()));
            let write = rt.spawn(async move { writer.write_told(4096, sent, under).await });
            while fake.content(7, 4096, 4096) != data[..4096] {
                rt.sleep(Duration::from_millis(5)).await;
            }
            fake.shorten(1024).await;
            let e = write.await.expect_err("cut meanwhile");
            assert_eq!(e.status, Status::Stale, "{e}");
            assert_eq!(fake.content(7, 4096, 4096), [0; 4096], "a hole would come before it");
            assert_eq!((file.epoch(), file.len_written()), (TruncateEpoch(1), None));
            let under = Some(file.epoch());
            file.write_told(1024, Buf::from_vec(data.clone()), under).await.expect("written");
            assert!(fake.content(7, 1024, len as u64) == data);
        }
    });
}

/// Of a write over two chunks one piece is done, and the other one has to be sent again, when another client cuts the file.
#[test]
fn a_write_over_several_chunks_is_whole_after_a_truncate_between_its_pieces() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let file = patient(&rt, &fake).await;
        fake.fault(NodeId(21), method::WRITE, &[Fault::Refuse(Status::Overloaded)]);
        let (writer, data) = (file.clone(), bytes(2 * CHUNK as usize, 9));
        let sent = Buf::from_vec(data.clone());
        let write = rt.spawn(async move { writer.write(0, sent).await });
        while fake.content(7, 0, CHUNK) != data[..CHUNK as usize]
            || fake.calls(NodeId(21), method::WRITE) == 0
        {
            rt.sleep(Duration::from_millis(5)).await;
        }
        fake.cut().await;
        write.await.expect("written");
        assert_eq!((file.data(), file.epoch()), (DataId(8), TruncateEpoch(1)));
        assert_eq!(file.len_written(), Some(2 * CHUNK));
        assert!(fake.content(8, 0, 2 * CHUNK) == data, "the length reaches over a hole");
    });
}

/// Of a copy over two chunks one piece is done, and the other one has to be sent again, when another client cuts the file.
#[test]
fn a_copy_over_several_chunks_is_whole_after_a_truncate_between_its_pieces() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let file = patient(&rt, &fake).await;
        let source = open_other(file.client()).await;
        let data = bytes(2 * CHUNK as usize, 9);
        for (index, chunk) in (0..).zip(data.chunks(CHUNK as usize)) {
            let id = ChunkId { volume: VolumeId(1), data: OTHER_DATA, index };
            fake.state.chunks.borrow_mut().insert(id, chunk.to_vec());
        }
        fake.fault(NodeId(21), method::COPY_CHUNK, &[Fault::Refuse(Status::Overloaded)]);
        let (writer, from) = (file.clone(), source.clone());
        let copy = rt.spawn(async move { writer.copy_from(&from, (0, 0, 2 * CHUNK), 0).await });
        while fake.content(7, 0, CHUNK) != data[..CHUNK as usize]
            || fake.calls(NodeId(21), method::COPY_CHUNK) == 0
        {
            rt.sleep(Duration::from_millis(5)).await;
        }
        fake.cut().await;
        assert!(!copy.await.expect("copied"), "no holes");
        assert_eq!((file.data(), file.epoch()), (DataId(8), TruncateEpoch(1)));
        assert_eq!(file.len_written(), Some(2 * CHUNK));
        assert!(fake.content(8, 0, 2 * CHUNK) == data, "the length reaches over a hole");
        // A hole at its end belongs to it as well.
        assert!(
            file.copy_from(&source, (CHUNK, 2 * CHUNK, 2 * CHUNK), 2 * CHUNK)
                .await
                .expect("copied")
        );
        assert_eq!(file.len_written(), Some(4 * CHUNK));
    });
}

/// Of a range that is made zeros over two chunks one piece is done, and the other one has to be sent again, when another client cuts the file before both: it stays
/// as long as it was cut to.
#[test]
fn zeros_over_several_chunks_make_no_file_longer_that_is_cut_between_them() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let file = patient(&rt, &fake).await;
        let data = bytes(2 * CHUNK as usize, 9);
        file.write(0, Buf::from_vec(data.clone())).await.expect("written");
        fake.state.len.set(2 * CHUNK);
        // Of the first chunk the end is cut off, of the second one the beginning is overwritten.
        fake.fault(NodeId(21), method::WRITE, &[Fault::Refuse(Status::Overloaded)]);
        let (worker, calls) = (file.clone(), fake.calls(NodeId(21), method::WRITE));
        let work = rt.spawn(async move { worker.zero(CHUNK / 2, CHUNK).await });
        while fake.calls(NodeId(21), method::WRITE) == calls {
            rt.sleep(Duration::from_millis(5)).await;
        }
        fake.state.len.set(1024);
        fake.shorten(1024).await;
        rt.timeout(Duration::from_secs(20), work).await.expect("ends").expect("zeros");
        assert_eq!((file.data(), file.epoch()), (DataId(7), TruncateEpoch(1)));
        let len = file.len_written().unwrap_or(0);
        assert!(len <= 1024, "written up to {len} of a file that was cut to 1024");
        assert!(fake.content(7, 0, 1024) == data[..1024]);
        // The range is still made zeros as far as the file reaches.
        file.zero(512, 512).await.expect("zeros");
        assert_eq!(fake.content(7, 512, 512), [0; 512]);
    });
}

/// A truncate of which this client was told goes with the power of the metadata engine, before it was flushed: the file is as before.
#[test]
fn a_truncate_that_never_was_locks_nobody_out() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        fake.state.uncollected.set(true);
        let client = fake.client().await;
        let file = open(&client).await;
        fake.cut().await;
        fake.state.epoch.set(0);
        let before = fake.calls(NodeId(10), method::RENEW);
        let write = file.write(0, Buf::from_vec(vec![5]));
        rt.timeout(Duration::from_secs(5), write).await.expect("at once").expect("written");
        assert_eq!(fake.content(7, 0, 1), [5]);
        let asked = fake.calls(NodeId(10), method::RENEW) - before;
        assert!(asked <= 2, "asked {asked} times");
    });
}

/// The same of a service that says in which life its engine is: the file is known to be as before, and what a former life said comes too late.
#[test]
fn a_truncate_that_never_was_is_forgotten() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        fake.state.uncollected.set(true);
        fake.state.life.set(1);
        let client = fake.client().await;
        let file = open(&client).await;
        let attr = async || {
            let q = OfInode { caller: Caller::default(), inode: InodeId(5) };
            client.getattr(q).await.expect("attributes").attr
        };
        fake.cut().await;
        let lost = attr().await;
        file.update_attr(&lost);
        assert_eq!((file.data(), file.epoch()), (DataId(8), TruncateEpoch(1)));
        fake.state.epoch.set(0);
        fake.state.life.set(2);
        file.update_attr(&attr().await);
        file.update_attr(&lost);
        assert_eq!((file.data(), file.epoch()), (DataId(7), TruncateEpoch(0)));
        file.write(0, Buf::from_vec(vec![5])).await.expect("written");
        assert_eq!(fake.content(7, 0, 1), [5]);
        assert_eq!(file.len_written(), Some(1));
        // Truncates count on from there.
        fake.cut().await;
        file.write(0, Buf::from_vec(vec![6])).await.expect("written");
        assert_eq!((fake.content(8, 0, 1)[0], file.epoch()), (6, TruncateEpoch(1)));
    });
}
