//! The members of the etcd cluster: pooled connections, time-outs, and going on with another member.
//!
//! Guarantees: a request that may be repeated is tried at every member until one answers or the bound is over; one that may not
//! ([`Members::once`]) is sent at most once, and its failure says whether it may have had an effect.

use super::api::{self, Refusal};
use super::http::{self, Answer, Bad};
use glowfs_rt::sync::Semaphore;
use glowfs_rt::{Address, Duration, Instant, Rt, Stream};
use glowfs_types::{Error, Result, Status};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The first time-out of an attempt. It doubles with each round over the members: a dead one is left soon, a slow cluster still answers.
const ATTEMPT_MIN: Duration = Duration::from_millis(400);
/// The greatest time-out of an attempt.
const ATTEMPT_MAX: Duration = Duration::from_secs(3);
/// How long a repeatable request is tried.
const REPEAT_BOUND: Duration = Duration::from_secs(6);
/// The pause after a round in which every member failed.
const ROUND_PAUSE: Duration = Duration::from_millis(50);
/// How long a member that failed is asked last.
const AVOID: Duration = Duration::from_secs(2);
/// Calls in work at a time; more wait.
const CALLS_MAX: usize = 64;
/// Idle connections kept to one member.
const IDLE_MAX: usize = 16;

/// Why a request has no result.
#[derive(Clone, Debug)]
pub enum Failure {
    /// It was not sent.
    NotSent(String),
    /// It was sent; whether it had an effect is not known.
    Unknown(String),
    /// etcd refused it: no effect.
    Refused(Error),
}

struct Member {
    name: String,
    address: Address,
    idle: RefCell<Vec<Stream>>,
    avoid_until: Cell<Instant>,
}

/// See the module.
pub struct Members {
    rt: Rt,
    list: Vec<Rc<Member>>,
    preferred: Cell<usize>,
    calls: Semaphore,
}

impl Members {
    /// The members at `endpoints`: `http://HOST:PORT`, `etcd://HOST:PORT` or `HOST:PORT`.
    pub fn new(rt: &Rt, endpoints: &[String]) -> Result<Self> {
        if endpoints.is_empty() {
            return Err(Error::new(Status::InvalidArgument, "no etcd endpoint is named"));
        }
        let list = endpoints.iter().map(|e| member(e)).collect::<Result<Vec<_>>>()?;
        // Services spread over the members.
        let preferred = Cell::new(rt.random_below(list.len() as u64) as usize);
        Ok(Self { rt: rt.clone(), list, preferred, calls: Semaphore::new(CALLS_MAX) })
    }

    /// The endpoints, for messages.
    pub fn names(&self) -> String {
        let names: Vec<_> = self.list.iter().map(|m| m.name.as_str()).collect();
        names.join(", ")
    }

    /// Asks until somebody answers. Only for what may be repeated.
    pub async fn ask(&self, path: &str, body: &str) -> Result<Vec<u8>> {
        let _permit = self.calls.acquire(1).await;
        let end = self.rt.now() + REPEAT_BOUND;
        let mut bound = ATTEMPT_MIN;
        loop {
            for _ in 0..self.list.len() {
                let m = self.pick();
                let last = match self.attempt(&m, path, body, bound).await {
                    Ok(answer) => return Ok(answer),
                    Err(Failure::Refused(e)) => return Err(e),
                    Err(Failure::NotSent(e) | Failure::Unknown(e)) => e,
                };
                if self.rt.now() >= end {
                    return Err(Error::new(Status::Disconnected, self.silent(&last)));
                }
            }
            bound = (bound * 2).min(ATTEMPT_MAX);
            self.rt.sleep(ROUND_PAUSE).await;
        }
    }

    /// Sends a request to one member that takes it, at most once.
    pub async fn once(&self, path: &str, body: &str, bound: Duration) -> Result<Vec<u8>, Failure> {
        let _permit = self.calls.acquire(1).await;
        let mut last = String::new();
        for _ in 0..self.list.len() {
            let m = self.pick();
            match self.attempt(&m, path, body, bound).await {
                Err(Failure::NotSent(e)) => last = e,
                other => return other,
            }
        }
        Err(Failure::NotSent(self.silent(&last)))
    }

