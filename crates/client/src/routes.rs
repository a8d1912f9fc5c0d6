//! Where a chunk is: from routing info to targets to ask. Pure.

use glowfs_types::layout::splitmix64;
use glowfs_types::routing::{ChainInfo, NodeInfo, NodeStatus, Role, RoutingInfo};
use glowfs_types::{
    ChainId, ChainVersion, Error, HostId, Layout, NodeId, Result, Status, TargetId,
};
use std::collections::BTreeSet;
use std::rc::Rc;

/// A target to ask, as the routing info has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The chain.
    pub chain: ChainId,
    /// Its version.
    pub version: ChainVersion,
    /// The target.
    pub target: TargetId,
    /// The node that hosts it.
    pub node: NodeId,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "target {} on node {}, chain {} version {}",
            self.target, self.node, self.chain, self.version
        )
    }
}

/// The chain of chunk `index` of a file.
pub fn chain_of(info: &RoutingInfo, layout: &Layout, index: u64) -> Result<ChainId> {
    let chains = table(info, layout)?;
    let position = layout.position(index, chains.len() as u32) as usize;
    chains
        .get(position)
        .copied()
        .ok_or_else(|| Error::new(Status::Internal, "layout position out of table"))
}

/// Every chain that can hold data of a file, each once, in order.
pub fn chains_of(info: &RoutingInfo, layout: &Layout) -> Result<Vec<ChainId>> {
    let chains = table(info, layout)?;
    let len = chains.len() as u32;
    let stripe = u64::from(layout.stripe.min(len).max(1));
    let set: BTreeSet<ChainId> =
        (0..stripe).filter_map(|i| chains.get(layout.position(i, len) as usize).copied()).collect();
    Ok(set.into_iter().collect())
}

fn table<'a>(info: &'a RoutingInfo, layout: &Layout) -> Result<&'a [ChainId]> {
    match info.table(layout.table, layout.table_version) {
        Some(t) if !t.chains.is_empty() => Ok(&t.chains),
        _ => Err(Error::new(
            // It may be newer than our copy: refresh and look again.
            Status::ChainUnavailable,
            format!(
                "chain table {} version {} is not in routing info version {}; create it with `glowfs admin`",
                layout.table, layout.table_version, info.version
            ),
        )),
    }
}

/// The head of a chain: where updates go.
pub fn head(info: &RoutingInfo, chain: ChainId) -> Result<Place> {
    let c = find(info, chain)?;
    let m = c.head().ok_or_else(|| unavailable(c, info))?;
    Ok(Place { chain, version: c.version, target: m.target, node: m.node })
}

/// Where an attempt was made, as far as it came; put into words only if it failed.
#[derive(Clone, Debug, Default)]
pub struct Site {
    /// The routing info it went by.
    pub info: Option<Rc<RoutingInfo>>,
    /// The target.
    pub place: Option<Place>,
    /// The node, if no target is meant.
    pub node: Option<NodeId>,
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.place, self.node) {
            (Some(p), _) => write!(f, "{p}")?,
            (_, Some(n)) => write!(f, "node {n}")?,
            _ => return f.write_str("before sending"),
        }
        let node = self.place.map(|p| p.node).or(self.node);
        let found = self.info.as_ref().zip(node).and_then(|(i, n)| i.nodes.get(&n));
        found.map_or(Ok(()), |n| write!(f, " at {}", n.addresses.join(", ")))
    }
}

/// The serving targets of a chain.
pub fn serving(info: &RoutingInfo, chain: ChainId) -> Result<Vec<Place>> {
    let c = find(info, chain)?;
    let places: Vec<Place> = c
        .serving()
        .map(|m| Place { chain, version: c.version, target: m.target, node: m.node })
        .collect();
    if places.is_empty() {
        return Err(unavailable(c, info));
    }
    Ok(places)
}

/// The serving targets of a chain in the order a reader should ask them: same host first, then spread by `spread`;
/// suspects last.
pub fn readers(
    info: &RoutingInfo,
    chain: ChainId,
    host: HostId,
    spread: u64,
    suspect: impl Fn(NodeId) -> bool,
) -> Result<Vec<Place>> {
    let mut places = serving(info, chain)?;
    let turn = (splitmix64(spread) % places.len() as u64) as usize;
    places.rotate_left(turn);
    let near = |node| {
        host != HostId(0) && info.nodes.get(&node).is_some_and(|n: &NodeInfo| n.host == host)
    };
    places.sort_by_key(|p| (suspect(p.node), !near(p.node)));
    Ok(places)
}

/// The last serving target of a chain, which has every committed version.
pub fn tail(info: &RoutingInfo, chain: ChainId) -> Result<Place> {
    let c = find(info, chain)?;
    let m = c.tail().ok_or_else(|| unavailable(c, info))?;
    Ok(Place { chain, version: c.version, target: m.target, node: m.node })
}

/// Meta services in the order to try them: those that mgmtd hears from first, turned by `spread`; `avoid` last.
pub fn metas(info: &RoutingInfo, spread: u64, avoid: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
    let mut found: Vec<&NodeInfo> = info
        .nodes
        .values()
        .filter(|n| {
            n.role == Role::Meta && !n.addresses.is_empty() && n.status != NodeStatus::Disabled
        })
        .collect();
    if found.is_empty() {
        return Vec::new();
    }
    let turn = (splitmix64(spread) % found.len() as u64) as usize;
    found.rotate_left(turn);
    found.sort_by_key(|n| (n.status == NodeStatus::Failed, avoid(n.id)));
    found.iter().map(|n| n.id).collect()
}

fn find(info: &RoutingInfo, chain: ChainId) -> Result<&ChainInfo> {
    info.chains.get(&chain).ok_or_else(|| {
        Error::new(
            Status::ChainUnavailable,
            format!("chain {chain} is not in routing info version {}", info.version),
        )
    })
}

