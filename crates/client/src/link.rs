//! The link to mgmtd: finding the primary, keeping routing info fresh, keeping the client's session alive.

use crate::core::Core;
use crate::file::look_after;
use crate::retry::{Next, Retry, again_meta};
use crate::routes::{self, Site};
use glowfs_net::{Conn, Target};
use glowfs_rt::{Duration, Instant};
use glowfs_types::routing::{Role, RoutingInfo};
use glowfs_types::wire::hello::HelloReply;
use glowfs_types::wire::meta::{AttrReply, Caller, OfInode, ROOT_INODE};
use glowfs_types::wire::mgmtd::{
    ClientGoodbye, ClientSession, ClientSessionReply, GetRouting, PrimaryInfo,
};
use glowfs_types::wire::{Empty, decode, encode, method};
use glowfs_types::{Error, HostId, NodeId, Result, RoutingVersion, Status, UserId};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

/// How long one attempt at one mgmtd waits.
const ATTEMPT: Duration = Duration::from_secs(2);
/// How long GET_ROUTING waits at mgmtd for news, at most.
const POLL_MAX: Duration = Duration::from_secs(2);
/// How much longer than that its answer may take; then another instance is asked.
const POLL_ANSWER: Duration = Duration::from_millis(700);
/// How long the first answer may take, which has everything: others may have come at the same time, and each of them gets his in turn.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// A primary that did not answer us is asked again on the word of a standby only if that saw it alive so recently.
const SIGN_OF_LIFE: Duration = Duration::from_millis(450);
/// The pause after every known mgmtd failed.
const PAUSE: Duration = Duration::from_millis(100);
/// How often a client looks whether it is connected to every meta service.
const METAS_EVERY: Duration = Duration::from_secs(1);
/// How often a session is extended, before mgmtd says how long it lives.
const SESSION_EVERY: Duration = Duration::from_secs(3);

/// Instances of mgmtd that one call tries.
const CANDIDATES_MAX: usize = 16;

/// Adds an instance that can be asked and was not thought of before.
fn add(candidates: &mut Vec<Target>, one: Target) {
    if !one.addresses.is_empty() && !candidates.contains(&one) {
        candidates.push(one);
    }
}

impl Core {
    /// The last known primary, then whatever the configuration and the routing info name.
    fn may_be_primary(&self) -> Vec<Target> {
        let mut candidates: Vec<Target> = self.primary.borrow().iter().cloned().collect();
        for address in &self.config.mgmtd {
            add(&mut candidates, Target { addresses: vec![address.clone()], ..Target::default() });
        }
        let info = self.routing.borrow().clone();
        for n in info.nodes.values().filter(|n| n.role == Role::Mgmtd) {
            let host = (n.host != HostId(0)).then_some(n.host);
            let addresses = n.addresses.clone();
            add(&mut candidates, Target { addresses, host, node: Some(n.id) });
        }
        candidates
    }
    /// Calls the primary mgmtd once: tries the last known primary, then whatever else may be or know it.
    pub async fn primary_call(
        &self,
        method: u16,
        body: &[u8],
        deadline: Duration,
    ) -> Result<Vec<u8>> {
        let mut candidates = self.may_be_primary();
        let mut tried = Vec::new();
        let mut mute: Vec<String> = Vec::new();
        let mut asked = 0;
        let mut last = Status::Disconnected;
        // A refused connection counts only where nobody has answered the call: somebody else may be at that address by now.
        let (mut refused, mut answered) = (None, false);
        // The list may grow by what standbys name.
        while let Some(target) = candidates.get(asked).filter(|_| asked < CANDIDATES_MAX).cloned() {
            asked += 1;
            let at = target.addresses.join(", ");
            match self.ask(&target, method, body, deadline).await {
                Ok(answer) => {
                    *self.primary.borrow_mut() = Some(target);
                    return Ok(answer);
                }
                // Any service of the cluster will do as a first address: it names mgmtd in its hello.
                Err((e, Some(conn))) if conn.peer().role.is_some_and(|r| r != Role::Mgmtd) => {
                    answered = true;
                    tried.push(format!("{at}: {e}"));
                    for address in &conn.peer().mgmtd {
                        let addresses = vec![address.clone()];
                        add(&mut candidates, Target { addresses, host: None, node: None });
                    }
                }
                Err((e, conn)) if e.status == Status::NotPrimary => {
                    answered = true;
                    tried.push(format!("{at}: {e}"));
                    last = e.status;
                    if let Some((named, silent)) = self.named_primary(conn).await {
                        let is_mute = named.addresses.iter().any(|a| mute.contains(a));
                        if !is_mute || silent < SIGN_OF_LIFE {
                            add(&mut candidates, named);
                        }
                    }
                }
                Err((e, conn)) if again_meta(e.status) => {
                    answered |= conn.is_some();
                    tried.push(format!("{at}: {e}"));
                    mute.extend(target.addresses);
                    last = e.status;
                }
                Err((e, None)) if e.status != Status::SessionEnded => {
                    tried.push(format!("{at}: {e}"));
                    refused.get_or_insert_with(|| e.context(format_args!("mgmtd at {at}")));
                }
                Err((e, _)) => return Err(e.context(format_args!("mgmtd at {at}"))),
            }
        }
        *self.primary.borrow_mut() = None;
        match refused.filter(|_| !answered) {
            Some(refused) => Err(refused),
            None => Err(Error::new(last, format!("no primary mgmtd: tried {}", tried.join("; ")))),
        }
    }

