//! A proxy before a member that harms some of the transactions: cut before they arrive, cut before the answer, or held
//! until the engine has given up on them. Or it says of one that there is no space, though it was applied. Or it has refusals look as members of 3.6 and newer make them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Longer than the engine waits for an answer before it settles the matter.
const HOLD: Duration = Duration::from_millis(1500);

/// What was done to transactions.
#[derive(Default)]
pub struct Counts {
    seen: AtomicU32,
    /// Not forwarded.
    pub lost: AtomicU32,
    /// Forwarded; the answer was not.
    pub unanswered: AtomicU32,
    /// Forwarded late.
    pub late: AtomicU32,
    /// The next one is forwarded, and its answer replaced: there is no space.
    pub fill: AtomicBool,
    stop: AtomicBool,
}

/// A running proxy; no new connection is taken after it is dropped.
pub struct Proxy {
    /// Where the engine connects to.
    pub address: SocketAddr,
    /// See [`Counts`].
    pub counts: Arc<Counts>,
}

impl Proxy {
    /// Before `target`; harms every `every`th transaction.
    pub fn start(target: SocketAddr, every: u32) -> Self {
        Self::with(target, move |client, server, counts| forward(client, server, counts, every))
    }

    /// Before `target`; refusals lose what the newest members do not say.
    pub fn newest(target: SocketAddr) -> Self {
        Self::with(target, |client, server, _| forward_newest(client, server))
    }

    /// Before `target`; a transaction is answered as one that meets the end of the quota while it is applied, when [`Counts::fill`] says so.
    pub fn full(target: SocketAddr) -> Self {
        Self::with(target, forward_full)
    }

    fn with(
        target: SocketAddr,
        each: impl Fn(&TcpStream, &TcpStream, &Counts) -> std::io::Result<()> + Copy + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("address");
        let counts: Arc<Counts> = Arc::default();
        let shared = counts.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if shared.stop.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(target)) else {
                    continue;
                };
                let counts = shared.clone();
                std::thread::spawn(move || {
                    let _ = each(&client, &server, &counts);
                    let _ = client.shutdown(Shutdown::Both);
                    let _ = server.shutdown(Shutdown::Both);
                });
            }
        });
        Self { address, counts }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.counts.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

/// One exchange after the other: the engine asks for one thing at a time on a connection.
fn forward(
    mut client: &TcpStream,
    mut server: &TcpStream,
    counts: &Counts,
    every: u32,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 4 << 20];
    loop {
        let request = message(client, &mut buffer)?;
        let text = String::from_utf8_lossy(&request);
        let commit = text.starts_with("POST /v3/kv/txn") && text.contains("request_put");
        let number = if commit { counts.seen.fetch_add(1, Ordering::Relaxed) + 1 } else { 1 };
        let harm = if number % every == 0 { (number / every) % 3 + 1 } else { 0 };
        match harm {
            1 => {
                counts.lost.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            3 => {
                counts.late.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(HOLD);
            }
            _ => {}
        }
        server.write_all(&request)?;
        let answer = message(server, &mut buffer)?;
        if harm == 2 {
            counts.unanswered.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        client.write_all(&answer)?;
    }
}

/// Reads one HTTP message with a content-length (or chunks, which end as they do).
fn message(mut from: &TcpStream, buffer: &mut [u8]) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let n = from.read(buffer)?;
        if n == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&buffer[..n]);
        let Some(head) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
        let length: Option<usize> =
            text.lines().find_map(|l| l.strip_prefix("content-length: ")?.parse().ok());
        let whole = match length {
            Some(n) => bytes.len() >= head + 4 + n,
            None => bytes.ends_with(b"\r\n\r\n") && bytes.len() > head + 4,
        };
        if whole {
            return Ok(bytes);
        }
    }
}

/// What a member says of a transaction that it has applied beyond its quota.
const NO_SPACE: &str = r#"{"error":"etcdserver: mvcc: database space exceeded","code":8,"message":"etcdserver: mvcc: database space exceeded"}"#;

fn forward_full(
    mut client: &TcpStream,
    mut server: &TcpStream,
    counts: &Counts,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 4 << 20];
    loop {
        let request = message(client, &mut buffer)?;
        server.write_all(&request)?;
        let mut answer = message(server, &mut buffer)?;
        let commit = request.starts_with(b"POST /v3/kv/txn");
        if commit && counts.fill.swap(false, Ordering::Relaxed) {
            let length = NO_SPACE.len();
            let head = "HTTP/1.1 429 Too Many Requests\r\ncontent-length: ";
            answer = format!("{head}{length}\r\n\r\n{NO_SPACE}").into_bytes();
        }
        client.write_all(&answer)?;
    }
}

fn forward_newest(mut client: &TcpStream, mut server: &TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; 4 << 20];
    loop {
        let request = message(client, &mut buffer)?;
        server.write_all(&request)?;
        let answer = message(server, &mut buffer)?;
        client.write_all(&without_error(&answer).unwrap_or(answer))?;
    }
}

/// A refusal without its `error`; none if this is no refusal.
fn without_error(answer: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(answer).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.lines().next()?;
    if status.contains(" 200 ") {
        return None;
    }
    // Chunks or not: what is between the braces.
    let body = body.get(body.find('{')?..=body.rfind('}')?)?;
    let mut fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(body).ok()?;
    fields.remove("error")?;
    let body = serde_json::Value::Object(fields).to_string();
    let length = body.len();
    Some(format!("{status}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes())
}
