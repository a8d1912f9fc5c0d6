//! Reads of single keys: while some questions are under way, the reads that come go together in the next one.
//!
//! Each names its version, so it does not matter which of them go together. If a question of several reads is refused for what may be the fault of one of
//! them, each is asked on its own, until etcd does not answer or is too busy.

use super::api::{self, Op, Range, Txn, TxnAnswer};
use super::commit::{READ_KEYS_MAX, Space};
use super::members::Members;
use super::metrics::Metrics;
use crate::{Key, Value, Version};
use glowfs_rt::Rt;
use glowfs_rt::sync::{OneSender, join_all, oneshot};
use glowfs_types::{Error, Result, Status};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Questions under way; reads that come meanwhile wait for one of them to be answered. More than one, so that a member that hangs does not stop all.
const QUESTIONS_MAX: usize = 4;
/// Reads that wait; more are refused with `Overloaded`.
const WAITING_MAX: usize = 4096;

/// Keys as of a version, at most [`READ_KEYS_MAX`], and who asks.
struct Ask {
    version: Version,
    keys: Vec<Key>,
    reply: OneSender<Result<Vec<Option<Value>>>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Ask>,
    under_way: usize,
}

/// See the module.
pub struct Reads {
    rt: Rt,
    members: Rc<Members>,
    space: Rc<Space>,
    metrics: Rc<Metrics>,
    state: RefCell<State>,
}

impl Reads {
    /// None yet.
    pub fn new(
        rt: &Rt,
        (members, space): (Rc<Members>, Rc<Space>),
        metrics: Rc<Metrics>,
    ) -> Rc<Self> {
        Rc::new(Self { rt: rt.clone(), members, space, metrics, state: RefCell::default() })
    }

    /// The values of `keys` as of a version.
    pub async fn get(
        self: &Rc<Self>,
        version: Version,
        keys: Vec<Key>,
    ) -> Result<Vec<Option<Value>>> {
        let mut answers = Vec::with_capacity(keys.len().div_ceil(READ_KEYS_MAX));
        for some in keys.chunks(READ_KEYS_MAX) {
            let (reply, answer) = oneshot();
            answers.push(answer);
            let mut state = self.state.borrow_mut();
            if state.waiting.len() >= WAITING_MAX {
                return Err(Error::new(Status::Overloaded, "too many reads wait for etcd; retry"));
            }
            state.waiting.push_back(Ask { version, keys: some.to_vec(), reply });
            if state.under_way < QUESTIONS_MAX {
                state.under_way += 1;
                let this = self.clone();
                self.rt.spawn_detached(async move { this.ask_all().await });
            }
        }
        let mut values = Vec::with_capacity(keys.len());
        for answer in join_all(answers).await {
            let dropped = |_| {
                Err(Error::new(Status::Internal, "a read of etcd was dropped without an answer"))
            };
            values.append(&mut answer.unwrap_or_else(dropped)?);
        }
        Ok(values)
    }

    /// Asks for what waits, until nothing does.
    async fn ask_all(&self) {
        loop {
            let together = self.take();
            if together.is_empty() {
                self.state.borrow_mut().under_way -= 1;
                return;
            }
            match self.ask(&together).await {
                Ok(answers) => answer(together, answers),
                Err(e) if together.len() > 1 && is_of_one(e.status) => {
                    one_by_one(together, async |one| self.ask(std::slice::from_ref(one)).await)
                        .await;
                }
                Err(e) => together.into_iter().for_each(|ask| {
                    let _ = ask.reply.send(Err(e.clone()));
                }),
            }
        }
    }

    fn take(&self) -> Vec<Ask> {
        let (mut state, mut together, mut keys) = (self.state.borrow_mut(), Vec::new(), 0);
        let fits = |ask: &Ask, keys: usize| keys == 0 || keys + ask.keys.len() <= READ_KEYS_MAX;
        while let Some(ask) = state.waiting.pop_front_if(|ask| fits(ask, keys)) {
            // Whoever asked may have gone.
            if !ask.reply.is_closed() {
                keys += ask.keys.len();
                together.push(ask);
            }
        }
        together
    }

