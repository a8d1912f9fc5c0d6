//! [`Fair`]: the thread's time, for the calls of all who ask.
//!
//! Everything of this process runs on one thread: calls, the engine, and the leases of mgmtd and of this service, which end within a second if they are not
//! renewed. Guarantees: in one turn of the thread nobody's calls run for longer than [`SLICE`] and one poll; what they took beyond it they sit out in the turns that
//! follow, in the order in which they came. Must never: hold a call up for those of others who ask.

use crate::state::Asker;
use glowfs_rt::{Duration, Instant, Rt};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// What the calls of one who asks may run in a turn: a turn that does nothing else costs some thousandth of it.
const SLICE: Duration = Duration::from_millis(2);
/// Accounts that are kept without a look at which are still wanted, at least.
const ACCOUNTS: usize = 64;

/// See the module.
#[derive(Clone)]
pub struct Fair(Rc<All>);

struct All {
    rt: Rt,
    /// When the present turn began, and its number.
    turn: Cell<(Instant, u64)>,
    accounts: RefCell<BTreeMap<Asker, Account>>,
    /// Beyond so many accounts those that nobody wants any more are dropped.
    most: Cell<usize>,
    /// Somebody looks for the next turn.
    watched: Cell<bool>,
}

/// The calls of one who asks.
#[derive(Default)]
struct Account {
    calls: usize,
    /// The turn in which they have run last,
    turn: u64,
    /// for how long,
    used: Duration,
    /// and from which on they may run again.
    again: u64,
    /// The numbers of those that wait, in their order.
    waiting: VecDeque<(u64, Waker)>,
    next: u64,
}

impl Account {
    /// Whether the call that waits under this number, or has not waited yet, may run now.
    fn may_run(&mut self, turn: u64, number: Option<u64>) -> bool {
        if self.again > turn {
            return false;
        }
        match (self.waiting.front(), number) {
            (None, _) => true,
            (Some((first, _)), Some(number)) if *first == number => {
                self.waiting.pop_front();
                true
            }
            _ => false,
        }
    }
    fn wait(&mut self, number: &mut Option<u64>, waker: &Waker) {
        let place = self.waiting.iter_mut().find(|(n, _)| Some(*n) == *number);
        if let Some((_, before)) = place {
            before.clone_from(waker);
            return;
        }
        self.next += 1;
        *number = Some(self.next);
        self.waiting.push_back((self.next, waker.clone()));
    }
    fn used(&mut self, turn: u64, time: Duration) {
        if std::mem::replace(&mut self.turn, turn) != turn {
            self.used = Duration::ZERO;
        }
        self.used += time;
        if self.used >= SLICE {
            let turns = self.used.as_nanos() / SLICE.as_nanos();
            self.again = turn + u64::try_from(turns).unwrap_or(u64::MAX >> 1);
            self.used = Duration::ZERO;
        }
    }
    fn wake_first(&self, turn: u64) {
        if let Some((_, waker)) = self.waiting.front().filter(|_| self.again <= turn) {
            waker.wake_by_ref();
        }
    }
}

/// A call; leaves its account when dropped.
struct Call<'a> {
    all: &'a All,
    who: Asker,
    number: Option<u64>,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let turn = self.all.turn();
        if let Some(account) = self.all.accounts.borrow_mut().get_mut(&self.who) {
            account.calls -= 1;
            account.waiting.retain(|(n, _)| Some(*n) != self.number);
            account.wake_first(turn);
        }
    }
}

impl Fair {
    /// Nobody has run yet.
    pub fn new(rt: &Rt) -> Self {
        Self(Rc::new(All {
            rt: rt.clone(),
            turn: Cell::new((rt.turn_began(), 1)),
            accounts: RefCell::default(),
            most: Cell::new(ACCOUNTS),
            watched: Cell::new(false),
        }))
    }

    /// Does `work`, with those of the others that this one asks for.
    pub async fn run<T>(&self, who: Asker, work: impl Future<Output = T>) -> T {
        let all = &*self.0;
        all.enter(who);
        let mut call = Call { all, who, number: None };
        let mut work = pin!(work);
        poll_fn(|cx| {
            if !all.may_run(&mut call, cx) {
                self.watch();
                return Poll::Pending;
            }
            let began = all.rt.now();
            let done = work.as_mut().poll(cx);
            all.ran(who, all.rt.now().since(began));
            done
        })
        .await
    }

    /// Wakes those who wait, in the turn in which they may run again.
    fn watch(&self) {
        if self.0.watched.replace(true) {
            return;
        }
        let all = self.0.clone();
        self.0.rt.spawn_detached(async move {
            let mut seen = all.turn();
            loop {
                all.rt.yield_now().await;
                let turn = all.turn();
                if std::mem::replace(&mut seen, turn) == turn {
                    continue;
                }
                let accounts = all.accounts.borrow();
                accounts.values().for_each(|a| a.wake_first(turn));
                if accounts.values().all(|a| a.waiting.is_empty()) {
                    all.watched.set(false);
                    return;
                }
            }
        });
    }
}