fn unavailable(c: &ChainInfo, info: &RoutingInfo) -> Error {
    let members: Vec<String> = c
        .members
        .iter()
        .map(|m| format!("target {} on node {}: {}", m.target, m.node, m.state))
        .collect();
    Error::new(
        Status::ChainUnavailable,
        format!(
            "chain {} version {} has no serving target (routing info version {}; {})",
            c.id,
            c.version,
            info.version,
            members.join(", ")
        ),
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use glowfs_types::routing::{ChainMember, ChainTable, PublicState};
    use glowfs_types::{ChainTableId, Durability, Redundancy, RoutingVersion};
    use std::collections::BTreeMap;

    pub(crate) fn layout(stripe: u32) -> Layout {
        Layout {
            table: ChainTableId(1),
            table_version: 1,
            chunk_bytes: 65536,
            stripe,
            start: 1,
            redundancy: Redundancy::Replicated,
            durability: Durability::Written,
            inline_bytes: 0,
        }
    }

    /// Three nodes (host = id), three chains of three replicas, rotated.
    pub(crate) fn cluster() -> RoutingInfo {
        let mut info = RoutingInfo { version: RoutingVersion(4), ..Default::default() };
        for n in 1..=3 {
            info.nodes.insert(NodeId(n), node(n, Role::Storage));
        }
        for c in 0..3u64 {
            let members = (0..3)
                .map(|i| {
                    let n = (c + i) % 3 + 1;
                    ChainMember {
                        target: TargetId(c * 10 + n),
                        node: NodeId(n),
                        state: PublicState::Serving,
                    }
                })
                .collect();
            info.chains.insert(
                ChainId(c + 1),
                ChainInfo {
                    id: ChainId(c + 1),
                    version: ChainVersion(7),
                    activated: ChainVersion(7),
                    activated_serving: vec![],
                    members,
                    redundancy: Redundancy::Replicated,
                    preferred: vec![],
                    lost: ChainVersion(0),
                },
            );
        }
        info.tables.push(ChainTable {
            id: ChainTableId(1),
            version: 1,
            chains: vec![ChainId(1), ChainId(2), ChainId(3)],
            description: String::new(),
            replicas: 0,
        });
        info
    }

    pub(crate) fn node(n: u64, role: Role) -> NodeInfo {
        NodeInfo {
            id: NodeId(n),
            role,
            addresses: vec![format!("tcp://127.0.0.1:{n}")],
            host: HostId(u128::from(n)),
            hostname: format!("h{n}"),
            pid: 0,
            tags: BTreeMap::new(),
            status: NodeStatus::Active,
            last_heartbeat_ns: 0,
            config_version: Default::default(),
            release: String::new(),
            http: None,
            kept_out_ms: 0,
        }
    }

    #[test]
    fn chains_follow_the_layout() {
        let info = cluster();
        let l = layout(2);
        assert_eq!(chain_of(&info, &l, 0).expect("chain"), ChainId(2));
        assert_eq!(chain_of(&info, &l, 1).expect("chain"), ChainId(3));
        assert_eq!(chain_of(&info, &l, 2).expect("chain"), ChainId(2));
        assert_eq!(chains_of(&info, &l).expect("chains"), [ChainId(2), ChainId(3)]);
        assert_eq!(chains_of(&info, &layout(99)).expect("chains").len(), 3);
        let missing = Layout { table_version: 2, ..l };
        assert_eq!(
            chain_of(&info, &missing, 0).expect_err("no table").status,
            Status::ChainUnavailable
        );
    }

    #[test]
    fn readers_prefer_the_host_and_put_suspects_last() {
        let info = cluster();
        for spread in 0..20 {
            let r = readers(&info, ChainId(1), HostId(2), spread, |_| false).expect("readers");
            assert_eq!(r[0].node, NodeId(2));
            assert_eq!(r.len(), 3);
            let r =
                readers(&info, ChainId(1), HostId(2), spread, |n| n == NodeId(2)).expect("readers");
            assert_eq!(r[2].node, NodeId(2));
        }
        let first: BTreeSet<NodeId> = (0..50)
            .map(|s| readers(&info, ChainId(1), HostId(0), s, |_| false).expect("readers")[0].node)
            .collect();
        assert_eq!(first.len(), 3, "spread over all replicas");
    }

    #[test]
    fn heads_and_tails_skip_who_does_not_serve() {
        let mut info = cluster();
        assert_eq!(head(&info, ChainId(1)).expect("head").node, NodeId(1));
        assert_eq!(tail(&info, ChainId(1)).expect("tail").node, NodeId(3));
        let c = info.chains.get_mut(&ChainId(1)).expect("chain");
        c.members[2].state = PublicState::Syncing;
        assert_eq!(tail(&info, ChainId(1)).expect("tail").node, NodeId(2));
        let c = info.chains.get_mut(&ChainId(1)).expect("chain");
        for m in &mut c.members {
            m.state = PublicState::Offline;
        }
        let e = head(&info, ChainId(1)).expect_err("nobody serves");
        assert!(e.message.contains("target 1 on node 1: offline"), "{e}");
    }

    #[test]
    fn metas_are_spread_and_failed_ones_last() {
        let mut info = cluster();
        assert!(metas(&info, 0, |_| false).is_empty());
        for n in 10..13 {
            info.nodes.insert(NodeId(n), node(n, Role::Meta));
        }
        info.nodes.get_mut(&NodeId(11)).expect("node").status = NodeStatus::Failed;
        for s in 0..10 {
            let m = metas(&info, s, |n| n == NodeId(10));
            assert_eq!(m, [NodeId(12), NodeId(10), NodeId(11)]);
        }
    }
}
