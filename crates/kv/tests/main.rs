//! All tests of this crate but the unit tests in one program: each program of its own would be linked with everything anew.

mod disk;
mod dump;
mod embedded;
mod etcd;
mod flushes;
mod kept;
mod remote;
mod room;
mod spares;
