//! GET /health and /metrics over a tiny HTTP/1.1 server.
//!
//! One request per connection. Guarantees: a request is at most [`REQUEST_BYTES_MAX`], a connection lives at most [`CONNECTION_DEADLINE`], and
//! there are at most [`CONNECTIONS_MAX`]. Needs no token: it tells nothing that a token protects. For the same reason whoever reaches it must not be able
//! to keep the service's thread busy: who connects is taken up one a turn, and writing metrics down takes at most one part in [`TEXT_PART`] of the time.

use crate::{Registry, process};
use glowfs_rt::sync::Notify;
use glowfs_rt::{Address, Duration, Instant, Listener, Rt, Stream};
use glowfs_types::wire::hello::ServiceStatus;
use glowfs_types::{Error, Result, Status};
use std::cell::Cell;
use std::future::poll_fn;
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;

/// The greatest request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 8 << 10;
/// The time a client has for request and answer together.
pub const CONNECTION_DEADLINE: Duration = Duration::from_secs(10);
/// Clients served at a time; more are closed at once.
pub const CONNECTIONS_MAX: usize = 64;
/// Header fields of one request.
const FIELDS_MAX: usize = 64;
/// Of the thread's time the text of all metrics may take one part in so many; who asks meanwhile waits.
pub const TEXT_PART: u32 = 10;
/// The pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Says how the service is, now.
pub type StatusFn = Rc<dyn Fn() -> ServiceStatus>;

/// Serves health and metrics. Dropping it stops it.
pub struct HttpServer {
    address: Address,
    shared: Rc<Shared>,
}

struct Shared {
    rt: Rt,
    status: StatusFn,
    started: Instant,
    open: Cell<usize>,
    /// When the metrics may be written down again.
    next_text: Cell<Instant>,
    stopped: Cell<bool>,
    stop: Notify,
}

impl HttpServer {
    /// Starts to listen. [`Status::Busy`]: somebody does so there already.
    pub fn start(rt: &Rt, address: &Address, status: StatusFn) -> Result<Self> {
        let listener = rt.listen(address).map_err(|e| {
            let taken = e.kind() == std::io::ErrorKind::AddrInUse;
            let status = if taken { Status::Busy } else { Status::InvalidArgument };
            Error::new(status, format!("cannot listen on {address}: {e}"))
        })?;
        let shared = Rc::new(Shared {
            rt: rt.clone(),
            status,
            started: rt.now(),
            open: Cell::new(0),
            next_text: Cell::new(rt.now()),
            stopped: Cell::new(false),
            stop: Notify::new(),
        });
        let address = listener.local();
        rt.spawn_detached(accept(shared.clone(), listener));
        Ok(Self { address, shared })
    }
    /// Where it listens, with the real port.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.shared.stopped.set(true);
        self.shared.stop.notify_all();
    }
}

async fn accept(shared: Rc<Shared>, listener: Listener) {
    while !shared.stopped.get() {
        let next = poll_fn(|cx| listener.poll_accept(cx));
        let accepted = match glowfs_rt::sync::select(shared.stop.wait(), next).await {
            glowfs_rt::sync::Either::Left(()) => return,
            glowfs_rt::sync::Either::Right(accepted) => accepted,
        };
        match accepted {
            Err(e) => {
                tracing::warn!("metrics: accept: {e}");
                shared.rt.sleep(ACCEPT_PAUSE).await;
            }
            Ok(stream) if shared.open.get() >= CONNECTIONS_MAX => stream.shutdown(),
            Ok(stream) => {
                shared.open.set(shared.open.get() + 1);
                let shared = shared.clone();
                shared.rt.clone().spawn_detached(async move {
                    // A client that is too slow is dropped without a word.
                    let work = serve(&shared, &stream);
                    let _ = shared.rt.timeout(CONNECTION_DEADLINE, work).await;
                    stream.shutdown();
                    shared.open.set(shared.open.get().saturating_sub(1));
                });
            }
        }
        // Whoever connects again and again leaves everything else of the thread its turn.
        shared.rt.yield_now().await;
    }
}

