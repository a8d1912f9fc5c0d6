//! CRC-32C, as the data path uses it: one for each block of 4 KiB, and joining them.

use super::Given;
use crate::drive::spin;
use crate::row::Row;
use glowfs_types::checksum::{combine, crc32c, piece_checksums};
use std::hint::black_box;

/// Operations of one look at the clock, for those that take nanoseconds.
const BATCH: u32 = 64;

/// See the module. The limit is what reading the same memory takes.
pub fn checksum(given: Given) -> Vec<Row> {
    let mut rows = vec![];
    for bytes in [4usize << 10, 64 << 10, 1 << 20, 16 << 20] {
        let data: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 4096) as u8).collect();
        let plan = given.plan("checksum", "memory", "sum of words", bytes as u64, 1);
        let limit = spin(&plan, |_| {
            let words = black_box(&data).chunks_exact(8);
            black_box(words.fold(0u64, |a, w| {
                a.wrapping_add(u64::from_le_bytes(w.try_into().unwrap_or_default()))
            }));
        });
        let plan = given.plan("checksum", "crc32c", "whole", bytes as u64, 1);
        let mut row = spin(&plan, |_| {
            black_box(crc32c(black_box(&data)));
        });
        row.limit_ops_per_second = Some(limit.ops_per_second);
        given.done(&mut rows, row);
        let plan = given.plan("checksum", "crc32c", "4K blocks", bytes as u64, 1);
        let mut crcs = Vec::with_capacity(bytes / 4096);
        let mut row = spin(&plan, |_| {
            crcs.clear();
            piece_checksums(0, black_box(&data), &mut crcs);
            black_box(&crcs);
        });
        row.limit_ops_per_second = Some(limit.ops_per_second);
        given.done(&mut rows, row);
    }
    let plan = given.plan("checksum", "combine", "of two", 0, 1);
    let mut row = spin(&plan, |n| {
        for i in 0..BATCH {
            black_box(combine(n as u32, black_box(i), 4096));
        }
    });
    let scale = f64::from(BATCH);
    row.ops_per_second *= scale;
    row.latency_us = row.latency_us.map(|l| l / scale);
    row.cpu_us_per_op = row.cpu_us_per_op.map(|c| c / scale);
    given.done(&mut rows, row);
    rows
}
