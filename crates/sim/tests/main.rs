//! All tests of this crate but the unit tests in one program: each program of its own would be linked with everything anew.

mod absence;
mod anew;
mod attack;
mod behind;
mod channels;
mod clocks;
mod cluster;
mod damaged;
mod engine_full;
mod fail_over;
mod failed_head;
mod full;
mod garbage;
mod hung;
mod late_answers;
mod late_reads;
mod leaks;
mod lengths;
mod lost_writes;
mod meta;
mod orphans;
mod overloaded_links;
mod paused;
mod pulses;
mod put_back;
mod recalls;
mod replicas;
mod resync;
mod scrub;
mod shown;
mod slow_disk;
mod slow_links;
mod small;
mod stale_blocks;
mod stopped;
mod storage;
mod trees;
mod whole;
mod writer;

/// As the shipped program has it: what worlds take and free most are small objects.
#[global_allocator]
static HEAP: glowfs_rt::Heap = glowfs_rt::Heap;
