//! A table before it is laid: its chains, and whether there is room for it. Once laid they cannot be taken away.

use crate::records::{Item, TableRecord};
use crate::state::State;
use crate::tables::new_target;
use glowfs_cluster::Chain;
use glowfs_placement::Plan;
use glowfs_types::routing::{ChainTable, RoutingInfo, TargetInfo};
use glowfs_types::wire::encode;
use glowfs_types::wire::frame::BODY_BYTES_MAX;
use glowfs_types::wire::kv::VALUE_BYTES_MAX;
use glowfs_types::wire::mgmtd::CreateTable;
use glowfs_types::{ChainId, ChainVersion, Error, Incarnation, Result, RoutingVersion, Status};

/// Bytes that the routing info may take when a table is laid. All of it goes to everybody in one message; the rest of that is for nodes that
/// come and for members that are being replaced.
const ROUTING_BYTES_MAX: usize = BODY_BYTES_MAX as usize / 8 * 7;
/// Lives of stores, and chain versions, that the numbers of the routing info have room for.
const GROWN: u64 = u16::MAX as u64;

/// What a dry run says behind what would be laid.
pub(crate) const FOR_LIFE: &str = "\n  chains are for the life of the cluster: none can be taken away later, and none can have another number of replicas";

/// A new chain with its targets.
pub(crate) type Laid = (Chain, Vec<TargetInfo>);

/// What a plan comes to.
pub(crate) fn lay(s: &State, create: &CreateTable, plan: &Plan) -> (Vec<Laid>, TableRecord) {
    let mut chain_id = s.chains.last_key_value().map_or(ChainId(0), |(id, _)| *id);
    let mut next = s.next_target();
    let mut chains = Vec::with_capacity(plan.chains.len());
    for members in &plan.chains {
        chain_id = chain_id.next();
        let mut targets = Vec::with_capacity(members.len());
        for place in members.iter().filter_map(|at| plan.places.get(*at)) {
            targets.push(new_target(next, chain_id, place));
            next = next.next();
        }
        let members: Vec<_> = targets.iter().map(|t| (t.id, t.node)).collect();
        chains.push((Chain::new(chain_id, &members), targets));
    }
    let table = ChainTable {
        id: create.table,
        version: 1,
        chains: chains.iter().map(|(chain, _)| chain.info.id).collect(),
        description: create.description.clone(),
        replicas: 0,
    };
    (chains, TableRecord { table, replicas: create.replicas, chains: create.chains })
}

/// Whether there is room for that table and its chains: in the message that brings the routing info, and in the value that keeps a table.
pub(crate) fn check_room(s: &State, chains: &[Laid], table: &TableRecord) -> Result<()> {
    let record = encode(&Item { changed: s.version, value: table.clone() }).len() + 1;
    if record > VALUE_BYTES_MAX {
        let e = format!(
            "the list of {} chains takes {record} bytes, and a record at most {VALUE_BYTES_MAX}: make several tables",
            chains.len()
        );
        return Err(Error::new(Status::TooLarge, e));
    }
    let mut info = s.delta(RoutingVersion(0));
    let before = grown_bytes(&mut info);
    for (chain, targets) in chains {
        info.chains.insert(chain.info.id, chain.info.clone());
        info.targets.extend(targets.iter().map(|t| (t.id, t.clone())));
    }
    info.tables.push(table.told());
    let after = grown_bytes(&mut info);
    if after > ROUTING_BYTES_MAX {
        let each = (after - before).max(1);
        let fit = chains.len() * ROUTING_BYTES_MAX.saturating_sub(before) / each;
        let e = format!(
            "with {} more chains of {} what everybody has to know of the cluster may take {after} bytes, and a message \
             at most {ROUTING_BYTES_MAX}; about {fit} such chains fit",
            chains.len(),
            table.replicas
        );
        return Err(Error::new(Status::TooLarge, e));
    }
    Ok(())
}

/// The bytes that routing info takes when everything serves, is full, and has changed now and then.
fn grown_bytes(info: &mut RoutingInfo) -> usize {
    for t in info.targets.values_mut() {
        t.used_bytes = u64::MAX;
        t.incarnation = t.incarnation.max(Incarnation(GROWN));
        t.adopted = t.adopted.max(ChainVersion(GROWN));
        t.nonce = u32::MAX;
    }
    for c in info.chains.values_mut() {
        c.version = c.version.max(ChainVersion(GROWN));
        c.activated = c.version;
        c.activated_serving = c.members.iter().map(|m| m.target).collect();
    }
    encode(info).len()
}
