//! Stores and chain tables.

use crate::core::Inner;
use crate::edit::Edit;
use crate::ground::usable;
use crate::growing::unused;
use crate::laying::{FOR_LIFE, Laid, check_room, lay};
use crate::records::{StoreRecord, TableRecord, standing};
use crate::second::refuse_stores;
use crate::state::State;
use crate::store::Writes;
use glowfs_placement::{Place, Request, plan};
use glowfs_types::routing::{LocalState, Role, TargetInfo};
use glowfs_types::wire::mgmtd::{
    CreateTable, CreateTableReply, RefusedStore, RegisterStores, RegisterStoresReply, StoreOffer,
};
use glowfs_types::{
    ChainId, ChainVersion, Error, HostId, Incarnation, NodeId, Result, RoutingVersion, Status,
    StoreId, TargetId,
};
use std::collections::BTreeSet;
use std::fmt::Write;

/// The greatest number of stores of one node.
const STORES_PER_NODE_MAX: usize = 1024;
/// Targets whose disk has another number by now, put right by one transaction.
const TARGETS_PER_CHANGE: usize = 128;
/// Chains laid, or removed again, by one transaction.
pub(crate) const CHAINS_PER_CHANGE: usize = 128;

impl Inner {
    /// `from` is what the other end of the connection says that it is, and where.
    pub async fn register_stores(
        &self,
        from: (Option<Role>, HostId),
        register: RegisterStores,
    ) -> Result<RegisterStoresReply> {
        let bad = |what: String| Err(Error::new(Status::InvalidArgument, what));
        if register.stores.len() > STORES_PER_NODE_MAX {
            return bad(format!("a node has at most {STORES_PER_NODE_MAX} stores"));
        }
        if register.node == NodeId(0) || register.stores.iter().any(|s| s.store == StoreId(0)) {
            return bad("stores and their nodes have ids greater than 0".into());
        }
        let _held = self.lock.acquire(1).await;
        let (own, node) = (self.config.node(), register.node);
        self.with(|s| refuse_stores(s, own, from, &register))??;
        let (edit, refused) = self.with(|s| offered(s, register))?;
        for r in &refused {
            tracing::warn!(store = %r.store, why = r.why, "a store was not registered");
        }
        for r in edit.stores.iter().filter(|r| r.away == standing::UNVOUCHED && !r.superseded) {
            tracing::warn!(
                store = %r.offer.store,
                "a new store is in the place of disk {}:{}. It takes nothing: mount the disk that was there, or say `glowfs admin disk replace {0}:{1}`",
                r.node, r.offer.disk_index
            );
        }
        self.commit(edit).await?;
        // Behind that, in pieces: a node that is cut off here registers again.
        for piece in self.with(|s| renumbered(s, node))?.chunks(TARGETS_PER_CHANGE) {
            self.commit(Edit { targets: piece.to_vec(), ..Edit::default() }).await?;
        }
        Ok(RegisterStoresReply { refused })
    }

