//! Calls to mgmtd's primary, wherever it is.

use glowfs_net::{Conn, Connector};
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::Empty;
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::PrimaryInfo;
use glowfs_types::{Error, Result, Status};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The pause before another instance is asked, when the one asked did not know a primary.
const REDIRECT_PAUSE: Duration = Duration::from_millis(20);
/// How long an instance may take to say who is primary.
const GET_PRIMARY_DEADLINE: Duration = Duration::from_millis(500);
/// A primary that did not answer us is asked again on the word of a standby only if that saw it alive so recently.
const SIGN_OF_LIFE: Duration = Duration::from_millis(450);

/// Finds the primary among several mgmtd addresses and calls it.
///
/// A call is sent again only if it certainly did nothing (no connection, or the instance was not primary); every other
/// error goes to the caller, and the next call tries the next instance.
pub struct MgmtdLink {
    rt: Rt,
    connector: Rc<Connector>,
    /// What the configuration says; each entry is its own instance.
    configured: Vec<String>,
    /// What a redirect said.
    primary: RefCell<Option<Vec<String>>>,
    next: Cell<usize>,
    /// Where the last call found nobody, or nobody who answered in time.
    mute: RefCell<Option<Vec<String>>>,
}

impl MgmtdLink {
    /// A link over `connector` to one of `configured`.
    pub fn new(rt: &Rt, connector: Rc<Connector>, configured: Vec<String>) -> Self {
        Self {
            rt: rt.clone(),
            connector,
            configured,
            primary: RefCell::new(None),
            next: Cell::new(0),
            mute: RefCell::new(None),
        }
    }
    /// The addresses to try now.
    fn current(&self) -> Vec<String> {
        if let Some(addresses) = &*self.primary.borrow() {
            return addresses.clone();
        }
        let n = self.configured.len().max(1);
        self.configured.get(self.next.get() % n).cloned().into_iter().collect()
    }
    /// The instance at hand does not answer: turns to another one.
    fn silent(&self) {
        *self.mute.borrow_mut() = Some(self.current());
        self.rotate();
    }
    /// Forgets the primary and turns to the next configured instance.
    fn rotate(&self) {
        if self.primary.borrow_mut().take().is_none() {
            self.next.set(self.next.get().wrapping_add(1));
        }
    }
    /// A connection to the instance that is believed to be primary.
    pub async fn conn(&self) -> Result<Rc<Conn>> {
        let addresses = self.current();
        let conn = self.connector.connect(&addresses).await;
        if conn.is_err() {
            self.silent();
        }
        conn
    }
    /// Calls the primary with a control message.
    pub async fn call<Q, R>(&self, method: u16, message: &Q, deadline: Duration) -> Result<R>
    where
        Q: minicbor::Encode<()>,
        R: for<'b> minicbor::Decode<'b, ()>,
    {
        let end = self.rt.now() + deadline;
        let mut last = Error::new(Status::TimedOut, "mgmtd did not answer");
        loop {
            let left = end.since(self.rt.now());
            if left.is_zero() {
                return Err(last.context(format_args!("{} at mgmtd", method::name(method))));
            }
            let conn = match self.rt.timeout(left, self.conn()).await {
                Ok(Ok(conn)) => conn,
                Ok(Err(e)) => {
                    last = e;
                    self.rt.sleep(REDIRECT_PAUSE.min(left)).await;
                    continue;
                }
                Err(_) => {
                    self.silent();
                    continue;
                }
            };
            let left = end.since(self.rt.now());
            match conn.call_msg::<Q, R>(method, message, left).await {
                Err(e) if e.status == Status::NotPrimary => {
                    last = e;
                    self.redirect(&conn).await;
                }
                Err(e) => {
                    if matches!(
                        e.status,
                        Status::TimedOut | Status::Disconnected | Status::ShuttingDown
                    ) {
                        self.silent();
                    }
                    return Err(e);
                }
                ok => {
                    self.mute.borrow_mut().take();
                    return ok;
                }
            }
        }
    }
    /// Not if it was mute when we asked it and the one who names it has no news of it either.
    fn worth_asking(&self, info: &PrimaryInfo) -> bool {
        let mute = self.mute.borrow();
        let same = |m: &Vec<String>| m.iter().any(|a| info.addresses.contains(a));
        !mute.as_ref().is_some_and(same) || Duration::from_millis(info.silent_ms) < SIGN_OF_LIFE
    }
    /// Asks an instance that is not primary who is.
    async fn redirect(&self, conn: &Conn) {
        let answer = conn
            .call_msg::<_, PrimaryInfo>(method::GET_PRIMARY, &Empty {}, GET_PRIMARY_DEADLINE)
            .await;
        let before = self.current();
        match answer {
            Ok(info)
                if !info.addresses.is_empty()
                    && info.addresses != before
                    && self.worth_asking(&info) =>
            {
                *self.primary.borrow_mut() = Some(info.addresses);
            }
            _ => {
                self.rotate();
                self.rt.sleep(REDIRECT_PAUSE).await;
            }
        }
    }
}
