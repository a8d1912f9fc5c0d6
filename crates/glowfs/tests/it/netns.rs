//! Every node in a network namespace of its own, with its own address, over TCP: as on separate machines.

use crate::harness::{Scratch, binary, eventually_within, must, run, sh};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A hub with a bridge, and one namespace for each node, cabled to it.
struct Net {
    hub: String,
    nodes: Vec<String>,
}

impl Net {
    fn new(nodes: usize) -> Self {
        let tag = std::process::id();
        let hub = format!("glow{tag}h");
        let net = Self { nodes: (1..=nodes).map(|i| format!("glow{tag}n{i}")).collect(), hub };
        let ip = |args: &str| must(Command::new("ip").args(args.split(' ')));
        ip(&format!("netns add {}", net.hub));
        ip(&format!("-n {} link add br0 type bridge", net.hub));
        ip(&format!("-n {} link set br0 up", net.hub));
        for (i, ns) in net.nodes.iter().enumerate() {
            let i = i + 1;
            ip(&format!("netns add {ns}"));
            ip(&format!("-n {ns} link add eth0 type veth peer name p{i} netns {}", net.hub));
            ip(&format!("-n {ns} addr add 10.77.13.{i}/24 dev eth0"));
            ip(&format!("-n {ns} link set eth0 up"));
            ip(&format!("-n {ns} link set lo up"));
            ip(&format!("-n {} link set p{i} master br0 up", net.hub));
        }
        net
    }

    fn address(i: usize) -> String {
        format!("10.77.13.{i}:7000")
    }

    /// `glowfs ARGS` on node `i`.
    fn command(&self, i: usize) -> Command {
        // nsenter changes the network only; `ip netns exec` would hide the mount as well.
        let mut c = Command::new("nsenter");
        c.arg(format!("--net=/run/netns/{}", self.nodes[i - 1])).arg(binary());
        c
    }

    fn cable(&self, i: usize, state: &str) {
        must(Command::new("ip").args(["-n", &self.hub, "link", "set", &format!("p{i}"), state]));
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for ns in self.nodes.iter().chain([&self.hub]) {
            let _ = Command::new("ip").args(["netns", "del", ns]).output();
        }
    }
}

/// The processes of the test; ended in reverse order.
struct Processes(Vec<(PathBuf, Child)>);

