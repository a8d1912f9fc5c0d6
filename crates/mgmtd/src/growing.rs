//! GROW_TABLE: more chains for a table, over the disks that carry less than their share: those that came since.
//!
//! What is stored stays where it is: a file keeps the version of the table that it was made with. New files are spread over all chains of the newest one.
//! It must never take a chain away, or change a version that is there.

use crate::core::Inner;
use crate::ground::usable;
use crate::laying::{FOR_LIFE, check_room, lay};
use crate::records::TableRecord;
use crate::state::State;
use crate::tables::left_out;
use glowfs_placement::{Place, Plan, Request, lacking, plan};
use glowfs_types::wire::mgmtd::{CreateTable, CreateTableReply, GrowTable};
use glowfs_types::{ChainTableId, Error, Result, Status, StoreId};
use std::collections::BTreeMap;
use std::fmt::Write;

impl Inner {
    pub async fn grow_table(&self, ask: GrowTable) -> Result<CreateTableReply> {
        let _held = self.lock.acquire(1).await;
        let have = self.with(|s| newest(s, ask.table))?.ok_or_else(|| {
            Error::new(
                Status::InvalidArgument,
                format!("there is no table {}; see `glowfs admin list-chain-tables`", ask.table),
            )
        })?;
        let (version, before) = (have.table.version, have.chains);
        if ask.chains == before {
            let explanation =
                format!("table {} has {before} chains (version {version})", ask.table);
            return Ok(CreateTableReply { version, explanation });
        }
        if ask.chains < before {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("table {} has {before} chains; none can be taken away", ask.table),
            ));
        }
        let more = ask.chains - before;
        let (places, left_out) = self.with(|s| {
            let places = usable(s);
            let left_out = left_out(s, &places);
            let carried = carried(s, &places);
            (lacking(&places, &carried, more.saturating_mul(have.replicas)), left_out)
        })?;
        let request = Request { replicas: have.replicas, chains: more };
        let plan =
            plan(&places, request).map_err(|e| Error::new(e.status, e.message + &left_out))?;
        let mut explanation =
            format!("table {} grows from {before} chains to {}: ", ask.table, ask.chains);
        explanation += &(plan.explain() + &left_out);
        self.with(|s| write!(explanation, "\n{}", after(s, &plan)))?.unwrap_or_default();
        if ask.dry_run {
            explanation += FOR_LIFE;
        }
        let (laid, table) = self.with(|s| {
            let create = CreateTable {
                table: ask.table,
                replicas: have.replicas,
                chains: more,
                description: have.table.description.clone(),
                dry_run: ask.dry_run,
            };
            let (laid, new) = lay(s, &create, &plan);
            let mut table = have.table.clone();
            table.version += 1;
            table.chains.extend(new.table.chains);
            let record = TableRecord { table, replicas: have.replicas, chains: ask.chains };
            check_room(s, &laid, &record).map(|()| (laid, record))
        })??;
        let version = table.table.version;
        if !ask.dry_run {
            self.write_table(laid, table).await?;
            tracing::info!(table = %ask.table, version, chains = ask.chains, "table grown");
        }
        Ok(CreateTableReply { version, explanation })
    }
}

/// The newest version of a table.
fn newest(s: &State, id: ChainTableId) -> Option<TableRecord> {
    let of = s.tables.iter().map(|t| &t.value).filter(|t| t.table.id == id);
    of.max_by_key(|t| t.table.version).cloned()
}

/// How many targets each store carries.
fn loads(s: &State) -> BTreeMap<StoreId, u32> {
    let mut loads = BTreeMap::new();
    for t in s.targets.values() {
        *loads.entry(t.value.store).or_default() += 1;
    }
    loads
}

fn carried(s: &State, places: &[Place]) -> Vec<u32> {
    let loads = loads(s);
    places.iter().map(|p| loads.get(&p.store).copied().unwrap_or(0)).collect()
}

/// What disks carry once the plan is laid, for people.
fn after(s: &State, plan: &Plan) -> String {
    let before = carried(s, &plan.places);
    let all: Vec<u32> = plan.loads().iter().zip(before).map(|(new, old)| new + old).collect();
    let (least, most) = (all.iter().min().unwrap_or(&0), all.iter().max().unwrap_or(&0));
    format!("  with those that are there: {least} to {most} targets on a disk")
}

/// The disks that work and that no chain uses, for people: a table does not grow by itself.
pub(crate) fn unused(s: &State) -> String {
    let loads = loads(s);
    let mut out = String::new();
    for p in usable(s).iter().filter(|p| !loads.contains_key(&p.store)) {
        // Writing into a String cannot fail.
        let _ = write!(out, "\n  no chain uses node {} disk {}", p.node, p.disk_index);
    }
    if !out.is_empty() {
        out += "\n`glowfs admin grow-table --chains N` lays more chains, over what carries least";
    }
    out
}
