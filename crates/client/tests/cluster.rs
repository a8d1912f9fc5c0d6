//! The client against a cluster in memory, over real connections, with faults.

use crate::fake::{CHUNK, Fake, Fault, OTHER_DATA, bytes, layout, open, open_other, read};
use glowfs_client::{Client, ClientConfig, RecallHandler};
use glowfs_rt::real::run;
use glowfs_rt::{BoxFuture, Buf, Duration};
use glowfs_types::wire::meta::*;
use glowfs_types::wire::method;
use glowfs_types::*;
use std::cell::Cell;
use std::rc::Rc;

const READS: [u64; 3] = [20, 21, 22];

#[test]
fn writes_and_reads_across_chunks_and_holes() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        let file = open(&client).await;
        let data = bytes(3 * CHUNK as usize + 777, 1);
        let offset = CHUNK / 2 + 13;
        file.write(offset, Buf::from_vec(data.clone())).await.expect("write");
        assert_eq!(file.len_written(), Some(offset + data.len() as u64));
        assert_eq!(fake.content(7, offset, data.len() as u64), data);
        let (n, got) = read(&rt, &file, offset, data.len()).await.expect("read");
        assert_eq!((n, &got), (data.len(), &data));
        // From the hole before to the emptiness behind.
        let (n, got) = read(&rt, &file, 0, 6 * CHUNK as usize).await.expect("read");
        assert_eq!(n as u64, offset + data.len() as u64);
        assert!(got[..offset as usize].iter().all(|b| *b == 0));
        assert_eq!(&got[offset as usize..n], &data[..]);
        assert!(got[n..].iter().all(|b| *b == 0));
        file.flush().await.expect("flush");
        assert_eq!(
            READS.iter().map(|n| fake.calls(NodeId(*n), method::FLUSH_TARGETS)).sum::<u64>(),
            3,
            "each node once"
        );
        client.close().await;
        assert!(fake.state.sessions.borrow().is_empty(), "said goodbye");
        assert!(file.write(0, Buf::from_vec(vec![1])).await.is_err(), "closed");
    });
}

/// A storage node whose list of chunks begins again and again is asked once, and what it says is no answer.
#[test]
fn a_list_of_chunks_that_goes_in_circles_is_refused() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        let file = open(&client).await;
        file.write(0, Buf::from_vec(bytes(4 * CHUNK as usize, 1))).await.expect("write");
        for node in READS {
            fake.fault(NodeId(node), method::LIST_EXTENTS, &[Fault::Flip, Fault::Flip]);
        }
        let (from, len) = (2 * CHUNK, 4 * CHUNK);
        let seek = rt.timeout(Duration::from_secs(20), file.seek(from, len, true));
        let e = seek.await.expect("it ends").expect_err("refused");
        assert_eq!(e.status, Status::BadMessage, "{e}");
        client.close().await;
    });
}

#[test]
fn finds_the_primary_behind_a_standby_and_names_what_it_tried() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 2, 1).await;
        let mut config = fake.config();
        config.mgmtd.truncate(1);
        let client = Client::connect(&rt, config).await.expect("redirected");
        assert_eq!(client.routing().nodes.len(), 6);
        assert!(fake.calls(NodeId(2), method::GET_ROUTING) > 0);

        let mut config = fake.config();
        config.mgmtd = vec!["tcp://127.0.0.1:1".into()];
        config.connect_timeout = Duration::from_millis(300);
        let e = Client::connect(&rt, config).await.err().expect("nobody there");
        assert!(e.message.contains("tcp://127.0.0.1:1"), "{e}");
    });
}

