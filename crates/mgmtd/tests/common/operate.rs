//! A cluster of storages that only heartbeat, and an operator who changes it.

use super::*;
use glowfs_types::wire::operate::{MoveAway, MoveAwayReply};

/// Generous: only a defect lets it pass.
pub const BOUND: Duration = Duration::from_secs(30);

pub async fn cluster(rt: &Rt, n: u64, replace_after_ms: u64) -> (World, Running, Vec<FakeStorage>) {
    cluster_with(rt, n, |t| t.replace_after_ms = replace_after_ms).await
}

pub async fn cluster_with(
    rt: &Rt,
    n: u64,
    tune: impl FnOnce(&mut Timing),
) -> (World, Running, Vec<FakeStorage>) {
    let w = World::new(rt);
    let mut config = w.config(100);
    config.timing.repair_ms = 50;
    tune(&mut config.timing);
    let m = w.mgmtd_with(config).await;
    let storages: Vec<_> =
        (1..=n).map(|i| FakeStorage::start(&w, i, at(&m), Rc::default())).collect();
    for s in &storages {
        s.agent.ready().await;
    }
    rt.sleep(ms(200)).await;
    create_table(&storages[0].agent, 3, 6).await;
    until(rt, &storages[0].agent, BOUND, "serving", |r| all_chains(r, healthy)).await;
    (w, m, storages)
}

pub fn on(r: &RoutingInfo, node: NodeId) -> usize {
    r.targets.values().filter(|t| t.node == node).count()
}

pub fn complete(r: &RoutingInfo) -> bool {
    all_chains(r, |c| healthy(c) && c.members.len() == 3)
}

pub async fn admin<Q, R>(w: &World, m: &Running, method: u16, q: &Q) -> Result<R>
where
    Q: minicbor::Encode<()>,
    R: for<'b> minicbor::Decode<'b, ()>,
{
    let conn = w.conn(&at(m), ROOT_TOKEN).await.expect("connected");
    conn.call_msg(method, q, ms(5000)).await
}

/// Changes a setting of mgmtd while it runs; nothing was set before.
pub async fn set_config(w: &World, m: &Running, toml: &str) {
    let item = ConfigItem { version: ConfigVersion(0), role: Role::Mgmtd, toml: toml.to_owned() };
    let change = ClusterConfig { items: vec![item], ..ClusterConfig::default() };
    let _: ClusterConfig = admin(w, m, method::SET_CONFIG, &change).await.expect("changed");
}

/// A node comes back with disks that are too slow to be brought up to date: until it has nothing but members that wait.
pub async fn back_and_too_slow(
    w: &World,
    m: &Running,
    node: NodeId,
    disk: Rc<Disk>,
) -> FakeStorage {
    let back = FakeStorage::start(w, node.0, at(m), disk);
    back.fake.syncs.set(false);
    let end = w.rt.now() + BOUND;
    back.agent.ready().await;
    loop {
        let r = back.agent.routing();
        assert!(w.rt.now() < end, "{:#?}", r.chains);
        let mut waits = !r.chains.is_empty();
        for c in r.chains.values() {
            let Some(member) = c.members.iter().find(|m| m.node == node) else { continue };
            waits &= member.state == PublicState::Waiting;
            if member.state == PublicState::Syncing {
                too_slow(&back.agent, c, member.target).await;
            }
        }
        if waits {
            return back;
        }
        w.rt.sleep(ms(50)).await;
    }
}

/// The source of a member says that it is too slow.
pub async fn too_slow(agent: &Agent, c: &ChainInfo, target: TargetId) {
    let report = ReportSlow {
        chain: c.id,
        version: c.version,
        target,
        reporter: c.serving().last().expect("a source").target,
        unreachable: false,
    };
    let _: Empty = agent.link().call(method::REPORT_SLOW, &report, ms(5000)).await.expect("heard");
}

/// An order for a disk of a node, or for all of it.
pub async fn order(
    w: &World,
    m: &Running,
    (node, disk): (u64, Option<u32>),
    what: u8,
) -> Result<MoveAwayReply> {
    let ask = MoveAway { node: NodeId(node), disk, what, dry_run: false, store: None };
    admin(w, m, method::MOVE_AWAY, &ask).await
}

/// The same, as soon as it is taken: a node that has just started may not count yet.
pub async fn order_when_possible(w: &World, m: &Running, place: (u64, Option<u32>), what: u8) {
    let end = w.rt.now() + BOUND;
    while let Err(e) = order(w, m, place, what).await {
        assert!(w.rt.now() < end, "not within {BOUND:?}: {e}");
        w.rt.sleep(ms(50)).await;
    }
}

pub async fn register(s: &FakeStorage, disks: &[(StoreId, u32)]) {
    let register = stores_of(&s.agent, s.node, disks);
    let done: Result<Empty> =
        s.agent.link().call(method::REGISTER_STORES, &register, ms(5000)).await;
    done.expect("registered");
}
