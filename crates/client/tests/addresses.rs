//! The addresses of managers that a client is given: against a cluster in memory, over real connections.

use crate::fake::{Fake, Fault};
use glowfs_client::Client;
use glowfs_rt::Duration;
use glowfs_rt::real::run;
use glowfs_types::wire::method;
use glowfs_types::*;
use std::io::Write;

/// Something else listens where a manager was: it does not keep the client from the others, at the start or when the primary changes.
#[test]
fn an_address_at_which_something_else_answers_is_passed_over() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let other = format!("tcp://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = format!("HTTP/1.1 400 Bad Request\r\nServer: x{:100}\r\n\r\n", "");
            let _ = stream.expect("stream").write_all(answer.as_bytes());
        }
    });
    run(|rt| async move {
        let fake = Fake::start(&rt, 2, 1).await;
        let mut config = fake.config();
        config.mgmtd = vec![other.clone(), fake.mgmtd[0].clone()];
        let client = Client::connect(&rt, config).await.expect("the second one knows the primary");
        assert!(fake.calls(NodeId(2), method::GET_ROUTING) > 0);
        // The primary dies, and the other one takes over.
        *fake.state.standby.borrow_mut() = [NodeId(2)].into();
        fake.kill(NodeId(2));
        fake.fail_over(NodeId(20));
        let known = client.routing().version;
        let news = client.refresh_routing(known).await.expect("fresh");
        assert!(news.version > known);

        // Alone, it is told of.
        let mut config = fake.config();
        config.connect_timeout = Duration::from_secs(6);
        config.mgmtd = vec![other.clone(), "tcp://127.0.0.1:1".into()];
        let e = Client::connect(&rt, config).await.err().expect("nobody there");
        assert!(e.status == Status::BadMessage && e.message.contains(&other), "{e}");
    });
}

/// Very many who start at the same time get their first answer one after the other. Whoever took his for lost asked again, and so made all of them later.
#[test]
fn the_first_answer_of_a_manager_is_waited_for() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let late = [const { Fault::AnswerLate(Duration::from_millis(1500)) }; 100];
        fake.fault(NodeId(1), method::GET_ROUTING, &late);
        let mut config = fake.config();
        config.connect_timeout = Duration::from_secs(4);
        let client = Client::connect(&rt, config).await.expect("connects");
        assert!(client.routing().version > RoutingVersion(0));
        fake.state.faults.borrow_mut().clear();
        client.close().await;
    });
}
