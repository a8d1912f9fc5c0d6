//! [`Dial`]: one attempt to reach a service, over its addresses.

use crate::connector::{ConnectorOptions, Target, Transport};
use crate::names::Names;
use crate::{Conn, Handler, handshake};
use glowfs_rt::{Rt, Stream};
use glowfs_types::wire::hello::{Hello, features};
use glowfs_types::{Error, HostId, Result, Status};
use std::cell::RefCell;
use std::rc::Rc;

/// What an attempt needs to know. It goes on without the connector that began it.
pub(crate) struct Dial {
    rt: Rt,
    pub(crate) hello: RefCell<Hello>,
    handler: Rc<dyn Handler>,
    options: ConnectorOptions,
    names: Names,
}

impl Dial {
    pub(crate) fn new(
        rt: &Rt,
        hello: Hello,
        handler: Rc<dyn Handler>,
        options: ConnectorOptions,
    ) -> Rc<Self> {
        let (rt, hello) = (rt.clone(), RefCell::new(hello));
        Rc::new(Self { rt, hello, handler, options, names: Names::default() })
    }

    /// Tries the addresses, the best first.
    pub(crate) async fn attempt(&self, target: &Target) -> Result<Rc<Conn>> {
        let mut failures = Vec::new();
        let mut status = Status::Disconnected;
        for address in self.candidates(target) {
            let deadline = self.options.connect_deadline;
            let outcome = match self.rt.timeout(deadline, self.one(address, target)).await {
                Ok(outcome) => outcome,
                Err(_) => Err(Error::new(Status::TimedOut, format!("no answer in {deadline:?}"))),
            };
            match outcome {
                Ok(conn) => return Ok(conn),
                Err(e) => {
                    // What the service itself said tells more than that another address cannot be reached.
                    if !matches!(e.status, Status::Disconnected | Status::TimedOut) {
                        status = e.status;
                    }
                    failures.push(format!("{address}: {}", e.message));
                }
            }
        }
        if failures.is_empty() {
            failures.push("no address that the configured transports can use".into());
        }
        Err(Error::new(status, format!("cannot connect: {}", failures.join("; "))))
    }

    /// Unix sockets first, where they may be used, then the others in their order.
    fn candidates<'a>(&self, target: &'a Target) -> Vec<&'a str> {
        let may = |t: Transport| self.options.transports.contains(&t);
        let own_host = self.hello.borrow().host;
        let same_host = target.host.is_none_or(|h| h == own_host && h != HostId::default());
        let is_unix = |text: &&str| text.starts_with("unix://");
        let all = || target.addresses.iter().map(String::as_str);
        let mut candidates = Vec::new();
        if same_host && (may(Transport::Unix) || may(Transport::Shm)) {
            candidates.extend(all().filter(is_unix));
        }
        if may(Transport::Tcp) {
            candidates.extend(all().filter(|text| !is_unix(text)));
        }
        candidates
    }

    async fn one(&self, address: &str, target: &Target) -> Result<Rc<Conn>> {
        let address = self.names.resolve(&self.rt, address).await;
        let address = address.map_err(|e| Error::new(Status::Disconnected, e.to_string()))?;
        let stream = self
            .rt
            .connect(&address)
            .await
            .map_err(|e| Error::new(Status::Disconnected, e.to_string()))?;
        let guard = Unfinished(Some(stream.clone()));
        let mut hello = self.hello.borrow().clone();
        hello.features =
            if self.options.transports.contains(&Transport::Shm) { features::SHM } else { 0 };
        if hello.release.is_empty() {
            hello.release = glowfs_telemetry::RELEASE.into();
        }
        let (inbound, peer) = handshake::connect(&self.rt, stream, &hello).await?;
        if let Some(node) = target.node
            && peer.node != node
        {
            let what = format!("is node {}, not node {node}", peer.node);
            return Err(Error::new(Status::Disconnected, what));
        }
        guard.finish();
        let options = (self.options.quarantine, None);
        Ok(Conn::start_with(&self.rt, inbound, peer, self.handler.clone(), options))
    }
}

/// Shuts a stream down whose handshake failed or was given up.
struct Unfinished(Option<Stream>);

impl Unfinished {
    fn finish(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(stream) = self.0.take() {
            stream.shutdown();
        }
    }
}