    /// What to say when no member answers.
    pub fn silent(&self, last: &str) -> String {
        format!(
            "etcd ({}) does not answer, or has lost its majority: {last}; start its members again",
            self.names()
        )
    }

    /// The member to ask now: the preferred one, or the next that has not failed lately.
    fn pick(&self) -> Rc<Member> {
        let (n, now) = (self.list.len(), self.rt.now());
        let from = self.preferred.get();
        let order = (0..n).map(|i| (from + i) % n);
        let fresh = order.clone().find(|i| self.list[*i].avoid_until.get() <= now);
        let at = fresh.or_else(|| order.min_by_key(|i| self.list[*i].avoid_until.get()));
        let at = at.unwrap_or(0);
        self.preferred.set(at);
        self.list[at].clone()
    }

    async fn attempt(
        &self,
        m: &Rc<Member>,
        path: &str,
        body: &str,
        bound: Duration,
    ) -> Result<Vec<u8>, Failure> {
        let sent = Cell::new(false);
        let result = match self.rt.timeout(bound, exchange(&self.rt, m, path, body, &sent)).await {
            Ok(Ok(answer)) => read(m, answer),
            Ok(Err(e)) => Err(Failure::Unknown(e)),
            Err(_) => Err(Failure::Unknown(format!("no answer within {bound:?}"))),
        };
        let failed = |e: String| {
            m.idle.borrow_mut().clear();
            m.avoid_until.set(self.rt.now() + AVOID);
            tracing::debug!(member = m.name, error = e, "etcd member failed");
            format!("{}: {e}", m.name)
        };
        match result {
            Err(Failure::Unknown(e)) if !sent.get() => Err(Failure::NotSent(failed(e))),
            Err(Failure::Unknown(e)) => Err(Failure::Unknown(failed(e))),
            Err(Failure::NotSent(e)) => Err(Failure::NotSent(failed(e))),
            other => other,
        }
    }
}

fn member(endpoint: &str) -> Result<Rc<Member>> {
    let bad = |why: String| {
        let what = format!("etcd endpoint «{endpoint}»: {why}");
        Err(Error::new(Status::InvalidArgument, what))
    };
    if endpoint.starts_with("https://") {
        return bad("TLS is not supported yet; use http:// on a private network".into());
    }
    let host = endpoint.strip_prefix("http://").or(endpoint.strip_prefix("etcd://"));
    let host = host.unwrap_or(endpoint).trim_end_matches('/');
    match host.parse::<Address>() {
        Ok(address @ Address::Tcp(_)) => Ok(Rc::new(Member {
            name: host.to_owned(),
            address,
            idle: RefCell::default(),
            avoid_until: Cell::default(),
        })),
        Ok(Address::Unix(_)) => bad("write http://HOST:PORT".into()),
        Err(_) => bad("this is no host and port; write http://HOST:PORT".into()),
    }
}

async fn exchange(
    rt: &Rt,
    m: &Rc<Member>,
    path: &str,
    body: &str,
    sent: &Cell<bool>,
) -> Result<Answer, String> {
    let idle = m.idle.borrow_mut().pop();
    let stream = match idle {
        Some(stream) => stream,
        None => rt.connect(&m.address).await.map_err(|e| format!("connecting: {e}"))?,
    };
    match http::post(&stream, &m.name, path, body, || sent.set(true)).await {
        Ok(Ok(answer)) => {
            let mut idle = m.idle.borrow_mut();
            if answer.keep && idle.len() < IDLE_MAX {
                idle.push(stream);
            } else {
                stream.shutdown();
            }
            Ok(answer)
        }
        Ok(Err(bad)) => {
            stream.shutdown();
            match bad {
                Bad::Form(what) => Err(format!("this is no etcd: {what}")),
                // Read like a refusal, so that the caller asks for less.
                Bad::TooLarge => Ok(Answer { code: 413, body: Vec::new(), keep: false }),
            }
        }
        Err(e) => Err(e.to_string()),
    }
}

/// The body of a good answer, or what a bad one means.
fn read(m: &Member, answer: Answer) -> Result<Vec<u8>, Failure> {
    if answer.code == 200 {
        return Ok(answer.body);
    }
    if answer.code == 413 {
        let e = Error::new(Status::TooLarge, "an answer of etcd is too large");
        return Err(Failure::Refused(e));
    }
    match api::refusal(&answer.body) {
        Some(refusal) => understand(m, &refusal),
        None => Err(Failure::Unknown(format!("HTTP {} without an error of etcd", answer.code))),
    }
}

