//! Reads of what may not be told yet, against a cluster in memory.

use crate::fake::{CHUNK, Fake, Fault, open, read};
use glowfs_rt::Buf;
use glowfs_rt::real::run;
use glowfs_types::wire::method;
use glowfs_types::*;

/// Each refusal takes as long as a replica waits, so those behind the head are not all asked where the word of one does not come.
#[test]
fn what_is_pending_at_a_replica_is_asked_of_the_head_next() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        let file = open(&client).await;
        let calls = |node| fake.calls(node, method::READ);
        let mut behind = 0;
        for index in 0..12 {
            file.write(index * CHUNK, Buf::from_vec(vec![7; 4096])).await.expect("written");
            let [head, middle, tail] = [0, 1, 2].map(|i| NodeId(20 + (index + i) % 3));
            for node in [middle, tail] {
                fake.fault(node, method::READ, &[Fault::Refuse(Status::Pending)]);
            }
            let before = [head, middle, tail].map(calls);
            let (n, bytes) = read(&rt, &file, index * CHUNK, 4096).await.expect("read");
            assert_eq!((n, bytes), (4096, vec![7; 4096]));
            let after = [head, middle, tail].map(calls);
            let [head, others @ ..] = [0, 1, 2].map(|i| after[i] - before[i]);
            assert_eq!(head, 1, "chunk {index}: {others:?}");
            let others: u64 = others.iter().sum();
            assert!(others <= 1, "chunk {index}: {others} behind the head were asked");
            behind += others;
            // What was not asked for is no fault of the next one.
            fake.state.faults.borrow_mut().clear();
        }
        assert!(behind > 0, "no replica behind a head was asked");
    });
}

/// What is pending at the head waits for the others there: the tail has no version that they have to commit first.
#[test]
fn what_is_pending_at_the_head_is_not_asked_there_again_at_once() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        let file = open(&client).await;
        let mut first = 0;
        for index in 0..12 {
            file.write(index * CHUNK, Buf::from_vec(vec![7; 4096])).await.expect("written");
            let head = NodeId(20 + index % 3);
            fake.fault(head, method::READ, &[Fault::Refuse(Status::Pending)]);
            let before = fake.calls(head, method::READ);
            read(&rt, &file, index * CHUNK, 4096).await.expect("read");
            let asked = fake.calls(head, method::READ) - before;
            assert!(asked <= 1, "chunk {index}: the head was asked {asked} times");
            first += asked;
            fake.state.faults.borrow_mut().clear();
        }
        assert!(first > 0, "no head was asked first");
    });
}