    async fn ask(
        &self,
        target: &Target,
        method: u16,
        body: &[u8],
        deadline: Duration,
    ) -> Result<Vec<u8>, (Error, Option<Rc<Conn>>)> {
        let conn = match self.rt.timeout(ATTEMPT, self.connector.connect_to(target)).await {
            Ok(Ok(conn)) => conn,
            Ok(Err(e)) => return Err((e, None)),
            Err(_) => {
                return Err((
                    Error::new(Status::Disconnected, "does not accept a connection"),
                    None,
                ));
            }
        };
        let request = glowfs_net::Request {
            method,
            body: body.to_vec(),
            bulk: glowfs_net::Bulk::None,
            tenant: self.config.tenant,
            deadline,
        };
        match conn.call(request).await {
            Ok(response) => {
                self.note_hello(&conn);
                Ok(response.body)
            }
            Err(e) => Err((e, Some(conn))),
        }
    }

    async fn named_primary(&self, conn: Option<Rc<Conn>>) -> Option<(Target, Duration)> {
        let conn = conn?;
        let info: PrimaryInfo =
            conn.call_msg(method::GET_PRIMARY, &Empty {}, ATTEMPT).await.ok()?;
        let target = Target { addresses: info.addresses, host: None, node: info.node };
        Some((target, Duration::from_millis(info.silent_ms)))
    }

    fn note_hello(&self, conn: &Conn) {
        let p = conn.peer();
        *self.hello.borrow_mut() = Some(HelloReply {
            cluster: p.cluster,
            role: p.role,
            node: p.node,
            features: p.features,
            release: p.release.clone(),
            user: UserId(p.identity.user.0),
            root: p.identity.root,
            mgmtd: p.mgmtd.clone(),
        });
    }

    /// A call to the primary, retried within `total`.
    pub async fn primary_retry(
        &self,
        method: u16,
        body: Vec<u8>,
        total: Duration,
    ) -> Result<Vec<u8>> {
        let mut policy = self.meta_policy();
        policy.total = total;
        let mut retry = self.retry(policy);
        loop {
            if self.closed.get() {
                return Err(Error::new(Status::ShuttingDown, "this client is closed"));
            }
            let time = retry.attempt_time(self.rt.now()).unwrap_or(Duration::from_millis(1));
            match self.primary_call(method, &body, time).await {
                Ok(answer) => return Ok(answer),
                // An answer: it says by itself who gave it, and to what.
                Err(e) if !again_meta(e.status) => return Err(e),
                Err(e) => {
                    let what = || format!("{} at mgmtd", method::name(method));
                    self.wait_or_give_up(&mut retry, &what, &Site::default(), e, true).await?;
                }
            }
        }
    }