/// Codes of gRPC with which a request certainly had no effect.
mod code {
    pub const INVALID_ARGUMENT: u32 = 3;
    pub const PERMISSION_DENIED: u32 = 7;
    pub const RESOURCE_EXHAUSTED: u32 = 8;
    pub const FAILED_PRECONDITION: u32 = 9;
    pub const OUT_OF_RANGE: u32 = 11;
    pub const UNIMPLEMENTED: u32 = 12;
    pub const UNAUTHENTICATED: u32 = 16;
}

fn understand(m: &Member, refusal: &Refusal) -> Result<Vec<u8>, Failure> {
    let said = refusal.said();
    let has = |part: &str| said.contains(part);
    let (status, advice) = match refusal.code {
        code::OUT_OF_RANGE if has("compacted") => {
            (Status::TooOld, "this version is compacted; begin again")
        }
        code::OUT_OF_RANGE if has("future") => {
            (Status::OutOfRange, "this member does not have it yet")
        }
        code::RESOURCE_EXHAUSTED if has("space exceeded") => (
            Status::NoSpace,
            "the metadata engine is full: compact and defragment etcd, or raise --quota-backend-bytes, then `etcdctl alarm disarm`",
        ),
        code::RESOURCE_EXHAUSTED if has("larger than max") => {
            (Status::TooLarge, "raise --max-request-bytes of etcd")
        }
        code::RESOURCE_EXHAUSTED => (Status::Overloaded, "etcd has too many requests; retry"),
        code::INVALID_ARGUMENT if has("too many operations") => {
            (Status::TooLarge, "raise --max-txn-ops of etcd")
        }
        code::INVALID_ARGUMENT if has("too large") => {
            (Status::TooLarge, "raise --max-request-bytes of etcd")
        }
        code::INVALID_ARGUMENT if has("user name is empty") => {
            (Status::AccessDenied, "this etcd wants a user; authentication is not supported")
        }
        code::PERMISSION_DENIED | code::UNAUTHENTICATED => {
            (Status::AccessDenied, "this etcd wants a user; authentication is not supported")
        }
        code::INVALID_ARGUMENT => (Status::Internal, "etcd does not accept the request"),
        code::FAILED_PRECONDITION | code::UNIMPLEMENTED | code::OUT_OF_RANGE => {
            (Status::NotSupported, "this etcd cannot do that; 3.4 or newer is needed")
        }
        _ => return Err(Failure::Unknown(said.to_owned())),
    };
    Err(Failure::Refused(Error::new(status, format!("etcd at {}: {said}: {advice}", m.name))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        for good in ["http://127.0.0.1:2379", "etcd://127.0.0.1:2379/", "127.0.0.1:2379"] {
            assert_eq!(member(good).expect(good).name, "127.0.0.1:2379");
        }
        for bad in ["https://127.0.0.1:1", "", "http://", "nonsense", "unix:///x"] {
            assert_eq!(member(bad).err().expect(bad).status, Status::InvalidArgument);
        }
    }

    #[test]
    fn refusals_are_told_from_unknown_outcomes() {
        let m = member("127.0.0.1:1").expect("member");
        let ask = |code, error: &str| match understand(&m, &Refusal::new(code, error)) {
            Err(Failure::Refused(e)) => Some(e.status),
            Err(Failure::Unknown(_)) => None,
            other => panic!("{other:?}"),
        };
        let space = "etcdserver: mvcc: database space exceeded";
        assert_eq!(ask(8, space), Some(Status::NoSpace));
        assert_eq!(ask(8, "etcdserver: too many requests"), Some(Status::Overloaded));
        assert_eq!(
            ask(3, "etcdserver: too many operations in txn request"),
            Some(Status::TooLarge)
        );
        assert_eq!(ask(3, "etcdserver: request is too large"), Some(Status::TooLarge));
        let old = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(ask(11, old), Some(Status::TooOld));
        for unknown in [1, 2, 4, 13, 14, 99] {
            assert_eq!(ask(unknown, "etcdserver: request timed out"), None, "{unknown}");
        }
    }
}
