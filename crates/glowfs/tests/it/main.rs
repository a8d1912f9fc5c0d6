//! Tests of the real thing: the binary, real processes, a real mount, real programs.
//!
//! Each test brings up a cluster of its own in a directory of its own and destroys it at the end, also when it
//! fails. `GLOWFS_TEST_DIR` says where (default `/var/tmp`); `GLOWFS_TEST_LARGE=1` runs the sizes that take long,
//! `GLOWFS_TEST_INLINE=1` keeps the contents of small files with the metadata, `GLOWFS_FUSE=uring` mounts over FUSE over io_uring,
//! `GLOWFS_WRITE_BACK=1` mounts with `write_back`: then three tests fail, as they must, for they want that a write which returned is with the cluster
//! (`append::a_client_that_dies...`, `clients::a_paused_client...`, `inline::a_write_is_seen...`).
//! They need root, `/dev/fuse` and the programs that `./test` installs; a missing one fails the test, it is not skipped.

mod acl;
mod admin;
mod append;
mod bad_input;
mod batch;
mod bench;
mod capacity;
mod clients;
mod copy;
mod cycles;
mod deploying;
mod dev;
mod etcd;
mod faults;
mod fio;
mod flags;
mod flushes;
mod fsck;
mod fstab;
mod fsx;
mod gone;
mod harness;
mod inline;
mod layout;
mod limits;
mod locks;
mod lost_power;
mod many_rings;
mod mgmtds;
mod model;
mod moves;
mod names;
mod netns;
mod orphans;
mod overlay;
mod own_token;
mod permitted;
mod posix;
mod programs;
mod resync;
mod rights;
mod scrub;
mod shared_memory;
mod sparse;
mod sqlite;
mod stopped;
mod striping;
mod torture;
mod transfer;
mod trash;
mod trees;
mod two_fsx;
mod two_mounts;
mod upgrade;
mod write_back;