    /// After a failed attempt at `site`: waits before the next one, or returns the error to give up with.
    pub async fn wait_or_give_up(
        &self,
        retry: &mut Retry,
        what: &dyn Fn() -> String,
        site: &Site,
        error: Error,
        again: bool,
    ) -> Result<()> {
        let again = again && !self.closed.get();
        match retry.failed(self.rt.now(), what, &site.to_string(), error, again, self.rt.random()) {
            Next::GiveUp(e) => Err(e),
            Next::Again(pause) => {
                // Without routing info there is nothing that news could change.
                let than = site.info.as_ref().map_or(RoutingVersion(u64::MAX), |i| i.version);
                self.pause(pause, than).await;
                Ok(())
            }
        }
    }

    fn take_routing(&self, asked: Instant, delta: RoutingInfo) {
        let have = self.routing.borrow().version;
        if delta.version < have {
            return;
        }
        if delta.version > have || have == RoutingVersion(0) {
            let mut info = (**self.routing.borrow()).clone();
            info.apply(delta);
            *self.routing.borrow_mut() = Rc::new(info);
        }
        if self.confirmed.get().is_none_or(|t| t < asked) {
            self.confirmed.set(Some(asked));
        }
        *self.link_problem.borrow_mut() = None;
        self.changed.notify_all();
    }

    /// One GET_ROUTING that waits up to `wait` for news. An error if the answer is older than what was known when it was asked for.
    pub async fn fetch_routing(&self, wait: Duration) -> Result<()> {
        let asked = self.rt.now();
        let have = self.routing.borrow().version;
        let body = encode(&GetRouting { have, wait_ms: wait.as_millis() as u64 });
        let within = if have == RoutingVersion(0) { FIRST_ANSWER } else { POLL_ANSWER };
        let answer = self.primary_call(method::GET_ROUTING, &body, wait + within).await?;
        let delta: RoutingInfo = decode(&answer)?;
        // It confirms nothing, and the next one would be the same: whoever asks has to pause.
        if delta.version < have {
            let e = format!(
                "mgmtd has routing info of version {}, and this client knew {have} already: if older metadata was put back, unmount and mount again",
                delta.version
            );
            return Err(Error::new(Status::TooOld, e));
        }
        self.take_routing(asked, delta);
        Ok(())
    }
}

/// Keeps routing info fresh until the client is closed.
pub(crate) async fn poll_routing(core: Rc<Core>) {
    while !core.closed.get() {
        // The first copy at once; later ones when there is news, well before ours counts as stale.
        let wait = if core.fresh().is_none() {
            Duration::ZERO
        } else {
            POLL_MAX.min(core.stale.get() / 3)
        };
        let news = core.wanted.wait();
        if let Err(e) = core.fetch_routing(wait).await {
            tracing::debug!(error = %e, "no routing info from mgmtd");
            // An answer, and the next one will be the same: whoever wants news cannot hasten it.
            let answered = e.status == Status::TooOld;
            *core.link_problem.borrow_mut() = Some(e);
            core.changed.notify_all();
            if answered {
                core.rt.sleep(PAUSE).await;
            } else {
                let _ = core.rt.timeout(PAUSE, news).await;
            }
            core.rt.sleep(Duration::from_millis(10 + core.rt.random_below(20))).await;
        }
    }
}

