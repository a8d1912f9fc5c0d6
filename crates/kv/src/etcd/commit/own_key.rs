//! The engine's own key: taking it, and settling by it what became of a transaction whose answer is lost.

use super::transaction::beside_the_quota;
use super::{ATTEMPT_MAX, ATTEMPT_MIN, Committer, PAUSE};
use crate::Version;
use crate::etcd::api::{self, Compare, Op, Range, RangeAnswer, TxnAnswer};
use crate::etcd::members::Failure;
use glowfs_rt::Instant;
use glowfs_types::{Error, Result, Status};

/// How often the own key is tried to be taken.
const REGISTER_ATTEMPTS: u32 = 8;

/// What became of a transaction.
pub(super) enum Done {
    Committed(Version),
    /// Nothing happened, and nothing will.
    Not,
    /// It cannot be found out.
    Unknown(String),
}

impl Committer {
    /// Takes the own key. What an earlier life, or an earlier try, has on its way fails from now on.
    pub(super) async fn register(&self) -> Result<()> {
        let own = &self.space.own;
        let value = self.own_value(0, b'r');
        for _ in 0..REGISTER_ATTEMPTS {
            let mut text = String::new();
            Range { key: own.clone(), ..Range::default() }.json(&mut text);
            let body = self.members.ask(api::RANGE, &text).await?;
            let before: RangeAnswer = self.parse(&body)?;
            let before = before.kvs.first().map_or(0, |kv| kv.mod_revision.0);
            let txn = api::Txn {
                compares: vec![Compare::ChangedAt(own.clone(), before)],
                then: beside_the_quota(vec![Op::Put(own.clone(), value.clone())]),
                ..api::Txn::default()
            };
            text.clear();
            txn.json(&mut text);
            // Conditional, so it may be repeated and arrive late.
            let body = self.members.ask(api::TXN, &text).await?;
            let answer: TxnAnswer = self.parse(&body)?;
            if answer.succeeded {
                self.state.borrow_mut().own = Some(answer.header.revision.0);
                return Ok(());
            }
        }
        let what = "the engine's own key in etcd changes all the time: another process has the same node id";
        Err(Error::new(Status::Busy, what))
    }

    pub(super) fn own_value(&self, seq: u64, kind: u8) -> Vec<u8> {
        [&self.life.to_be_bytes()[..], &seq.to_be_bytes(), &[kind]].concat()
    }

    /// What became of transaction `seq`, which etcd refused, unless nothing did: one that meets the end of the quota as it is applied is done, and answered
    /// with «no space» all the same.
    pub(super) async fn refused(&self, seq: u64, e: &Error) -> Option<Done> {
        if e.status != Status::NoSpace {
            return None;
        }
        let mut text = String::new();
        Range { key: self.space.own.clone(), ..Range::default() }.json(&mut text);
        let read = self.members.ask(api::RANGE, &text).await;
        match read.and_then(|body| self.parse::<RangeAnswer>(&body)) {
            Ok(answer) => {
                let ours = self.own_value(seq, b'c');
                let own = answer.kvs.first().filter(|kv| kv.value.0 == ours);
                own.map(|kv| Done::Committed(kv.mod_revision.0))
            }
            Err(e) => Some(Done::Unknown(e.message)),
        }
    }

    /// Finds out what became of transaction `seq`, whose answer is lost.
    pub(super) async fn settle(&self, seq: u64, end: Instant, why: String) -> Done {
        let before = self.state.borrow().own.unwrap_or(0);
        let own = &self.space.own;
        let (ours, fence) = (self.own_value(seq, b'c'), self.own_value(seq, b'f'));
        let txn = api::Txn {
            compares: vec![Compare::ChangedAt(own.clone(), before)],
            then: beside_the_quota(vec![Op::Put(own.clone(), fence.clone())]),
            or_else: vec![Op::Range(Range { key: own.clone(), ..Range::default() })],
        };
        let mut text = String::new();
        txn.json(&mut text);
        tracing::debug!(why, "settling a commit");
        let mut attempt = ATTEMPT_MIN;
        loop {
            let last = match self.members.once(api::TXN, &text, attempt).await {
                Ok(body) => match api::parse::<TxnAnswer>(&body) {
                    Ok(answer) if answer.succeeded => {
                        self.state.borrow_mut().own = Some(answer.header.revision.0);
                        return Done::Not;
                    }
                    Ok(answer) => {
                        let range =
                            answer.responses.first().and_then(|r| r.response_range.as_ref());
                        let kv = range.and_then(|r| r.kvs.first());
                        let version = kv.map_or(0, |kv| kv.mod_revision.0);
                        return match kv.map(|kv| &kv.value.0) {
                            Some(value) if *value == ours => Done::Committed(version),
                            Some(value) if *value == fence => {
                                self.state.borrow_mut().own = Some(version);
                                Done::Not
                            }
                            _ => Done::Unknown(
                                "another process has used the engine's name meanwhile".into(),
                            ),
                        };
                    }
                    Err(e) => e,
                },
                Err(Failure::Refused(e)) => e.message,
                Err(Failure::NotSent(e) | Failure::Unknown(e)) => e,
            };
            if self.rt.now() >= end {
                return Done::Unknown(last);
            }
            attempt = (attempt * 2).min(ATTEMPT_MAX);
            self.rt.sleep(PAUSE).await;
        }
    }
}
