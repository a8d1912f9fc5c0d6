//! Calls to mgmtd's primary, wherever it is.

use glowfs_net::{Conn, Connector};
use glowfs_rt::{Duration, Instant, Rt};
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
/// A primary that answered a call so recently is not taken for mute because another call has no answer yet: its answers are late, all of them.
const HEARD_LATELY: Duration = Duration::from_millis(600);

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
    /// When the instance at hand last answered as primary.
    heard: Cell<Option<Instant>>,
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
            heard: Cell::new(None),
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
    /// Whether the instance at hand answered just now.
    fn heard_lately(&self) -> bool {
        self.heard.get().is_some_and(|at| self.rt.now().since(at) < HEARD_LATELY)
    }
    /// There is no answer of the instance at `asked`: turns to another one, unless it answered others just now.
    fn silent(&self, asked: &[String]) {
        if !self.heard_lately() {
            self.gone(asked);
        }
    }
    /// The instance at `asked` is not there: turns to another one, if others have not done so.
    fn gone(&self, asked: &[String]) {
        if self.current() == asked {
            *self.mute.borrow_mut() = Some(asked.to_vec());
            self.rotate();
        }
    }
    /// The instance at `asked` answers as primary.
    fn answers(&self, asked: Vec<String>) {
        if self.current() != asked {
            if self.heard_lately() {
                return;
            }
            // The answer comes when others are being tried.
            *self.primary.borrow_mut() = Some(asked);
        }
        self.heard.set(Some(self.rt.now()));
        self.mute.borrow_mut().take();
    }
    /// Forgets the primary and turns to the next configured instance.
    fn rotate(&self) {
        self.heard.set(None);
        if self.primary.borrow_mut().take().is_none() {
            self.next.set(self.next.get().wrapping_add(1));
        }
    }
    /// A connection to the instance that is believed to be primary.
    pub async fn conn(&self) -> Result<Rc<Conn>> {
        self.conn_to(&self.current()).await
    }
    async fn conn_to(&self, addresses: &[String]) -> Result<Rc<Conn>> {
        let conn = self.connector.connect(addresses).await;
        if conn.is_err() {
            self.gone(addresses);
        }
        conn
    }
    /// Sends one message to whoever is believed to be primary, once. If there is no answer after `patience`, later calls try another instance; this
    /// one's answer is waited for until `worth` has passed.
    pub async fn once<Q, R>(
        &self,
        method: u16,
        message: &Q,
        patience: Duration,
        worth: Duration,
    ) -> Result<R>
    where
        Q: minicbor::Encode<()>,
        R: for<'b> minicbor::Decode<'b, ()>,
    {
        let asked = self.current();
        let conn = match self.rt.timeout(patience, self.conn_to(&asked)).await {
            Ok(conn) => conn?,
            Err(_) => {
                self.silent(&asked);
                return Err(Error::new(Status::TimedOut, "mgmtd was not reached in time"));
            }
        };
        let mut call = std::pin::pin!(conn.call_msg::<Q, R>(method, message, worth));
        let answer = match self.rt.timeout(patience, &mut call).await {
            Ok(answer) => answer,
            Err(_) => {
                self.silent(&asked);
                call.await
            }
        };
        match &answer {
            Ok(_) => self.answers(asked),
            Err(e) if e.status == Status::NotPrimary => self.redirect(&conn, &asked).await,
            Err(e) => self.note_failure(e, &asked),
        }
        answer
    }
    fn note_failure(&self, e: &Error, asked: &[String]) {
        match e.status {
            Status::TimedOut => self.silent(asked),
            Status::Disconnected | Status::ShuttingDown => self.gone(asked),
            _ => {}
        }
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
            let asked = self.current();
            let conn = match self.rt.timeout(left, self.conn_to(&asked)).await {
                Ok(Ok(conn)) => conn,
                Ok(Err(e)) => {
                    last = e;
                    self.rt.sleep(REDIRECT_PAUSE.min(left)).await;
                    continue;
                }
                Err(_) => {
                    self.silent(&asked);
                    continue;
                }
            };
            let left = end.since(self.rt.now());
            match conn.call_msg::<Q, R>(method, message, left).await {
                Err(e) if e.status == Status::NotPrimary => {
                    last = e;
                    self.redirect(&conn, &asked).await;
                }
                Err(e) => {
                    self.note_failure(&e, &asked);
                    return Err(e);
                }
                ok => {
                    self.answers(asked);
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
    /// Asks the instance at `asked`, which is not primary, who is.
    async fn redirect(&self, conn: &Conn, asked: &[String]) {
        let answer = conn
            .call_msg::<_, PrimaryInfo>(method::GET_PRIMARY, &Empty {}, GET_PRIMARY_DEADLINE)
            .await;
        if self.current() != asked {
            // Others have turned away from it meanwhile.
            return;
        }
        match answer {
            Ok(info)
                if !info.addresses.is_empty()
                    && info.addresses != asked
                    && self.worth_asking(&info) =>
            {
                self.heard.set(None);
                *self.primary.borrow_mut() = Some(info.addresses);
            }
            _ => {
                self.rotate();
                self.rt.sleep(REDIRECT_PAUSE).await;
            }
        }
    }
}
