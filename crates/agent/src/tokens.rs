//! What a token stands for.

use crate::MgmtdLink;
use glowfs_net::{Authenticator, Identity, unknown_token};
use glowfs_rt::{BoxFuture, Duration, Instant, Rt};
use glowfs_types::wire::hello::Hello;
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::{CheckToken, UserInfo};
use glowfs_types::{ClientId, ClusterId, Error, Result, Status};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The greatest number of tokens whose meaning is remembered.
const CACHE_ENTRIES_MAX: usize = 4096;
/// How long «this token is wrong» is believed.
const WRONG_TTL: Duration = Duration::from_secs(1);
/// How long mgmtd may take to say what a token stands for.
const CHECK_DEADLINE: Duration = Duration::from_secs(3);

/// How a token is known outside the process that holds it.
pub fn token_hash(token: &str) -> blake3::Hash {
    blake3::hash(token.as_bytes())
}

/// Where meanings of tokens come from.
pub trait TokenSource {
    /// The identity behind a hash; `BadToken` if there is none. An error, too, if `client` is not this user's.
    fn identity(&self, hash: blake3::Hash, client: ClientId) -> BoxFuture<Result<Identity>>;
}

impl TokenSource for Rc<MgmtdLink> {
    fn identity(&self, hash: blake3::Hash, client: ClientId) -> BoxFuture<Result<Identity>> {
        let link = self.clone();
        Box::pin(async move {
            let question = CheckToken { hash: (*hash.as_bytes()).into(), client };
            let user: UserInfo = link.call(method::CHECK_TOKEN, &question, CHECK_DEADLINE).await?;
            Ok(Identity {
                user: user.user,
                root: user.root,
                admin: user.admin,
                service: user.service,
            })
        })
    }
}

type Remembered = (Instant, Option<Identity>);
/// A token and the client that it was shown for.
type Shown = ([u8; 32], ClientId);

/// Answers hellos: the cluster's service token from its own knowledge (so that start-up has no circle), every
/// other one from a [`TokenSource`], remembered for a short, bounded time, together with the client id that came with it: what a client
/// may do, and what it has open, goes by that id, so nobody may claim another user's.
pub struct TokenCache<S> {
    rt: Rt,
    cluster: ClusterId,
    service: blake3::Hash,
    ttl: Duration,
    source: Rc<S>,
    known: Rc<RefCell<BTreeMap<Shown, Remembered>>>,
}

impl<S: TokenSource + 'static> TokenCache<S> {
    /// A cache that believes `source` for `ttl`.
    pub fn new(rt: &Rt, cluster: ClusterId, service_token: &str, ttl: Duration, source: S) -> Self {
        Self {
            rt: rt.clone(),
            cluster,
            service: token_hash(service_token),
            ttl,
            source: Rc::new(source),
            known: Rc::default(),
        }
    }
    fn remembered(&self, shown: &Shown) -> Option<Result<Identity>> {
        let known = self.known.borrow();
        let (until, identity) = known.get(shown)?;
        (self.rt.now() < *until).then(|| identity.ok_or_else(unknown_token))
    }
}

fn remember(
    known: &RefCell<BTreeMap<Shown, Remembered>>,
    shown: Shown,
    now: Instant,
    entry: Remembered,
) {
    let mut known = known.borrow_mut();
    if known.len() >= CACHE_ENTRIES_MAX {
        known.retain(|_, (until, _)| *until > now);
    }
    if known.len() >= CACHE_ENTRIES_MAX {
        known.pop_first();
    }
    known.insert(shown, entry);
}

impl<S: TokenSource + 'static> Authenticator for TokenCache<S> {
    fn check(&self, hello: &Hello) -> BoxFuture<Result<Identity>> {
        if hello.cluster != ClusterId(0) && hello.cluster != self.cluster {
            let e = Error::new(
                Status::WrongCluster,
                format!("this is cluster {}, the caller wants {}", self.cluster, hello.cluster),
            );
            return Box::pin(async move { Err(e) });
        }
        let hash = token_hash(&hello.token);
        // Comparing blake3::Hash takes the same time wherever they differ.
        if hash == self.service {
            return Box::pin(async { Ok(Identity::SERVICE) });
        }
        let client = hello.client;
        let shown = (*hash.as_bytes(), client);
        if let Some(answer) = self.remembered(&shown) {
            return Box::pin(async move { answer });
        }
        let (rt, ttl, source, known) =
            (self.rt.clone(), self.ttl, self.source.clone(), self.known.clone());
        Box::pin(async move {
            let answer = source.identity(hash, client).await;
            let now = rt.now();
            match &answer {
                Ok(identity) => remember(&known, shown, now, (now + ttl, Some(*identity))),
                Err(e) if e.status == Status::BadToken => {
                    remember(&known, shown, now, (now + WRONG_TTL.min(ttl), None));
                }
                Err(_) => {}
            }
            answer
        })
    }
}
