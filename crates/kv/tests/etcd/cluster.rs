//! Real etcd members for one test: free ports of loopback, directories of their own, ended by pid.

use std::hash::BuildHasher;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a member may take to answer.
const START_BOUND: Duration = Duration::from_secs(60);

/// One member.
pub struct Member {
    name: String,
    /// Where clients reach it.
    pub client: SocketAddr,
    peer: SocketAddr,
    process: Option<Child>,
}

/// A cluster; ended with everything it wrote when dropped.
pub struct Cluster {
    dir: tempfile::TempDir,
    /// Its members.
    pub members: Vec<Member>,
    options: Vec<String>,
}

/// Free ports below those that the kernel gives out by itself, so that nothing takes them while a member is down.
fn free_ports(n: usize) -> Vec<SocketAddr> {
    let mut held: Vec<TcpListener> = Vec::new();
    let mut random = std::collections::hash_map::RandomState::new();
    while held.len() < n {
        let port = 10_000 + (random.hash_one(held.len()) % 22_000) as u16;
        random = std::collections::hash_map::RandomState::new();
        held.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
    }
    held.iter().map(|l| l.local_addr().expect("address")).collect()
}

impl Cluster {
    /// Starts `n` members with further options and waits until they have a leader.
    pub fn start(n: usize, options: &[&str]) -> Self {
        let ports = free_ports(2 * n);
        let members = (0..n)
            .map(|i| Member {
                name: format!("m{i}"),
                client: ports[i],
                peer: ports[n + i],
                process: None,
            })
            .collect();
        let mut cluster = Self {
            dir: tempfile::tempdir().expect("a directory"),
            members,
            options: options.iter().map(ToString::to_string).collect(),
        };
        for i in 0..n {
            cluster.spawn(i);
        }
        for i in 0..n {
            cluster.wait(i);
        }
        cluster
    }

    /// Where clients reach it.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|m| format!("http://{}", m.client)).collect()
    }

    fn log(&self, i: usize) -> PathBuf {
        self.dir.path().join(format!("m{i}.log"))
    }

    fn spawn(&mut self, i: usize) {
        let all: Vec<_> =
            self.members.iter().map(|m| format!("{}=http://{}", m.name, m.peer)).collect();
        let log = std::fs::File::options().create(true).append(true).open(self.log(i));
        let log = log.expect("the member's log");
        let m = &mut self.members[i];
        let (client, peer) = (format!("http://{}", m.client), format!("http://{}", m.peer));
        let mut command = Command::new("etcd");
        command.args(["--name", &m.name, "--data-dir"]).arg(self.dir.path().join(&m.name));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &all.join(","), "--logger", "zap"]);
        command.args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
        command.args(&self.options).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("log")).stderr(log);
        let child = command.spawn();
        m.process = Some(child.unwrap_or_else(|e| {
            panic!("cannot run etcd: {e}. Install it (Debian: apt-get install etcd-server); ./test does")
        }));
    }

    /// Waits until the member answers a linearizable read.
    fn wait(&mut self, i: usize) {
        let end = Instant::now() + START_BOUND;
        while !self.answers(i) {
            let over = Instant::now() > end;
            let m = &mut self.members[i];
            let ended = m.process.as_mut().and_then(|p| p.try_wait().expect("child"));
            if over || ended.is_some() {
                let log = std::fs::read_to_string(self.log(i)).unwrap_or_default();
                panic!("etcd {i} does not answer ({ended:?}):\n{log}");
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    fn answers(&self, i: usize) -> bool {
        self.post(i, "/v3/kv/range", r#"{"key":"eA=="}"#).contains("200 OK")
    }

    /// One request to a member, apart from the engine; the answer's text, or nothing.
    pub fn post(&self, i: usize, path: &str, body: &str) -> String {
        let connect = || -> std::io::Result<String> {
            let address = &self.members[i].client;
            let mut s = TcpStream::connect_timeout(address, Duration::from_secs(1))?;
            s.set_read_timeout(Some(Duration::from_secs(5)))?;
            write!(
                s,
                "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )?;
            let mut text = String::new();
            s.read_to_string(&mut text)?;
            Ok(text)
        };
        connect().unwrap_or_default()
    }

    /// Ends a member as a crash would.
    pub fn kill(&mut self, i: usize) {
        if let Some(mut child) = self.members[i].process.take() {
            child.kill().expect("SIGKILL");
            child.wait().expect("wait");
        }
    }

    /// Starts a killed member again.
    pub fn restart(&mut self, i: usize) {
        self.spawn(i);
        self.wait(i);
    }

    /// Sends a signal to a member.
    pub fn signal(&self, i: usize, name: &str) {
        let pid = self.members[i].process.as_ref().expect("it runs").id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().expect("kill");
        assert!(status.success());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for i in 0..self.members.len() {
            self.kill(i);
        }
    }
}
