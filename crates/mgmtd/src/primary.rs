//! Becoming primary: loading the state, and the bootstrap of a new cluster.

use crate::clients::cut_texts;
use crate::core::Inner;
use crate::deaf::Fences;
use crate::keys;
use crate::records::{ClusterRecord, UserRecord};
use crate::routing::Answers;
use crate::slow::BROKEN_MEMORY_MS;
use crate::state::{Client, State};
use crate::store::{Loaded, Writes};
use glowfs_cluster::{BrokenLinks, FallPauses, LeaseConfig, NodeLeases, Pauses, Reach, Standing};
use glowfs_types::routing::{NodeInfo, NodeStatus, Role};
use glowfs_types::wire::mgmtd::UserInfo;
use glowfs_types::{ConfigVersion, Error, NodeId, Result, Status, TargetId, UserId};
use std::collections::VecDeque;
use std::rc::Rc;

/// The id of the first key of capabilities.
const FIRST_CAPABILITY_KEY: u32 = 1;
/// So many heartbeats in a row bring a node back that was declared dead in the same life.
const RETURN_BEATS: u32 = 2;

impl Inner {
    /// Loads everything; this instance answers as primary of `epoch` when it returns, if it still is.
    pub async fn become_primary(self: &Rc<Self>, epoch: u64) -> Result<()> {
        let stepped_down = self.stepped_down.get();
        let mut loaded = self.store.load().await?;
        if loaded.cluster.is_none() {
            self.bootstrap(epoch).await?;
            loaded = self.store.load().await?;
        }
        let Some(cluster) = loaded.cluster.clone() else {
            return Err(Error::new(
                Status::Internal,
                "the cluster record was written and is not there",
            ));
        };
        if let Err(e) = self.check_cluster(&cluster) {
            self.fail(e.clone());
            return Err(e);
        }
        self.remove_unlisted(epoch, &mut loaded).await?;
        let now = self.election.borrow_mut().standing(self.now_ms());
        let primary = matches!(now, Standing::Primary { epoch: e, .. } if e == epoch);
        if !primary || self.stepped_down.get() != stepped_down || self.stopping.get() {
            return Err(Error::new(
                Status::NotPrimary,
                "the lease ran out while the state was loaded",
            ));
        }
        let root = loaded.users.iter().find(|u| u.info.user == UserId(0));
        if root.is_some_and(|u| *u.hash != self.root_hash) {
            tracing::warn!(
                "root_token_file does not hold root's token; it is read only when a cluster is made. Who has lost that token gives root a new one with the services': «glowfs admin --token-file SERVICE_TOKEN_FILE user-change 0 --new-token --yes»"
            );
        }
        let state = self.build(epoch, cluster, loaded);
        tracing::info!(epoch, version = %state.version, "primary");
        *self.state.borrow_mut() = Some(state);
        self.metrics.primary.set(1);
        self.work.notify_all();
        self.changed.notify_all();
        Ok(())
    }

    async fn bootstrap(&self, epoch: u64) -> Result<()> {
        let mut key = [0u8; 32];
        for part in key.chunks_exact_mut(8) {
            part.copy_from_slice(&self.rt.random().to_le_bytes());
        }
        let record = ClusterRecord {
            cluster: self.cluster,
            created_ns: self.rt.unix_ns(),
            service_hash: self.service_hash.into(),
            capability_keys: vec![(FIRST_CAPABILITY_KEY, key.into())],
        };
        let root = UserRecord {
            info: UserInfo {
                user: UserId(0),
                name: "root".into(),
                groups: vec![0],
                root: true,
                admin: true,
                service: false,
            },
            hash: self.root_hash.into(),
        };
        let mut writes = Writes::new();
        writes.insert(keys::cluster(), Some(keys::encode(&record)));
        writes.insert(keys::user(UserId(0)), Some(keys::encode(&root)));
        writes.insert(keys::token(&self.root_hash), Some(keys::encode(&UserId(0))));
        self.write(epoch, None, &writes).await?;
        tracing::info!(cluster = %self.cluster, "new cluster");
        Ok(())
    }

    fn check_cluster(&self, record: &ClusterRecord) -> Result<()> {
        if record.cluster != self.cluster {
            return Err(Error::new(
                Status::WrongCluster,
                format!(
                    "the metadata engine holds cluster {}, the configuration says {}: correct cluster_id, or the engine's address",
                    record.cluster, self.cluster
                ),
            ));
        }
        if *record.service_hash != self.service_hash {
            return Err(Error::new(
                Status::BadToken,
                "the service token is not this cluster's: put the token that the cluster was created with into service_token_file",
            ));
        }
        Ok(())
    }

