//! What reads and writes that pause hold meanwhile: against a cluster in memory, over real connections.

use crate::fake::{CHUNK, Fake, Fault, bytes, open, read};
use glowfs_client::{Client, ClientConfig};
use glowfs_rt::real::run;
use glowfs_rt::{Buf, Duration};
use glowfs_types::routing::{ChainInfo, PublicState};
use glowfs_types::wire::method;
use glowfs_types::*;
use std::rc::Rc;

/// Nobody serves in the first chain any more.
fn first_chain_is_away(fake: &Fake) {
    let mut info = fake.state.routing.borrow_mut();
    info.version = info.version.next();
    let chain = info.chains.get_mut(&ChainId(1)).expect("the chain");
    chain.version = chain.version.next();
    chain.members.iter_mut().for_each(|m| m.state = PublicState::Offline);
    drop(info);
    fake.state.changed.notify_all();
}

/// As many bytes as may be in flight are asked of a chain that is away, or are to go there. Other chains have nothing to do with that.
#[test]
fn one_chain_that_is_away_holds_no_other_up() {
    run(|rt| async move {
        for reads in [true, false] {
            let fake = Fake::start(&rt, 1, 1).await;
            let config = ClientConfig { inflight_bytes: 2 * CHUNK as usize, ..fake.config() };
            let client = Client::connect(&rt, config).await.expect("connects");
            let file = open(&client).await;
            file.write(0, Buf::from_vec(bytes(3 * CHUNK as usize, 1))).await.expect("write");
            first_chain_is_away(&fake);
            let known = client.routing().version;
            client.refresh_routing(known).await.expect("fresh");
            // The last one of two chunks, of which one is away.
            for (index, chunks) in [(0, 1), (3, 1), (6, 2)] {
                let (f, file) = (rt.clone(), Rc::clone(&file));
                let (at, len) = (index * CHUNK, chunks * CHUNK as usize);
                rt.spawn_detached(async move {
                    if reads {
                        _ = read(&f, &file, at, len).await;
                    } else {
                        _ = file.write(at, Buf::from_vec(bytes(len, 2))).await;
                    }
                });
            }
            rt.sleep(Duration::from_millis(300)).await;
            let began = rt.now();
            let (_, got) = read(&rt, &file, CHUNK, CHUNK as usize).await.expect("read");
            assert_eq!(got, bytes(3 * CHUNK as usize, 1)[CHUNK as usize..2 * CHUNK as usize]);
            let sent = Buf::from_vec(bytes(CHUNK as usize, 3));
            file.write(2 * CHUNK, sent).await.expect("write");
            let took = rt.now().since(began);
            assert!(took < Duration::from_secs(1), "reads: {reads}: it took {took:?}");
        }
    });
}

/// Many writes to a chain that is away, more than bytes may be in flight, and as many as there are channels: when it is back, all of them end.
#[test]
fn writes_that_wait_for_room_and_for_channels_end_when_the_chain_is_back() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let inflight_bytes = 2 * CHUNK as usize;
        let config = ClientConfig { inflight_bytes, channels: 4, ..fake.config() };
        let client = Client::connect(&rt, config).await.expect("connects");
        let file = open(&client).await;
        file.write(0, Buf::from_vec(vec![1])).await.expect("write");
        let before = fake.state.routing.borrow().chains[&ChainId(1)].clone();
        first_chain_is_away(&fake);
        let writes: Vec<_> = (0..12)
            .map(|i| {
                let file = Rc::clone(&file);
                let sent = Buf::from_vec(bytes(CHUNK as usize, i as u8));
                rt.spawn(async move { file.write(i * CHUNK, sent).await })
            })
            .collect();
        rt.sleep(Duration::from_millis(300)).await;
        // Cut meanwhile: each takes another channel.
        fake.shorten(0).await;
        rt.sleep(Duration::from_millis(300)).await;
        {
            let mut info = fake.state.routing.borrow_mut();
            info.version = info.version.next();
            let version = info.chains[&ChainId(1)].version.next();
            info.chains.insert(ChainId(1), ChainInfo { version, ..before });
        }
        fake.state.changed.notify_all();
        for write in writes {
            let done = rt.timeout(Duration::from_secs(8), write).await;
            done.expect("in time").expect("written");
        }
    });
}

/// A channel on which nothing can be anywhere is not given up because the file was cut; and what was said of the former identity is not held against the new one.
#[test]
fn a_write_that_was_refused_before_a_truncate_keeps_its_channel() {
    run(|rt| async move {
        for (before, after, channels) in [
            (Fault::Refuse(Status::Overloaded), None, vec![1]),
            (Fault::DoAndCut, Some(Fault::Refuse(Status::NoSpace)), vec![1, 2]),
        ] {
            let fake = Fake::start(&rt, 1, 1).await;
            let pause = Duration::from_millis(600);
            let config = ClientConfig { backoff_min: pause, backoff_max: pause, ..fake.config() };
            let client = Client::connect(&rt, config).await.expect("connects");
            let file = open(&client).await;
            fake.fault(NodeId(20), method::WRITE, &[before]);
            let writer = Rc::clone(&file);
            let write = rt.spawn(async move { writer.write(0, Buf::from_vec(vec![1])).await });
            while fake.calls(NodeId(20), method::WRITE) == 0 {
                rt.sleep(Duration::from_millis(5)).await;
            }
            rt.sleep(Duration::from_millis(50)).await;
            fake.shorten(0).await;
            let refused = after.is_some();
            after
                .iter()
                .for_each(|f| fake.fault(NodeId(20), method::WRITE, std::slice::from_ref(f)));
            assert_eq!(write.await.is_err(), refused);
            file.write(0, Buf::from_vec(vec![2])).await.expect("written");
            let stored = fake.state.channels.borrow();
            let used: Vec<u64> = stored.keys().map(|(_, channel)| *channel).collect();
            assert_eq!(used, channels);
        }
    });
}

/// A truncate by another client waits for attempts under the old capability, and not until the chain of a search is back.
#[test]
fn a_search_for_holes_that_pauses_holds_no_truncate_up() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        let file = open(&client).await;
        file.write(0, Buf::from_vec(vec![1])).await.expect("write");
        first_chain_is_away(&fake);
        let known = client.routing().version;
        client.refresh_routing(known).await.expect("fresh");
        let searching = Rc::clone(&file);
        rt.spawn_detached(async move { _ = searching.seek(0, CHUNK, true).await });
        rt.sleep(Duration::from_millis(100)).await;
        fake.state.epoch.set(1);
        fake.try_recall(1).await.expect("nothing is on its way");
    });
}
