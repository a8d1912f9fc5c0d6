//! A file that all clients write at the same places: its cells are registers with many writers, and their histories must be
//! linearizable.

use super::history::History;
use super::registers::{CELL_BYTES, fill, parse};
use super::workload::{Shared, open_or_make, report, write_patiently};
use glowfs_client::{Client, OpenFile};
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_types::Result;
use std::rc::Rc;

/// The file.
pub const NAME: &str = "contended";
/// Cells: two at the end of one chunk and two at the beginning of the next, far from each other within blocks.
pub const CELLS: [u64; 4] = [29, 31, 32, 34];

/// The histories of its cells.
#[derive(Default)]
pub struct Contended {
    /// One for each of [`CELLS`].
    pub cells: Vec<History>,
    tick: u64,
    next: u64,
}

impl Contended {
    /// Nothing happened yet.
    pub fn new() -> Self {
        Self { cells: vec![History::new(); CELLS.len()], tick: 0, next: 0 }
    }
    fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }
    /// See [`History::lose`].
    pub fn lose(&mut self) -> Vec<String> {
        let now = self.tick();
        let cells = self.cells.iter_mut().zip(CELLS);
        cells.filter_map(|(h, cell)| h.lose(now).err().map(|e| story(cell, &e))).collect()
    }
    /// What is not linearizable.
    pub fn check(&self) -> Vec<String> {
        let cells = self.cells.iter().zip(CELLS);
        cells.filter_map(|(h, cell)| h.check().err().map(|e| story(cell, &e))).collect()
    }
}

fn story(cell: u64, what: &str) -> String {
    format!("contended cell {cell} is not linearizable: {what}")
}

/// One client's work on it, until told to stop.
pub async fn work(rt: Rt, client: Rc<Client>, shared: Rc<Shared>) {
    if let Err(e) = ops(&rt, &client, &shared).await {
        shared.problem(format!("{NAME}: {e}"));
    }
}

async fn ops(rt: &Rt, client: &Rc<Client>, shared: &Rc<Shared>) -> Result<()> {
    let (file, _) = open_or_make(client, NAME).await?;
    while !shared.stop.get() {
        let i = rt.random_below(CELLS.len() as u64) as usize;
        if rt.random_below(3) == 0 {
            write(rt, &file, shared, i).await?;
        } else {
            read(rt, &file, shared, i).await?;
        }
        shared.ops.set(shared.ops.get() + 1);
        rt.sleep(Duration::from_micros(rt.random_below(8_000))).await;
    }
    client.close_session(report(client, &file, true)).await?;
    Ok(())
}

async fn write(rt: &Rt, file: &OpenFile, shared: &Shared, i: usize) -> Result<()> {
    let (value, bytes) = {
        let mut c = shared.contended.borrow_mut();
        c.next += 1;
        let (value, now) = (c.next, c.tick());
        c.cells[i].begin_write(value, now);
        let mut bytes = Vec::new();
        fill(CELLS[i], value, &mut bytes);
        (value, bytes)
    };
    write_patiently(rt, file, CELLS[i] * CELL_BYTES, Buf::from_vec(bytes)).await?;
    let mut c = shared.contended.borrow_mut();
    let now = c.tick();
    c.cells[i].end_write(value, now);
    Ok(())
}

/// Reads one of the cells and notes what it holds.
pub async fn read(rt: &Rt, file: &OpenFile, shared: &Shared, i: usize) -> Result<()> {
    let began = shared.contended.borrow_mut().tick();
    let (result, buf) = file.read(CELLS[i] * CELL_BYTES, rt.alloc(CELL_BYTES as usize)).await;
    result?;
    let mut c = shared.contended.borrow_mut();
    let now = c.tick();
    let noted = parse(CELLS[i], &buf).and_then(|value| c.cells[i].read(value, began, now));
    drop(c);
    if let Err(e) = noted {
        shared.problem(story(CELLS[i], &e));
    }
    Ok(())
}