    pub async fn create_table(&self, create: CreateTable) -> Result<CreateTableReply> {
        let _held = self.lock.acquire(1).await;
        let existing = self.with(|s| {
            let of: Vec<_> = s.tables.iter().filter(|t| t.value.table.id == create.table).collect();
            let same = |t: &TableRecord| t.replicas == create.replicas && t.chains == create.chains;
            // A version that has grown since was made with other arguments.
            let made = of.iter().find(|t| same(&t.value)).or(of.last());
            made.map(|t| (t.value.clone(), same(&t.value), unused(s)))
        })?;
        if let Some((have, same, unused)) = existing {
            if same {
                return Ok(CreateTableReply {
                    version: have.table.version,
                    explanation: format!(
                        "table {} exists with these arguments{unused}",
                        create.table
                    ),
                });
            }
            return Err(Error::new(
                Status::Exists,
                format!(
                    "table {} exists with {} chains of {}: let it grow (`glowfs admin grow-table`), or choose another table id",
                    create.table, have.chains, have.replicas
                ),
            ));
        }
        // A chain with a member that was never there would serve nobody.
        let (places, left_out) = self.with(|s| {
            let places = usable(s);
            let left_out = left_out(s, &places);
            (places, left_out)
        })?;
        let request = Request { replicas: create.replicas, chains: create.chains };
        let plan =
            plan(&places, request).map_err(|e| Error::new(e.status, e.message + &left_out))?;
        let mut explanation = plan.explain() + &left_out;
        if create.dry_run {
            explanation += FOR_LIFE;
        }
        let (chains, table) = self.with(|s| {
            let (chains, table) = lay(s, &create, &plan);
            check_room(s, &chains, &table).map(|()| (chains, table))
        })??;
        if !create.dry_run {
            self.write_table(chains, table).await?;
            tracing::info!(table = %create.table, chains = create.chains, replicas = create.replicas, "table laid");
        }
        Ok(CreateTableReply { version: 1, explanation })
    }

    /// Lays a table: the engine gets its chains piece by piece, and the table with the last change. Nobody knows of any of them before, neither this copy nor the
    /// nodes; chains that are there without their table, since this was cut off, the next primary removes ([`crate::unlisted`]). The lock is held.
    pub(crate) async fn write_table(&self, chains: Vec<Laid>, table: TableRecord) -> Result<()> {
        let (epoch, from) = self.with(|s| (s.epoch, s.version))?;
        let (to, now) = (from.next(), (epoch, self.stepped_down.get()));
        let mut whole = Edit::default();
        for piece in chains.chunks(CHAINS_PER_CHANGE) {
            let edit = Edit {
                chains: piece.iter().map(|(chain, _)| chain.clone()).collect(),
                targets: piece.iter().flat_map(|(_, targets)| targets).cloned().collect(),
                ..Edit::default()
            };
            self.lay_down(now, None, &edit.writes(to)).await?;
            whole.chains.extend(edit.chains);
            whole.targets.extend(edit.targets);
        }
        whole.tables.push(table);
        let last = Edit { tables: whole.tables.clone(), ..Edit::default() };
        self.lay_down(now, Some((from, to)), &last.writes(to)).await?;
        self.stored(epoch, |s| whole.apply(s, to, self.now_ms()))?;
        self.metrics.version.set(i64::try_from(to.0).unwrap_or(i64::MAX));
        self.changed.notify_all();
        Ok(())
    }

    /// One step of that. If it fails, what the steps before have left must be gone before anything else is changed; so it must if this instance was none for a
    /// moment, even if it is primary again in the same epoch.
    async fn lay_down(
        &self,
        (epoch, stepped_down): (u64, u64),
        routing: Option<(RoutingVersion, RoutingVersion)>,
        writes: &Writes,
    ) -> Result<()> {
        let mut done = Err(Error::new(Status::NotPrimary, "this mgmtd has just stepped down"));
        if self.stepped_down.get() == stepped_down {
            done = self.write(epoch, routing, writes).await;
        }
        if done.is_err() {
            self.step_down("a table could not be laid to its end");
        }
        done
    }
}