    fn build(&self, epoch: u64, cluster: ClusterRecord, l: Loaded) -> State {
        let t = &self.config.timing;
        let lease = LeaseConfig {
            lease_ms: t.node_lease_ms,
            margin_ms: t.margin_ms,
            stall_ms: (4 * t.scan_ms).max(t.margin_ms),
            return_beats: RETURN_BEATS,
            pauses: FallPauses { first_ms: t.slow_pause_ms, longest_ms: t.slow_pause_max_ms },
        };
        let active: Vec<NodeId> = l
            .nodes
            .iter()
            .filter(|n| {
                use NodeStatus::{Active, Primary, Standby};
                matches!(n.value.status, Active | Standby | Primary)
            })
            .map(|n| n.value.id)
            .collect();
        let now = self.rt.now();
        let overlap_ms = self.election.borrow().overlap_ms();
        let mut dead = l.dead;
        dead.sort_by_key(|d| (d.ended_ns, d.client));
        let dead: VecDeque<_> = dead.into_iter().map(|d| d.client).collect();
        let leases = NodeLeases::new(lease, active, self.now_ms(), overlap_ms);
        let mut s = State {
            epoch,
            cluster,
            version: l.version,
            nodes: l.nodes.into_iter().map(|i| (i.value.id, i)).collect(),
            targets: l.targets.into_iter().map(|i| (i.value.id, i)).collect(),
            chains: l.chains.into_iter().map(|i| (i.value.info.id, i)).collect(),
            gone: l.gone.into_iter().map(|g| (g.target, g)).collect(),
            gone_nodes: l.gone_nodes.into_iter().map(|i| (i.value, i.changed)).collect(),
            tables: l.tables,
            stores: l.stores.into_iter().map(|s| (s.offer.store, s)).collect(),
            tokens: l.users.iter().map(|u| (*u.hash, u.info.user)).collect(),
            users: l.users.into_iter().map(|u| (u.info.user, u)).collect(),
            configs: l.configs,
            overrides: l.overrides.into_iter().collect(),
            clients: Default::default(),
            counts: Default::default(),
            fences: Fences::new(leases.over_ms(self.now_ms()) + overlap_ms),
            leases,
            heard: Default::default(),
            held: TargetId(0),
            reach: Reach::new(t.reach_memory_ms),
            broken: BrokenLinks::new(BROKEN_MEMORY_MS),
            pauses: Pauses::new(t.slow_pause_ms, t.slow_pause_max_ms),
            unreachable: Default::default(),
            said: Default::default(),
            second: Default::default(),
            idle: Default::default(),
            registered: Default::default(),
            dirty_nodes: Default::default(),
            dirty_chains: Default::default(),
            dead_clients: dead,
            answers: Answers::default(),
        };
        for mut session in l.clients {
            cut_texts(&mut session);
            s.meet(Client { session, heard: now, ending: false });
        }
        s.said.insert(self.config.node(), self.own_node(NodeStatus::Primary));
        s.dirty_nodes = s.nodes.keys().copied().chain([self.config.node()]).collect();
        s.dirty_chains = s.chains.keys().copied().collect();
        // Whoever was primary before is a standby now, or gone; its heartbeats will tell.
        let own = self.config.node();
        let others = s.nodes.values().filter(|i| i.value.role == Role::Mgmtd && i.value.id != own);
        let others: Vec<NodeInfo> =
            others.map(|i| NodeInfo { status: NodeStatus::Standby, ..i.value.clone() }).collect();
        s.said.extend(others.into_iter().map(|n| (n.id, n)));
        s
    }

    /// What this instance says of itself.
    pub fn own_node(&self, status: NodeStatus) -> NodeInfo {
        NodeInfo {
            id: self.config.node(),
            role: Role::Mgmtd,
            addresses: self.addresses.clone(),
            host: glowfs_net::local_host_id(),
            hostname: glowfs_net::local_hostname(),
            pid: glowfs_rt::process::pid(),
            tags: self.config.tags.clone(),
            status,
            last_heartbeat_ns: self.rt.unix_ns(),
            config_version: ConfigVersion(0),
            release: glowfs_telemetry::RELEASE.to_owned(),
            http: self.config.http.clone(),
            kept_out_ms: 0,
        }
    }
}
