//! A file that all clients write at the same places: its cells are registers with many writers, and their histories must be
//! linearizable.

use super::certain::open_or_make_kept;
use super::history::History;
use super::registers::{CELL_BYTES, fill, parse};
use super::workload::{Shared, report, write_patiently};
use glowfs_client::{Client, OpenFile};
use glowfs_rt::{Buf, Duration, Rt};
use glowfs_types::Result;
use glowfs_types::wire::meta::ROOT_INODE;
use std::cell::RefCell;
use std::rc::Rc;

/// The file.
pub const NAME: &str = "contended";
/// Cells: two at the end of one chunk and two at the beginning of the next, far from each other within blocks.
pub const CELLS: [u64; 4] = [29, 31, 32, 34];

/// The histories of its cells.
pub struct Contended {
    /// The file's name.
    name: &'static str,
    /// Where its cells are.
    places: &'static [u64],
    /// One for each of them.
    pub cells: Vec<History>,
    tick: u64,
    next: u64,
}

impl Contended {
    /// Nothing happened yet.
    pub fn new(name: &'static str, places: &'static [u64]) -> Self {
        Self { name, places, cells: vec![History::new(); places.len()], tick: 0, next: 0 }
    }
    fn story(&self, cell: u64, what: &str) -> String {
        format!("{} cell {cell} is not linearizable: {what}", self.name)
    }
    fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }
    /// See [`History::lose`].
    pub fn lose(&mut self) -> Vec<String> {
        self.each(History::lose)
    }
    /// See [`History::lose_answered`].
    pub fn lose_answered(&mut self) -> Vec<String> {
        self.each(History::lose_answered)
    }
    /// See [`History::lose_unacknowledged`].
    pub fn lose_unacknowledged(&mut self) -> Vec<String> {
        self.each(History::lose_unacknowledged)
    }
    fn each(
        &mut self,
        lose: fn(&mut History, u64) -> std::result::Result<(), String>,
    ) -> Vec<String> {
        let now = self.tick();
        let cells = self.cells.iter_mut().zip(self.places);
        let wrong: Vec<_> =
            cells.filter_map(|(h, cell)| Some((*cell, lose(h, now).err()?))).collect();
        wrong.into_iter().map(|(cell, e)| self.story(cell, &e)).collect()
    }
    /// What is not linearizable.
    pub fn check(&self) -> Vec<String> {
        let cells = self.cells.iter().zip(self.places);
        cells.filter_map(|(h, cell)| Some(self.story(*cell, &h.check().err()?))).collect()
    }
}

/// One client's work on it, until told to stop.
pub async fn work(rt: Rt, client: Rc<Client>, shared: Rc<Shared>) {
    if let Err(e) = ops(&rt, &client, &shared).await {
        shared.problem(format!("{NAME}: {e}"));
    }
}

async fn ops(rt: &Rt, client: &Rc<Client>, shared: &Rc<Shared>) -> Result<()> {
    let (file, _) = open_or_make_kept(client, shared, ROOT_INODE, NAME).await?;
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
    write_to(rt, file, &shared.contended, i).await
}

/// Writes one of the cells and notes when.
pub async fn write_to(
    rt: &Rt,
    file: &OpenFile,
    contended: &RefCell<Contended>,
    i: usize,
) -> Result<()> {
    let (place, value, bytes) = {
        let mut c = contended.borrow_mut();
        c.next += 1;
        let (place, value, now) = (c.places[i], c.next, c.tick());
        c.cells[i].begin_write(value, now);
        let mut bytes = Vec::new();
        fill(place, value, &mut bytes);
        (place, value, bytes)
    };
    write_patiently(rt, file, place * CELL_BYTES, Buf::from_vec(bytes)).await?;
    let mut c = contended.borrow_mut();
    let now = c.tick();
    c.cells[i].end_write(value, now);
    Ok(())
}

/// Reads one of the cells and notes what it holds.
pub async fn read(rt: &Rt, file: &OpenFile, shared: &Shared, i: usize) -> Result<()> {
    read_from(rt, file, shared, &shared.contended, i).await
}

/// The same of another file.
pub async fn read_from(
    rt: &Rt,
    file: &OpenFile,
    shared: &Shared,
    contended: &RefCell<Contended>,
    i: usize,
) -> Result<()> {
    let (place, began) = {
        let mut c = contended.borrow_mut();
        (c.places[i], c.tick())
    };
    let (result, buf) = file.read(place * CELL_BYTES, rt.alloc(CELL_BYTES as usize)).await;
    result?;
    let mut c = contended.borrow_mut();
    let now = c.tick();
    let noted = parse(place, &buf).and_then(|value| c.cells[i].read(value, began, now));
    if let Err(e) = noted {
        let wrong = c.story(place, &e);
        drop(c);
        shared.problem(wrong);
    }
    Ok(())
}
