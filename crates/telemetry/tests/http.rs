//! The metrics server as its clients see it.

use glowfs_rt::{Address, Rt, real};
use glowfs_telemetry::{HttpServer, Registry, http};
use glowfs_types::wire::hello::ServiceStatus;
use std::cell::Cell;
use std::future::poll_fn;
use std::io::{IoSlice, IoSliceMut, Read};
use std::rc::Rc;

async fn ask(rt: &Rt, to: &Address, request: &[u8]) -> String {
    let stream = rt.connect(to).await.expect("connect");
    let mut rest = request;
    while !rest.is_empty() {
        let sent = poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(rest)], &[])).await;
        let Ok(n) = sent else { break };
        rest = &rest[n..];
    }
    let mut out = Vec::new();
    let mut buffer = vec![0; 4096];
    loop {
        let n = poll_fn(|cx| stream.poll_read(cx, &mut [IoSliceMut::new(&mut buffer)])).await;
        match n {
            Ok(n) if n > 0 => out.extend_from_slice(&buffer[..n]),
            _ => break String::from_utf8(out).expect("text"),
        }
    }
}

fn serve(rt: &Rt, healthy: Rc<Cell<bool>>) -> HttpServer {
    let status = move || ServiceStatus {
        healthy: healthy.get(),
        detail: "line \"one\"\n".into(),
        ..Default::default()
    };
    let any = "tcp://127.0.0.1:0".parse().expect("address");
    HttpServer::start(rt, &any, Rc::new(status)).expect("listen")
}

#[test]
fn health_and_metrics() {
    real::run(|rt| async move {
        let healthy = Rc::new(Cell::new(true));
        let server = serve(&rt, healthy.clone());
        let to = server.address().clone();
        let text = ask(&rt, &to, b"GET /health?x=1 HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(
            text.contains("\"status\":\"ok\"") && text.contains("line \\\"one\\\"\\n"),
            "{text}"
        );
        healthy.set(false);
        let text = ask(&rt, &to, b"GET /health HTTP/1.1\r\n\r\n").await;
        assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
        let counter = Registry::global().counter("test_things_total", "Things.", &[]);
        counter.add(42);
        let text = ask(&rt, &to, b"GET /metrics HTTP/1.1\r\n\r\n").await;
        for line in ["test_things_total 42\n", "process_cpu_seconds_total ", "glowfs_build_info{"] {
            assert!(text.contains(line), "{line} in {text}");
        }
        let head = ask(&rt, &to, b"HEAD /metrics HTTP/1.1\r\n\r\n").await;
        assert!(head.ends_with("\r\n\r\n") && head.contains("content-length: "), "{head}");
        drop(server);
        rt.yield_now().await;
        rt.yield_now().await;
        assert!(rt.connect(&to).await.is_err(), "it stops when it is dropped");
    });
}

#[test]
fn bad_requests_are_refused() {
    real::run(|rt| async move {
        let server = serve(&rt, Rc::new(Cell::new(true)));
        let to = server.address();
        let long = [b"GET / HTTP/1.1\r\nx: ".as_slice(), &vec![b'a'; 2 * http::REQUEST_BYTES_MAX]]
            .concat();
        let many = ["GET / HTTP/1.1\r\n", &"a: b\r\n".repeat(100), "\r\n"].concat();
        for (request, code) in [
            (b"GET /nothing HTTP/1.1\r\n\r\n".as_slice(), 404),
            (b"POST /health HTTP/1.1\r\n\r\n", 405),
            (b"\x00\x01\x02\xff\r\n\r\n", 400),
            (b"GET /health HTTP/9.9\r\n\r\n", 400),
            (many.as_bytes(), 431),
        ] {
            let text = ask(&rt, to, request).await;
            assert!(text.starts_with(&format!("HTTP/1.1 {code} ")), "{code}: {text}");
        }
        // The rest of an over-long request is not read, so the answer may be lost to the reset; the connection must end.
        let text = ask(&rt, to, &long).await;
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 431 "), "{text}");
        // Half a request, then nothing: other clients are served meanwhile.
        let idle = rt.connect(to).await.expect("connect");
        poll_fn(|cx| idle.poll_write(cx, &[IoSlice::new(b"GET /he")], &[])).await.expect("write");
        assert!(ask(&rt, to, b"GET /health HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    });
}

#[test]
fn who_connects_again_and_again_leaves_others_their_turns() {
    /// More than may wait at once are refused by the kernel.
    const CLIENTS: usize = 500;
    real::run(|rt| async move {
        let server = serve(&rt, Rc::new(Cell::new(true)));
        let to = server.address().to_string().replace("tcp://", "");
        let connect = || std::net::TcpStream::connect(&to).expect("connect");
        // Nothing is taken up before this task waits.
        let clients: Vec<_> = (0..CLIENTS).map(|_| connect()).collect();
        let (turns, over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        rt.spawn_detached({
            let (rt, turns, over) = (rt.clone(), turns.clone(), over.clone());
            async move {
                while !over.get() {
                    turns.set(turns.get() + 1);
                    rt.yield_now().await;
                }
            }
        });
        // The last one is closed when all have been looked at.
        let last = clients.last().expect("one");
        last.set_nonblocking(true).expect("set");
        while (&mut &*last).read(&mut [0; 1]).is_err() {
            rt.sleep(std::time::Duration::from_millis(1)).await;
        }
        over.set(true);
        assert!(turns.get() >= CLIENTS / 2, "{} turns", turns.get());
    });
}
