//! All tests of this crate but the unit tests in one program: each program of its own would be linked with everything anew.

mod anew;
mod attack;
mod channels;
mod clocks;
mod cluster;
mod damaged;
mod engine_full;
mod failed_head;
mod full;
mod garbage;
mod hung;
mod late_answers;
mod lengths;
mod lost_writes;
mod meta;
mod orphans;
mod recalls;
mod scrub;
mod small;
mod stopped;
mod storage;
mod trees;
mod whole;