#[test]
fn a_metadata_call_moves_to_another_service_with_the_same_request() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 2).await;
        let client = fake.client().await;
        for node in [10, 11] {
            fake.fault(NodeId(node), method::UNLINK, &[Fault::DoAndCut]);
        }
        let query = Unlink {
            caller: Caller::default(),
            request: RequestId(0),
            parent: InodeId(1),
            name: b"x".to_vec().into(),
            directory: false,
        };
        client.unlink(query).await.expect("third time lucky");
        let requests = fake.state.requests.borrow().clone();
        assert_eq!(requests.len(), 3);
        assert!(requests[0] != RequestId(0) && requests.iter().all(|r| *r == requests[0]));
        assert!(
            fake.calls(NodeId(10), method::UNLINK) > 0
                && fake.calls(NodeId(11), method::UNLINK) > 0
        );
        let e = client
            .lookup(Lookup {
                caller: Caller::default(),
                parent: InodeId(1),
                name: b"y".to_vec().into(),
            })
            .await
            .expect_err("no such entry");
        assert_eq!(e.status, Status::NotFound);
    });
}

/// Each life of a client tried a request anew for the whole time, and so for longer than meta remembers it: it could be done twice.
#[test]
fn all_lives_of_a_client_share_the_time_of_a_request() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let (attempt, total) = (Duration::from_millis(400), Duration::from_secs(2));
        let config = ClientConfig { meta_attempt: attempt, meta_total: total, ..fake.config() };
        let client = Client::connect(&rt, config).await.expect("connects");
        let (meta, unlink) = (NodeId(10), method::UNLINK);
        fake.fault(meta, unlink, &vec![Fault::Silent; 20]);
        fake.fault(NodeId(1), method::CLIENT_SESSION, &[Fault::Refuse(Status::SessionEnded)]);
        let (first, began, state) = (client.id(), rt.now(), fake.state.clone());
        let (watched, time) = (client.clone(), rt.clone());
        rt.spawn_detached(async move {
            while watched.id() == first {
                time.sleep(Duration::from_millis(5)).await;
            }
            // What was sent for the former life is refused; then there is silence again.
            let silent = vec![Fault::Silent; 20];
            let mut faults = std::collections::VecDeque::from(silent);
            faults.push_front(Fault::Refuse(Status::SessionEnded));
            state.faults.borrow_mut().insert((meta, unlink), faults);
        });
        let query = Unlink {
            caller: Caller::default(),
            request: RequestId(0),
            parent: InodeId(1),
            name: b"x".to_vec().into(),
            directory: false,
        };
        let e = client.unlink(query).await.expect_err("nobody answers");
        let left = fake.state.faults.borrow()[&(meta, unlink)].len();
        assert!(client.id() != first && left < 20, "it was asked in its next life: {e}");
        let took = rt.now().since(began);
        assert!(took < total + 2 * attempt, "{took:?}: {e}");
    });
}

#[test]
fn a_write_whose_answer_was_lost_is_applied_once() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        let file = open(&client).await;
        fake.fault(NodeId(20), method::WRITE, &[Fault::DoAndCut, Fault::DoAndCut, Fault::Silent]);
        file.write(0, Buf::from_vec(bytes(5000, 9))).await.expect("write");
        file.write(0, Buf::from_vec(bytes(5000, 8))).await.expect("write");
        assert_eq!(fake.content(7, 0, 5000), bytes(5000, 8));
        let channels = fake.state.channels.borrow();
        assert_eq!(
            channels.values().map(|c| c.0).collect::<Vec<_>>(),
            [2],
            "one channel, two numbers"
        );
    });
}

#[test]
fn a_definite_refusal_comes_at_once_and_a_lost_cause_at_the_bound() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let mut config = fake.config();
        config.data_total = Duration::from_millis(500);
        let client = Client::connect(&rt, config).await.expect("connects");
        let file = open(&client).await;
        fake.fault(NodeId(20), method::WRITE, &[Fault::Refuse(Status::NoSpace)]);
        let e = file.write(0, Buf::from_vec(vec![1])).await.expect_err("full");
        assert_eq!(e.status, Status::NoSpace);
        fake.kill(NodeId(20));
        let e = file.write(0, Buf::from_vec(vec![1])).await.expect_err("the head is gone");
        assert_eq!(e.errno(), 5);
        for word in ["node 20", "chain 1", "tcp://127.0.0.1"] {
            assert!(e.message.contains(word), "{word} in {e}");
        }
        file.write(0, Buf::from_vec(vec![1])).await.expect_err("still");
        assert!(
            !fake.state.channels.borrow().values().any(|c| c.0 > 1),
            "channels of unknown outcome are retired"
        );
    });
}