/// An answer.
struct Answer {
    code: u16,
    reason: &'static str,
    kind: &'static str,
    body: String,
}

/// What is asked for.
enum Asked {
    Health,
    Metrics,
    /// Something that there is not.
    Refused(Answer),
}

const TEXT: &str = "text/plain; charset=utf-8";

fn plain(code: u16, reason: &'static str) -> Answer {
    Answer { code, reason, kind: TEXT, body: format!("{reason}\n") }
}

async fn serve(shared: &Shared, stream: &Stream) -> std::io::Result<()> {
    let mut buffer = vec![0; REQUEST_BYTES_MAX];
    let mut filled = 0;
    let (asked, head) = loop {
        let room = buffer.get_mut(filled..).unwrap_or(&mut []);
        if room.is_empty() {
            break (Asked::Refused(plain(431, "Request Header Fields Too Large")), false);
        }
        let n = poll_fn(|cx| stream.poll_read(cx, &mut [IoSliceMut::new(room)])).await?;
        if n == 0 {
            return Ok(());
        }
        filled += n;
        if let Some(done) = asked(buffer.get(..filled).unwrap_or(&[])) {
            break done;
        }
    };
    let Answer { code, reason, kind, body } = match asked {
        Asked::Health => health(shared),
        Asked::Metrics => metrics(shared).await,
        Asked::Refused(answer) => answer,
    };
    let mut text = format!(
        "HTTP/1.1 {code} {reason}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\
         cache-control: no-store\r\nconnection: close\r\n\r\n",
        body.len()
    );
    if !head {
        text.push_str(&body);
    }
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let n = poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(rest)], &[])).await?;
        rest = rest.get(n.max(1)..).unwrap_or(&[]);
    }
    Ok(())
}

/// What a request asks for, and whether only the head of the answer is wanted; `None` while the request is not complete.
fn asked(bytes: &[u8]) -> Option<(Asked, bool)> {
    let refused = |code, reason| Some((Asked::Refused(plain(code, reason)), false));
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => {
            return refused(431, "Request Header Fields Too Large");
        }
        Err(_) => return refused(400, "Bad Request"),
    }
    let head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return refused(405, "Method Not Allowed"),
    };
    let path = request.path.unwrap_or("").split('?').next().unwrap_or("");
    let asked = match path {
        "/health" => Asked::Health,
        "/metrics" => Asked::Metrics,
        _ => Asked::Refused(plain(404, "Not Found")),
    };
    Some((asked, head))
}

fn uptime(shared: &Shared) -> Duration {
    shared.rt.now().since(shared.started)
}

fn health(shared: &Shared) -> Answer {
    let s = (shared.status)();
    let body = serde_json::json!({
        "status": if s.healthy { "ok" } else { "unhealthy" },
        "role": s.role.map(|r| r.name()),
        "node": s.node.get(),
        "pid": s.pid,
        "release": s.release,
        "detail": s.detail,
        "uptime_seconds": uptime(shared).as_secs_f64(),
    });
    let (code, reason) = if s.healthy { (200, "OK") } else { (503, "Service Unavailable") };
    Answer { code, reason, kind: "application/json", body: format!("{body}\n") }
}

async fn metrics(shared: &Shared) -> Answer {
    while shared.rt.now() < shared.next_text.get() {
        shared.rt.sleep_until(shared.next_text.get()).await;
    }
    let begun = shared.rt.now();
    let mut body = Registry::global().text();
    body.push_str(&process::text(uptime(shared).as_secs_f64()));
    let now = shared.rt.now();
    shared.next_text.set(now + now.since(begun) * (TEXT_PART - 1));
    Answer { code: 200, reason: "OK", kind: "text/plain; version=0.0.4; charset=utf-8", body }
}