/// What becomes of the stores that a node offers. One of another node is refused, and only that.
fn offered(s: &State, register: RegisterStores) -> (Edit, Vec<RefusedStore>) {
    let node = register.node;
    let owner = |o: &StoreOffer| s.stores.get(&o.store).map(|r| r.node).filter(|n| *n != node);
    let (foreign, ours): (Vec<_>, Vec<_>) =
        register.stores.into_iter().partition(|o| owner(o).is_some());
    let refused = foreign.iter().filter_map(|o| {
        let why = format!(
            "store {} belongs to node {}: put the disk back there, or give an empty one",
            o.store,
            owner(o)?
        );
        Some(RefusedStore { store: o.store, why })
    });
    let here: BTreeSet<StoreId> = ours.iter().map(|s| s.store).collect();
    let mut edit = Edit::default();
    for offer in ours {
        let known = s.stores.get(&offer.store);
        // One that is named as well has only moved to another index.
        let before = s.stores.values().filter(|r| {
            !here.contains(&r.offer.store)
                && r.node == node
                && r.offer.disk_index == offer.disk_index
                && !r.superseded
        });
        let before: Vec<_> =
            before.map(|r| StoreRecord { superseded: true, absent: true, ..r.clone() }).collect();
        let away = match known {
            Some(r) => r.away,
            None if before.is_empty() => standing::STAYS,
            None => standing::UNVOUCHED,
        };
        edit.stores.extend(before);
        let record = StoreRecord { node, offer, away, superseded: false, absent: false };
        if known != Some(&record) {
            edit.stores.push(record);
        }
    }
    let changed: BTreeSet<StoreId> = edit.stores.iter().map(|r| r.offer.store).collect();
    let missed = s.stores.values().filter(|r| {
        let id = r.offer.store;
        r.node == node && !r.absent && !here.contains(&id) && !changed.contains(&id)
    });
    edit.stores.extend(missed.map(|r| StoreRecord { absent: true, ..r.clone() }));
    (edit, refused.collect())
}

/// The targets of a node that are recorded under another number of their disk than it has now: commands go by the one that lists show.
fn renumbered(s: &State, node: NodeId) -> Vec<TargetInfo> {
    let of_node = s.targets.values().map(|t| &t.value).filter(|t| t.node == node);
    let moved = of_node.filter_map(|t| {
        let disk_index = s.stores.get(&t.store)?.offer.disk_index;
        (disk_index != t.disk_index).then(|| TargetInfo { disk_index, ..t.clone() })
    });
    moved.collect()
}

pub(crate) fn new_target(id: TargetId, chain: ChainId, place: &Place) -> TargetInfo {
    TargetInfo {
        id,
        chain,
        node: place.node,
        store: place.store,
        disk_index: place.disk_index,
        local: LocalState::Offline,
        incarnation: Incarnation(0),
        used_bytes: 0,
        adopted: ChainVersion(0),
        nonce: 0,
    }
}

/// The rack that a node's labels name.
pub(crate) fn rack_of(s: &State, node: NodeId) -> String {
    let Some(item) = s.nodes.get(&node) else { return String::new() };
    let tags = &item.value.tags;
    let parts: Vec<&str> =
        ["zone", "rack"].iter().filter_map(|t| tags.get(*t)).map(String::as_str).collect();
    parts.join("/")
}

/// The disks over which a table is not laid, and why, for people.
pub(crate) fn left_out(s: &State, places: &[Place]) -> String {
    let used: BTreeSet<StoreId> = places.iter().map(|p| p.store).collect();
    let mut out = String::new();
    for r in s.stores.values().filter(|r| !r.superseded && !used.contains(&r.offer.store)) {
        let why = match r.away {
            _ if r.absent => "it is not there",
            standing::DRAINED => "it is drained",
            standing::REPLACED => "it was replaced",
            standing::UNVOUCHED => {
                "it is in the place of another one: mount that, or say `disk replace`"
            }
            _ if !s.leases.alive(r.node) => "its node is away",
            _ => "it has failed",
        };
        // Writing into a String cannot fail.
        let _ = write!(out, "\n  left out: node {} disk {}: {why}", r.node, r.offer.disk_index);
    }
    out
}

/// Every registered store that is there and stays, with its rack.
pub(crate) fn places(s: &State) -> Vec<Place> {
    s.stores
        .values()
        .filter(|r| r.away == standing::STAYS && !r.superseded && !r.absent)
        .map(|r| Place {
            node: r.node,
            store: r.offer.store,
            disk_index: r.offer.disk_index,
            capacity_bytes: r.offer.capacity_bytes,
            rack: rack_of(s, r.node),
        })
        .collect()
}