impl Processes {
    fn start(&mut self, command: &mut Command, log: PathBuf) {
        let out = std::fs::File::create(&log).expect("log");
        let err = out.try_clone().expect("log");
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().expect("start");
        self.0.push((log, child));
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for (log, child) in self.0.iter_mut().rev() {
            let _ = Command::new("kill").arg(child.id().to_string()).output();
            let end = Instant::now() + Duration::from_secs(20);
            while child.try_wait().is_ok_and(|s| s.is_none()) {
                if Instant::now() > end {
                    let _ = child.kill();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            if std::thread::panicking() {
                eprintln!(
                    "--- {}\n{}",
                    log.display(),
                    std::fs::read_to_string(&log).unwrap_or_default()
                );
            }
        }
    }
}

fn config(dir: &Path, name: &str, node: usize, rest: &str) -> String {
    let path = dir.join(format!("{name}.toml"));
    let text = format!(
        "cluster_id = \"0123456789abcdef0123456789abcdef\"\nnode_id = {node}\nlisten = [\"tcp://{}\"]\n\
         service_token_file = \"{}\"\ntransports = [\"tcp\"]\n{rest}",
        Net::address(node),
        dir.join("service").display()
    );
    std::fs::write(&path, text).expect("config");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn nodes_on_addresses_of_their_own_and_a_cut_cable() {
    let s = Scratch::new("netns");
    let d = &s.path;
    let net = Net::new(7);
    let mut all = Processes(vec![]);
    std::fs::write(d.join("root"), "root-token-of-the-netns-test\n").expect("token");
    std::fs::write(d.join("service"), "service-token-of-the-netns-test\n").expect("token");
    let mgmtd = format!("mgmtd = [\"tcp://{}\"]\n", Net::address(1));
    let c = config(
        d,
        "meta",
        2,
        &format!("{mgmtd}[engine]\nkind = \"embedded\"\ndir = \"{}\"\n", d.join("meta").display()),
    );
    all.start(net.command(2).args(["meta", "--format", "--config", &c]), d.join("meta.log"));
    let engine = format!(
        "root_token_file = \"{}\"\n[engine]\nkind = \"remote\"\naddresses = [\"tcp://{}\"]\n",
        d.join("root").display(),
        Net::address(2)
    );
    let c = config(d, "mgmtd", 1, &engine);
    all.start(net.command(1).args(["mgmtd", "--config", &c]), d.join("mgmtd.log"));
    for i in 3..=5 {
        let disk = d.join(format!("disk{i}"));
        let c = config(
            d,
            &format!("storage{i}"),
            i,
            &format!("{mgmtd}disks = [\"{}\"]\n", disk.display()),
        );
        all.start(
            net.command(i).args(["storage", "--config", &c]),
            d.join(format!("storage{i}.log")),
        );
    }
    let admin = |args: &[&str]| {
        let mut c = net.command(6);
        c.args(["admin", "--json", "--mgmtd", &Net::address(1), "--token-file"])
            .arg(d.join("root"))
            .args(args);
        run(&mut c)
    };
    eventually_within(Duration::from_secs(30), "the table", || {
        admin(&["create-table", "--replicas", "3", "--chains", "12"]).code == 0
    });
    let complete = || {
        let o = admin(&["list-chains"]);
        let chains: serde_json::Value = serde_json::from_str(&o.out).unwrap_or_default();
        chains
            .as_array()
            .is_some_and(|c| c.len() == 12 && c.iter().all(|c| c["status"] == "complete"))
    };
    eventually_within(Duration::from_secs(30), "all chains", complete);

    let mut mounted = |node: usize| {
        let mnt = d.join(format!("mnt{node}"));
        std::fs::create_dir(&mnt).expect("directory");
        let mut mount = net.command(node);
        mount.args(["mount", "--mgmtd", &Net::address(1), "--set", "transports=[\"tcp\"]"]);
        mount.arg("--token-file").arg(d.join("root")).arg(&mnt);
        all.start(&mut mount, d.join(format!("mount{node}.log")));
        let line = format!(" {} ", mnt.display());
        let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        eventually_within(Duration::from_secs(30), "the mount", || mounts().contains(&line));
        mnt
    };
    let mnt = mounted(6);
    sh(&mnt, "dd if=/dev/urandom of=f bs=1M count=40 status=none && sync f && md5sum f > ../sum");
    sh(&mnt, "echo 3 > /proc/sys/vm/drop_caches && md5sum f | diff - ../sum");

    // Nobody reaches node 4 any more, although its process lives; reads and writes go on.
    net.cable(4, "down");
    let begun = Instant::now();
    sh(&mnt, "cp f g && sync g && cmp f g");
    eprintln!("copying 40 MiB across a cut took {:?}", begun.elapsed());
    net.cable(4, "up");
    eventually_within(Duration::from_secs(90), "all chains after the cut", complete);
    sh(&mnt, "echo 3 > /proc/sys/vm/drop_caches && md5sum f | diff - ../sum && cmp f g");
    a_client_is_cut_off(&mnt, &mounted(7), |state| net.cable(7, state));
    sh(d, "umount mnt6 mnt7");
}

/// What a client shows of a file and of a name: mode, contents, and which of two names there is.
fn shown(mnt: &Path) -> (u32, Vec<u8>, [bool; 2]) {
    use std::os::unix::fs::PermissionsExt;
    let names = ["old", "new"].map(|name| mnt.join(name).symlink_metadata().is_ok());
    let file = mnt.join("changed");
    let mode = std::fs::metadata(&file).expect("stat").permissions().mode() & 0o777;
    (mode, std::fs::read(&file).expect("read"), names)
}

/// Others change what it has in its kernel, and wait no longer than its leases last. What it shows from then on is not of before, and when it is back it goes on.
fn a_client_is_cut_off(ours: &Path, cut: &Path, cable: impl Fn(&str)) {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc::channel;
    std::fs::write(ours.join("changed"), "before").expect("write");
    sh(ours, "chmod 640 changed; touch old");
    let (before, after) =
        ((0o640, b"before".to_vec(), [true, false]), (0o600, b"behind it".to_vec(), [false, true]));
    assert_eq!((shown(cut), shown(cut)), (before.clone(), before.clone()));
    cable("down");
    let began = Instant::now();
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(ours.join("changed"), private).expect("chmod");
    std::fs::rename(ours.join("old"), ours.join("new")).expect("rename");
    std::fs::write(ours.join("changed"), "behind it").expect("write");
    let took = began.elapsed();
    eprintln!("changes of what a client that is cut off may keep took {took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(shown(ours), after);
    let (send, seen) = channel();
    let path = cut.to_owned();
    std::thread::spawn(move || send.send(shown(&path)));
    if let Ok(seen) = seen.recv_timeout(Duration::from_secs(1)) {
        panic!("nobody can have told it: {seen:?}");
    }
    cable("up");
    let seen = seen.recv_timeout(Duration::from_secs(60)).expect("it goes on");
    assert_eq!(seen, after);
    std::fs::write(cut.join("changed"), "by it").expect("write");
    assert_eq!(shown(ours), (0o600, b"by it".to_vec(), [false, true]));
}