#[test]
fn a_fail_over_is_invisible() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        let file = open(&client).await;
        let data = bytes(3 * CHUNK as usize, 3);
        file.write(0, Buf::from_vec(data.clone())).await.expect("write");
        fake.kill(NodeId(20));
        let (later, f) = (fake.clone(), rt.clone());
        rt.spawn_detached(async move {
            f.sleep(Duration::from_millis(400)).await;
            later.fail_over(NodeId(20));
        });
        // Reads go on at once, at other replicas; the write waits for the new head.
        let (_, got) = read(&rt, &file, 0, data.len()).await.expect("read");
        assert_eq!(got, data);
        let data = bytes(3 * CHUNK as usize, 4);
        file.write(0, Buf::from_vec(data.clone())).await.expect("write");
        let (_, got) = read(&rt, &file, 0, data.len()).await.expect("read");
        assert_eq!(got, data);
        file.flush().await.expect("flush");
    });
}

#[test]
fn a_head_that_hangs_is_left_when_another_takes_over() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let mut config = fake.config();
        config.hedge = false;
        config.write_attempt = Duration::from_secs(600);
        config.read_attempt = Duration::from_secs(600);
        config.data_total = Duration::from_secs(600);
        let client = Client::connect(&rt, config).await.expect("connects");
        let file = open(&client).await;
        file.write(0, Buf::from_vec(bytes(5000, 1))).await.expect("write");
        for (method, node) in READS.map(|n| (method::READ, n)) {
            fake.fault(NodeId(node), method, &[Fault::Silent]);
        }
        for method in [method::WRITE, method::FLUSH_TARGETS] {
            fake.fault(NodeId(20), method, &[Fault::Silent]);
        }
        // Each of the three hangs when it is asked, until node 20 is out.
        let reader = {
            let (rt, file) = (rt.clone(), file.clone());
            rt.clone().spawn(async move { read(&rt, &file, 0, 5000).await })
        };
        let flusher = {
            let file = file.clone();
            rt.spawn(async move { file.flush().await })
        };
        let later = fake.clone();
        let f = rt.clone();
        rt.spawn_detached(async move {
            while later.calls(NodeId(20), method::WRITE) < 2 {
                f.sleep(Duration::from_millis(5)).await;
            }
            for node in READS {
                later.state.faults.borrow_mut().remove(&(NodeId(node), method::READ));
                if later.calls(NodeId(node), method::READ) > 0 {
                    later.fail_over(NodeId(node));
                }
            }
            later.fail_over(NodeId(20));
        });
        file.write(0, Buf::from_vec(bytes(5000, 2))).await.expect("write");
        flusher.await.expect("flush");
        let (_, got) = reader.await.expect("read");
        assert!(got == bytes(5000, 1) || got == bytes(5000, 2));
        assert_eq!(fake.content(7, 0, 5000), bytes(5000, 2));
    });
}

#[test]
fn bad_bytes_and_pending_versions_send_a_read_elsewhere() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        let file = open(&client).await;
        let data = bytes(2 * CHUNK as usize, 5);
        file.write(0, Buf::from_vec(data.clone())).await.expect("write");
        for fault in [
            Fault::Flip,
            Fault::Refuse(Status::Pending),
            Fault::Refuse(Status::Corrupt),
            Fault::Refuse(Status::WrongChainVersion),
            Fault::DoAndCut,
            Fault::Silent,
        ] {
            for node in READS {
                fake.fault(NodeId(node), method::READ, std::slice::from_ref(&fault));
            }
            for _ in 0..4 {
                let (_, got) = read(&rt, &file, 100, data.len() - 100).await.expect("read");
                assert_eq!(got, data[100..], "{fault:?}");
            }
            fake.state.faults.borrow_mut().clear();
        }
    });
}