/// Opens and extends the client's session until the client is closed.
pub(crate) async fn keep_session(core: Rc<Core>) {
    let mut every = SESSION_EVERY;
    let mut failing = false;
    while !core.closed.get() {
        let doubt = core.doubted.wait();
        let pause = match extend_session(&core).await {
            Ok(reply) => {
                failing = false;
                if !core.registered.replace(true) {
                    core.changed.notify_all();
                }
                if reply.session_ms > 0 {
                    every = Duration::from_millis(reply.session_ms / 3)
                        .clamp(Duration::from_millis(50), SESSION_EVERY);
                }
                if reply.routing_stale_ms > 0 {
                    core.stale.set(Duration::from_millis(reply.routing_stale_ms));
                }
                every
            }
            Err(e) if e.status == Status::SessionEnded => {
                core.be_reborn();
                Duration::ZERO
            }
            Err(e) => {
                if !failing {
                    tracing::warn!(error = %e, "cannot extend the client session with mgmtd; trying on");
                }
                failing = true;
                *core.link_problem.borrow_mut() = Some(e);
                core.changed.notify_all();
                PAUSE
            }
        };
        if core.rt.timeout(pause, doubt).await.is_ok() {
            // Whoever doubts comes again until it is settled.
            core.rt.sleep(PAUSE).await;
        }
    }
}

/// Keeps a connection to every meta service, so that each of them can call this client (RECALL, IN_USE) also when it is idle
/// or works with another one.
pub(crate) async fn keep_metas(core: Rc<Core>) {
    // The connection that was seen last, and when.
    let mut seen: BTreeMap<NodeId, (Weak<Conn>, Instant)> = BTreeMap::new();
    while !core.closed.get() {
        if let Some(info) = core.fresh() {
            for node in routes::metas(&info, 0, |_| false) {
                match core.conn(&info, node, ATTEMPT).await {
                    Ok(conn) => {
                        let here = (Rc::downgrade(&conn), core.rt.now());
                        if let Some((before, then)) = seen.insert(node, here)
                            && !Weak::ptr_eq(&before, &Rc::downgrade(&conn))
                        {
                            look_after(&core, then);
                        }
                        if core.is_meta_to_be_asked(node) {
                            ask_silent(&core, node, &conn).await;
                        }
                    }
                    Err(e) => {
                        tracing::debug!(error = %e, %node, "no connection to a meta service");
                    }
                }
            }
        }
        let news = core.changed.wait();
        let _ = core.rt.timeout(METAS_EVERY, news).await;
        // News come in bursts.
        core.rt.sleep(PAUSE).await;
    }
}

/// Looks whether a metadata service that did not answer does so now: no call of an application is to wait to find that out. It is asked for what only its engine
/// knows, for a service may be alive and cut off from that.
async fn ask_silent(core: &Core, node: NodeId, conn: &Conn) {
    // As whom the token allows: what is refused before the engine is asked says nothing of it.
    let own = conn.peer().identity;
    let uid = if own.root { 0 } else { own.user.0 as u32 };
    let caller = Caller { client: core.id(), uid, ..Caller::default() };
    let root = OfInode { caller, inode: ROOT_INODE };
    match conn.call_msg::<_, AttrReply>(method::GETATTR, &root, ATTEMPT).await {
        Err(e) if again_meta(e.status) || e.status == Status::AccessDenied => {
            tracing::debug!(error = %e, %node, "a meta service does not answer yet");
        }
        _ => core.meta_answers(node),
    }
}

async fn extend_session(core: &Core) -> Result<ClientSessionReply> {
    let c = &core.config;
    let body = encode(&ClientSession {
        client: core.id(),
        role: Some(c.role),
        hostname: c.hostname.clone(),
        host: c.host,
        pid: c.pid,
        description: c.description.clone(),
        release: env!("CARGO_PKG_VERSION").to_owned(),
        started_ns: core.started_ns,
        user: UserId::default(),
        last_seen_ns: 0,
        extends: core.registered.get(),
    });
    decode(&core.primary_call(method::CLIENT_SESSION, &body, ATTEMPT).await?)
}

/// Tells mgmtd that this client is gone; best effort.
pub(crate) async fn goodbye(core: &Core) {
    let body = encode(&ClientGoodbye { client: core.id() });
    if let Err(e) = core.primary_call(method::CLIENT_GOODBYE, &body, ATTEMPT).await {
        tracing::debug!(error = %e, "goodbye to mgmtd");
    }
}
