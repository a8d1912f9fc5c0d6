use super::Signal;
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// A task: how often it was woken.
#[derive(Default)]
struct Task(AtomicU32);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_wait_ends_with_what_it_waits_for() {
    let (task, signal, there) = (Arc::new(Task::default()), Signal::default(), Cell::new(None));
    let waker = Waker::from(task.clone());
    let mut cx = Context::from_waker(&waker);
    let mut wait = pin!(signal.wait(|| there.get()));
    assert!(wait.as_mut().poll(&mut cx).is_pending());
    signal.wake();
    assert_eq!(task.0.load(Ordering::Relaxed), 1);
    assert!(wait.as_mut().poll(&mut cx).is_pending(), "something else changed");
    there.set(Some(7));
    signal.wake();
    assert_eq!(task.0.load(Ordering::Relaxed), 2);
    assert_eq!(wait.as_mut().poll(&mut cx), Poll::Ready(7));
}

#[test]
fn a_wait_that_is_given_up_leaves_nothing_behind() {
    let (task, signal) = (Arc::new(Task::default()), Signal::default());
    for _ in 0..3 {
        let waker = Waker::from(task.clone());
        let mut wait = Box::pin(signal.wait(|| None::<()>));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert_eq!(Arc::strong_count(&task), 1, "the task is kept by nobody");
    signal.wake();
    assert_eq!(task.0.load(Ordering::Relaxed), 0, "nobody waits");
}