#[test]
fn a_slow_replica_is_hedged() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let mut config = fake.config();
        config.hedge = true;
        config.hedge_min = Duration::from_millis(5);
        config.read_attempt = Duration::from_secs(5);
        let client = Client::connect(&rt, config).await.expect("connects");
        let file = open(&client).await;
        file.write(0, Buf::from_vec(bytes(4096, 5))).await.expect("write");
        read(&rt, &file, 0, 4096).await.expect("read");
        let asked =
            READS.into_iter().find(|n| fake.calls(NodeId(*n), method::READ) > 0).expect("one");
        fake.fault(NodeId(asked), method::READ, &[Fault::Late(Duration::from_secs(3))]);
        let began = rt.now();
        let (_, got) = read(&rt, &file, 0, 4096).await.expect("read");
        assert_eq!(got, bytes(4096, 5));
        assert!(rt.now().since(began) < Duration::from_secs(2), "the hedge answered");
    });
}

#[test]
fn capabilities_are_renewed_and_recalled() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        fake.state.capability_ms.set(200);
        let client = fake.client().await;
        let file = open(&client).await;
        file.write(0, Buf::from_vec(vec![1])).await.expect("write");
        rt.sleep(Duration::from_millis(250)).await;
        file.write(1, Buf::from_vec(vec![2])).await.expect("write with a renewed one");
        assert!(fake.calls(NodeId(10), method::RENEW) >= 1);

        fake.state.capability_ms.set(60_000);
        file.renew().await.expect("renew");
        // The file is cut to nothing by another client: new epoch, new data id.
        fake.cut().await;
        file.write(3, Buf::from_vec(vec![3])).await.expect("write");
        assert_eq!((file.data(), file.epoch()), (DataId(8), TruncateEpoch(1)));
        assert_eq!(file.len_written(), Some(4), "what was before the cut does not count");
        assert_eq!(fake.content(8, 0, 4), [0, 0, 0, 3]);

        // Without a recall the refusal of storage does it.
        fake.state.epoch.set(2);
        file.write(0, Buf::from_vec(vec![4])).await.expect("write");
        assert_eq!(fake.content(9, 0, 1), [4]);
    });
}

/// Two of three replicas of the source do not send what is to be copied, one of them on the node that writes; nobody tells the client which.
#[test]
fn a_copy_asks_every_replica_of_the_source() {
    run(|rt| async move {
        for (which, writer) in [(0, 20), (1, 21)] {
            let fake = Fake::start(&rt, 1, 1).await;
            let mut config = fake.config();
            config.data_total = Duration::from_secs(3);
            (config.backoff_min, config.backoff_max) =
                (Duration::from_millis(1), Duration::from_millis(1));
            let client = Client::connect(&rt, config).await.expect("connects");
            let (file, source) = (open(&client).await, open_other(&client).await);
            let data = bytes(4096, 9);
            let id = ChunkId { volume: VolumeId(1), data: OTHER_DATA, index: 0 };
            fake.state.chunks.borrow_mut().insert(id, data.clone());
            let others = READS.into_iter().filter(|n| *n != writer).take(1 + which % 2);
            fake.state
                .dumb
                .borrow_mut()
                .extend([writer].into_iter().chain(others.take(1)).map(NodeId));
            let to = which as u64 * CHUNK;
            let copied = file.copy_from(&source, (0, to, 4096), to).await.expect("copied");
            assert!(!copied, "no holes");
            assert!(fake.content(7, to, 4096) == data);
            let asked = fake.calls(NodeId(writer), method::COPY_CHUNK);
            assert!(asked <= 3, "{asked} times");
        }
    });
}

