//! The network thread: it has the stores, answers everything in the order in which it was asked, and calls back.

use crate::faults::{Fault, strikes};
use crate::future::{Answer, Code, Future};
use crate::store::{Job, Range, ReadVersion, Store};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How late a slow answer is, and a commit that happens after it was said to be unknown.
const LATE: Duration = Duration::from_millis(4);

/// What is asked.
pub enum What {
    /// For its version.
    Version(ReadVersion),
    /// For a key at a version.
    Get(ReadVersion, Vec<u8>),
    /// For a range at a version.
    Range(ReadVersion, Range),
    /// To commit; the version goes there.
    Commit(Job, Arc<AtomicI64>),
}

/// A question to the database of a cluster file.
pub struct Question {
    /// The file.
    pub database: String,
    /// What is asked.
    pub what: What,
    /// Where the answer goes.
    pub future: Arc<Future>,
}

enum Message {
    Ask(Question),
    Cancel(Arc<Future>),
    Stop,
}

#[derive(Default)]
struct Network {
    sender: Option<Sender<Message>>,
    receiver: Option<Receiver<Message>>,
}

static NETWORK: Mutex<Network> = Mutex::new(Network { sender: None, receiver: None });

fn network() -> MutexGuard<'static, Network> {
    NETWORK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Once in the life of a process.
pub fn set_up() -> Code {
    let mut network = network();
    if network.sender.is_some() {
        // network_already_setup
        return 2009;
    }
    let (sender, receiver) = channel();
    *network = Network { sender: Some(sender), receiver: Some(receiver) };
    0
}

fn send(message: Message) -> Code {
    let sender = network().sender.clone();
    // network_not_setup; network_cannot_be_restarted, for it was stopped.
    sender.map_or(2008, |sender| if sender.send(message).is_ok() { 0 } else { 2025 })
}

/// Asks.
pub fn ask(question: Question) {
    let future = question.future.clone();
    let code = send(Message::Ask(question));
    if code != 0 {
        future.set(Err(code));
    }
}

/// Nobody waits for this any more. Sometimes whoever waited is called all the same, as by FoundationDB.
pub fn cancel(future: Arc<Future>) {
    send(Message::Cancel(future));
}

/// Ends [`run`].
pub fn stop() -> Code {
    send(Message::Stop)
}

/// Answers until it is stopped.
pub fn run() -> Code {
    let Some(receiver) = network().receiver.take() else { return 2025 };
    let mut stores = HashMap::new();
    let mut late: Vec<(Instant, Question, bool)> = Vec::new();
    let mut cancels = 0u32;
    loop {
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) = late.into_iter().partition(|(at, _, _)| *at <= now);
        late = later;
        for (_, question, answered) in due {
            answer(&mut stores, question, answered);
        }
        let next = late.iter().map(|(at, _, _)| *at).min();
        let wait = next.map_or(Duration::from_secs(1), |at| at.saturating_duration_since(now));
        match receiver.recv_timeout(wait) {
            Ok(Message::Ask(question)) => {
                if matches!(question.what, What::Commit(..)) && strikes(Fault::UnknownLate) {
                    question.future.set(Err(1021));
                    late.push((Instant::now() + LATE, question, true));
                } else if strikes(Fault::Slow) {
                    late.push((Instant::now() + LATE, question, false));
                } else {
                    answer(&mut stores, question, false);
                }
            }
            Ok(Message::Cancel(future)) => {
                cancels += 1;
                if cancels.is_multiple_of(2) {
                    // operation_cancelled
                    future.set(Err(1101));
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return 0,
        }
    }
}

fn answer(stores: &mut HashMap<String, Store>, question: Question, answered: bool) {
    let Question { database, what, future } = question;
    let store = stores.entry(database).or_insert_with(Store::new);
    let reads = matches!(what, What::Get(..) | What::Range(..));
    if reads && strikes(Fault::FutureVersion) {
        return future.set(Err(1009));
    }
    if (reads || matches!(what, What::Commit(..))) && !answered && strikes(Fault::TooOld) {
        return future.set(Err(1007));
    }
    match what {
        What::Version(version) => future.set(Ok(Answer::Number(store.read_version(&version)))),
        What::Get(version, key) => future.set(store.get(&version, key)),
        What::Range(version, range) => future.set(store.range(&version, range)),
        What::Commit(_, _) if !answered && strikes(Fault::Conflict) => future.set(Err(1020)),
        What::Commit(_, _) if !answered && strikes(Fault::UnknownNotDone) => future.set(Err(1021)),
        What::Commit(job, version) => {
            let result = store.commit(job).map(|at| {
                version.store(at, Ordering::SeqCst);
                Answer::Nothing
            });
            if answered || result.is_ok() && strikes(Fault::Silent) {
                return;
            }
            if result.is_ok() && strikes(Fault::UnknownDone) {
                return future.set(Err(1021));
            }
            future.set(result);
        }
    }
}
