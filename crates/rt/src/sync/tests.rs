use super::*;
use crate::real::run;
use std::cell::Cell;
use std::time::Duration;

#[test]
fn a_channel_is_bounded_and_ordered() {
    run(|rt| async move {
        let (tx, mut rx) = channel(2);
        let sent = Rc::new(Cell::new(0));
        let count = sent.clone();
        rt.spawn_detached(async move {
            for i in 0..10 {
                tx.send(i).await.expect("a receiver");
                count.set(i + 1);
            }
        });
        rt.sleep(Duration::from_millis(1)).await;
        assert_eq!(sent.get(), 2);
        for i in 0..10 {
            assert_eq!(rx.recv().await, Some(i));
        }
        assert_eq!(rx.recv().await, None);
    });
}

#[test]
fn senders_learn_that_the_receiver_is_gone() {
    run(|rt| async move {
        let (tx, rx) = channel(1);
        tx.try_send(1).expect("room");
        let waiting = rt.spawn(async move { tx.send(2).await });
        rt.yield_now().await;
        drop(rx);
        assert_eq!(waiting.await, Err(Closed));
        let (tx, rx) = oneshot::<u32>();
        drop(tx);
        assert_eq!(rx.await, Err(Closed));
        let (tx, rx) = oneshot();
        drop(rx);
        assert_eq!(tx.send(5), Err(5));
    });
}

#[test]
fn a_dropped_waiter_passes_its_turn_on() {
    run(|rt| async move {
        let permits = Rc::new(Semaphore::new(1));
        let held = permits.try_acquire(1).expect("free");
        let mut first = Box::pin(permits.acquire(1));
        assert!(rt.timeout(Duration::from_millis(1), &mut first).await.is_err());
        let again = permits.clone();
        let second = rt.spawn(async move { drop(again.acquire(1).await) });
        rt.yield_now().await;
        drop(held);
        // Granted to the first, which goes away without it.
        drop(first);
        second.await;
        assert_eq!(permits.free(), 1);

        let (tx, mut rx) = channel(1);
        tx.try_send(0).expect("room");
        let mut first = Box::pin(tx.send(1));
        assert!(rt.timeout(Duration::from_millis(1), &mut first).await.is_err());
        let tx2 = tx.clone();
        let second = rt.spawn(async move { tx2.send(2).await });
        rt.yield_now().await;
        assert_eq!(rx.recv().await, Some(0));
        drop(first);
        assert_eq!(rx.recv().await, Some(2));
        assert_eq!(second.await, Ok(()));
    });
}

#[test]
fn a_notification_between_call_and_poll_counts() {
    run(|rt| async move {
        let notify = Rc::new(Notify::new());
        let wait = notify.wait();
        notify.notify_all();
        wait.await;
        let late = notify.wait();
        assert!(rt.timeout(Duration::from_millis(1), late).await.is_err());
    });
}