/// Meta gives the space of a file back only if it is not told that nothing was sent.
#[test]
fn a_file_to_which_writes_failed_is_not_one_that_was_never_written_to() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        let file = open(&client).await;
        assert_eq!(file.len_written(), None);
        fake.fault(NodeId(21), method::WRITE, &[Fault::Refuse(Status::NoSpace)]);
        let sent = Buf::from_vec(bytes(2 * CHUNK as usize, 9));
        assert_eq!(file.write(0, sent).await.expect_err("full").status, Status::NoSpace);
        assert_ne!(fake.content(7, 0, CHUNK), [0; CHUNK as usize], "one piece is there");
        assert_eq!(file.len_written(), Some(0));
    });
}

/// What a mount hears.
#[derive(Default)]
struct Heard(Rc<Cell<u32>>, Rc<Cell<u32>>);

impl RecallHandler for Heard {
    fn recall(&self, _: Recall) -> BoxFuture<()> {
        self.0.set(self.0.get() + 1);
        let told = self.1.clone();
        Box::pin(async move { told.set(told.get() + 1) })
    }
    fn give_append(&self, _: InodeId, _: RequestId) -> BoxFuture<Result<()>> {
        Box::pin(async { Ok(()) })
    }
    fn in_use(&self, _: InodeId) -> bool {
        false
    }
}

/// A write is on its way for longer than the recall may take.
#[test]
fn a_mount_hears_of_a_truncate_also_if_writes_do_not_end() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let config = ClientConfig { write_attempt: Duration::from_secs(5), ..fake.config() };
        let client = Client::connect(&rt, config).await.expect("connects");
        let heard = Rc::new(Heard::default());
        client.on_recall(heard.clone());
        let file = open(&client).await;
        fake.fault(NodeId(20), method::WRITE, &[Fault::Silent]);
        rt.spawn_detached(async move { _ = file.write(0, Buf::from_vec(vec![1])).await });
        while fake.calls(NodeId(20), method::WRITE) == 0 {
            rt.sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(fake.try_recall(1).await.expect_err("on its way").status, Status::Busy);
        assert_eq!(heard.0.get(), 1);
        // And its kernel.
        rt.sleep(Duration::from_millis(5)).await;
        assert_eq!(heard.1.get(), 1);
    });
}

/// Meta has read what it answers to a renewal before the file was cut, and the answer comes after the recall.
#[test]
fn a_renewal_that_a_recall_overtook_brings_no_old_capability_back() {
    const LATE: Duration = Duration::from_millis(150);
    run(|rt| async move {
        for asked_since in [false, true] {
            let fake = Fake::start(&rt, 1, 1).await;
            fake.state.uncollected.set(true);
            let client = fake.client().await;
            let file = open(&client).await;
            fake.fault(NodeId(10), method::RENEW, &[Fault::AnswerLate(LATE)]);
            let renewing = file.clone();
            let renewal = rt.spawn(async move { renewing.renew().await });
            rt.sleep(LATE / 3).await;
            fake.cut().await;
            if asked_since {
                let q = OfInode { caller: Caller::default(), inode: InodeId(5) };
                file.update_attr(&client.getattr(q).await.expect("attributes").attr);
            }
            renewal.await.expect("answered");
            file.write(0, Buf::from_vec(vec![3])).await.expect("write");
            assert_eq!(fake.content(8, 0, 1), [3], "asked_since: {asked_since}");
            assert_eq!((file.data(), file.epoch()), (DataId(8), TruncateEpoch(1)));
            assert_eq!(file.len_written(), Some(1));
        }
    });
}

/// The file is cut anew whenever a writer has asked for a capability: it goes on asking.
#[test]
fn a_writer_whose_renewals_are_overtaken_again_and_again_has_the_newest_at_last() {
    const LATE: Duration = Duration::from_millis(90);
    const TIMES: u64 = 6;
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        fake.state.uncollected.set(true);
        let client = fake.client().await;
        let file = open(&client).await;
        fake.cut().await;
        fake.fault(NodeId(10), method::RENEW, &[const { Fault::AnswerLate(LATE) }; TIMES as usize]);
        let writer = file.clone();
        let write = rt.spawn(async move { writer.write(0, Buf::from_vec(vec![4])).await });
        for asked in 1..=TIMES {
            while fake.calls(NodeId(10), method::RENEW) < asked {
                rt.sleep(LATE / 20).await;
            }
            fake.cut().await;
        }
        write.await.expect("written");
        assert_eq!(file.epoch(), TruncateEpoch(1 + TIMES));
        assert_eq!(fake.content(7 + 1 + TIMES, 0, 1), [4]);
    });
}