    /// One question for all of them: the values of each. What several ask for is asked for once.
    async fn ask(&self, together: &[Ask]) -> Result<Vec<Vec<Option<Value>>>> {
        self.metrics.reads.inc();
        let mut places = BTreeMap::new();
        let mut asked = Vec::new();
        for ask in together {
            for key in &ask.keys {
                places.entry((ask.version, key)).or_insert_with(|| {
                    asked.push((ask.version, key));
                    asked.len() - 1
                });
            }
        }
        let question = async |local| {
            let range = |(version, key): &(Version, &Key)| {
                let key = self.space.full(key);
                Op::Range(Range { key, version: *version, local, ..Range::default() })
            };
            let mut text = String::new();
            Txn { then: asked.iter().map(range).collect(), ..Txn::default() }.json(&mut text);
            self.members.ask(api::TXN, &text).await
        };
        // From whichever member is asked, if it has these versions, else by way of the leader.
        let body = match question(true).await {
            Err(e) if e.status == Status::OutOfRange => question(false).await?,
            other => other?,
        };
        let bad = |e: &str| Error::new(Status::BadMessage, e);
        let answer: TxnAnswer = api::parse(&body).map_err(|e| bad(&e))?;
        if answer.responses.len() != asked.len() {
            return Err(bad("etcd: wrong number of answers"));
        }
        let value = |response: api::OpAnswer| {
            response.response_range.and_then(|r| r.kvs.into_iter().next()).map(|kv| kv.value.0)
        };
        let values: Vec<Option<Value>> = answer.responses.into_iter().map(value).collect();
        let of = |ask: &Ask| {
            let place = |key| places.get(&(ask.version, key)).and_then(|at| values[*at].clone());
            ask.keys.iter().map(place).collect()
        };
        Ok(together.iter().map(of).collect())
    }
}

fn answer(together: Vec<Ask>, answers: Vec<Vec<Option<Value>>>) {
    for (ask, values) in together.into_iter().zip(answers) {
        let _ = ask.reply.send(Ok(values));
    }
}

/// Each is asked on its own. What is no fault of one read is the answer to all that come after it: nobody is to wait for etcd once for each of them.
async fn one_by_one(
    together: Vec<Ask>,
    ask: impl AsyncFn(&Ask) -> Result<Vec<Vec<Option<Value>>>>,
) {
    let mut fault: Option<Error> = None;
    for one in together {
        let result = match &fault {
            Some(e) => Err(e.clone()),
            None => ask(&one).await.map(|mut all| all.pop().unwrap_or_default()),
        };
        if let Err(e) = &result
            && !is_of_one(e.status)
        {
            fault = Some(e.clone());
        }
        let _ = one.reply.send(result);
    }
}

/// Whether an error can be the fault of one read among several: a version that is gone or not there yet, values that are too large together.
fn is_of_one(status: Status) -> bool {
    matches!(status, Status::TooOld | Status::OutOfRange | Status::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_rt::real;
    use std::cell::Cell;

    /// The answers to eight reads, each asked on its own, and how many were; the fourth fails.
    async fn answers(status: Status) -> (Vec<Result<Vec<Option<Value>>>>, u64) {
        let (mut together, mut replies) = (Vec::new(), Vec::new());
        for version in 0..8 {
            let (reply, answer) = oneshot();
            together.push(Ask { version, keys: vec![b"k".to_vec()], reply });
            replies.push(answer);
        }
        let asked = Cell::new(0);
        let ask = async |one: &Ask| {
            asked.set(asked.get() + 1);
            match one.version {
                3 => Err(Error::new(status, "no")),
                _ => Ok(vec![vec![Some(b"v".to_vec())]]),
            }
        };
        one_by_one(together, ask).await;
        let all = join_all(replies).await.into_iter().map(|a| a.expect("an answer"));
        (all.collect(), asked.get())
    }

    #[test]
    fn one_that_is_refused_leaves_the_others_and_one_that_is_not_answered_ends_it() {
        real::run(|_| async move {
            for status in [Status::TooOld, Status::OutOfRange, Status::TooLarge] {
                let (all, asked) = answers(status).await;
                assert_eq!(asked, 8);
                assert!((0..8).all(|n| all[n].is_ok() == (n != 3)), "{status}");
            }
            for status in [Status::Disconnected, Status::TimedOut, Status::Overloaded] {
                let (all, asked) = answers(status).await;
                assert_eq!(asked, 4, "{status}: nobody is asked any more");
                assert!((0..8).all(|n| all[n].is_ok() == (n < 3)), "{status}");
            }
        });
    }
}