impl All {
    /// The number of the present turn.
    fn turn(&self) -> u64 {
        let ((began, number), now) = (self.turn.get(), self.rt.turn_began());
        if began != now {
            self.turn.set((now, number + 1));
        }
        self.turn.get().1
    }

    fn enter(&self, who: Asker) {
        let mut accounts = self.accounts.borrow_mut();
        if accounts.len() >= self.most.get() {
            let turn = self.turn();
            accounts.retain(|_, a| a.calls > 0 || a.again > turn || a.turn == turn);
            self.most.set((2 * accounts.len()).max(ACCOUNTS));
        }
        accounts.entry(who).or_default().calls += 1;
    }

    fn may_run(&self, call: &mut Call<'_>, cx: &Context<'_>) -> bool {
        let turn = self.turn();
        let mut accounts = self.accounts.borrow_mut();
        let account = accounts.entry(call.who).or_default();
        if account.may_run(turn, call.number) {
            call.number = None;
            return true;
        }
        account.wait(&mut call.number, cx.waker());
        false
    }

    fn ran(&self, who: Asker, time: Duration) {
        let turn = self.turn();
        if let Some(account) = self.accounts.borrow_mut().get_mut(&who) {
            account.used(turn, time);
            account.wake_first(turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_rt::real;
    use glowfs_types::UserId;
    use std::collections::BTreeSet;

    fn burn(rt: &Rt, time: Duration) {
        let end = rt.now() + time;
        while rt.now() < end {
            std::hint::spin_loop();
        }
    }

    /// Calls of one user that are costly each ran all in one turn: nobody's lease was renewed meanwhile.
    #[test]
    fn costly_calls_of_one_user_leave_turns_to_others() {
        const CALLS: usize = 40;
        real::run(|rt| async move {
            let fair = Fair::new(&rt);
            let turns: Rc<RefCell<BTreeSet<Instant>>> = Rc::default();
            let order: Rc<RefCell<Vec<usize>>> = Rc::default();
            let costly = (0..CALLS).map(|n| {
                let (rt, fair, turns, order) =
                    (rt.clone(), fair.clone(), turns.clone(), order.clone());
                async move {
                    let work = async {
                        burn(&rt, SLICE);
                        order.borrow_mut().push(n);
                        // What costs much lets others run in between; and waits its turn again.
                        rt.yield_now().await;
                        burn(&rt, SLICE);
                        turns.borrow_mut().insert(rt.turn_began());
                    };
                    fair.run(Asker::User(UserId(5)), work).await;
                }
            });
            let mut tasks: Vec<_> = costly.map(|c| rt.spawn(c)).collect();
            rt.yield_now().await;
            // Another one is not held up by them.
            let (began, fair2) = (rt.turn_began(), fair.clone());
            fair2.run(Asker::User(UserId(6)), async {}).await;
            assert_eq!(rt.turn_began(), began);
            for task in tasks.drain(..) {
                rt.timeout(Duration::from_secs(20), task).await.expect("it goes on");
            }
            assert!(turns.borrow().len() >= CALLS, "{} turns", turns.borrow().len());
            assert_eq!(*order.borrow(), (0..CALLS).collect::<Vec<_>>(), "who came first");
            assert!(fair.0.accounts.borrow().values().all(|a| a.calls == 0));
        });
    }

    /// What a call took at once is sat out by those that follow, also if it has ended.
    #[test]
    fn a_long_poll_is_sat_out() {
        let mut account = Account::default();
        account.used(7, SLICE * 5 / 2);
        assert!(!account.may_run(8, None) && account.may_run(9, None));
        account.used(9, SLICE / 2);
        assert!(account.may_run(9, None));
        account.used(9, SLICE / 2);
        assert!(!account.may_run(9, None) && account.may_run(10, None));
        // A new turn, a new slice.
        account.used(10, SLICE * 3 / 4);
        account.used(11, SLICE * 3 / 4);
        assert!(account.may_run(11, None));
    }

    /// An account is there for as long as it is wanted, and no longer.
    #[test]
    fn accounts_do_not_stay() {
        real::run(|rt| async move {
            let fair = Fair::new(&rt);
            for user in 0..1000 {
                fair.run(Asker::User(UserId(user)), async {}).await;
                rt.sleep(Duration::from_micros(10)).await;
            }
            assert!(fair.0.accounts.borrow().len() <= 2 * ACCOUNTS);
        });
    }
}