#[test]
fn flushes_that_run_together_share() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        let file = open(&client).await;
        for node in READS {
            let late = Fault::Late(Duration::from_millis(100));
            fake.fault(NodeId(node), method::FLUSH_TARGETS, &[late]);
        }
        let first = {
            let file = file.clone();
            rt.spawn(async move { file.flush().await })
        };
        while fake.calls(NodeId(READS[0]), method::FLUSH_TARGETS) == 0 {
            rt.sleep(Duration::from_millis(1)).await;
        }
        let tasks: Vec<_> = (0..20)
            .map(|_| {
                let file = file.clone();
                rt.spawn(async move { file.flush().await })
            })
            .collect();
        for t in tasks {
            t.await.expect("flush");
        }
        first.await.expect("flush");
        let calls: u64 = READS.iter().map(|n| fake.calls(NodeId(*n), method::FLUSH_TARGETS)).sum();
        assert_eq!(calls, 6, "one that ran, and one for all who came meanwhile");
        let this = Some(vec![(VolumeId(1), DataId(7))]);
        assert_eq!(*fake.state.flushed.borrow(), vec![this; 6], "of this file alone");
    });
}

#[test]
fn a_flush_counts_only_if_every_serving_target_says_so() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        let file = open(&client).await;
        let calls = |method| READS.iter().map(|n| fake.calls(NodeId(*n), method)).sum::<u64>();
        let flush = method::FLUSH_TARGETS;
        // One that does not serve under that version any more: the chains that it has to do with are asked again.
        fake.fault(NodeId(21), flush, &[Fault::Refuse(Status::NoLease)]);
        file.flush().await.expect("flush");
        assert_eq!(calls(flush), 6);
        // A flush that failed is not one, and the application is told.
        fake.fault(NodeId(22), flush, &[Fault::Refuse(Status::AccessDenied)]);
        assert_eq!(file.flush().await.expect_err("failed").status, Status::AccessDenied);
        // Storages of a former release: the heads are asked.
        fake.fault(NodeId(20), flush, &[Fault::Refuse(Status::UnknownMethod)]);
        assert_eq!(calls(method::FLUSH), 0);
        file.flush().await.expect("flush");
        assert!(calls(method::FLUSH) > 0);
    });
}

#[test]
fn chunk_operations_for_meta() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        let file = open(&client).await;
        file.write(0, Buf::from_vec(bytes(5 * CHUNK as usize + 10, 5))).await.expect("write");
        let io = client.chunk_io();
        let extent =
            io.query_extent(&layout(DataId(7)), VolumeId(1), DataId(7)).await.expect("extent");
        assert_eq!((extent.len, extent.chunks), (5 * CHUNK + 10, 6));
        let capability = Capability { data: 7.into(), ..Capability::default() };
        let chunk = ChunkId { volume: VolumeId(1), data: DataId(7), index: 3 };
        io.truncate_chunk(&layout(DataId(7)), chunk, 100, &capability).await.expect("cut");
        let mut removed = 0;
        loop {
            let r = io
                .remove_data(&layout(DataId(7)), VolumeId(1), DataId(7), 4, 1, &capability)
                .await
                .expect("remove");
            removed += r.removed;
            if !r.more {
                break;
            }
        }
        assert_eq!(removed, 2);
        let extent =
            io.query_extent(&layout(DataId(7)), VolumeId(1), DataId(7)).await.expect("extent");
        assert_eq!((extent.len, extent.chunks), (3 * CHUNK + 100, 4));
        io.flush(&layout(DataId(7))).await.expect("flush");
    });
}
