//! All tests of this crate but the unit tests in one program: each program of its own would be linked with everything anew.

mod checked;
mod demands;
mod emptied;
mod inline;
mod model;
mod removed;
mod reopened;
mod retries;
mod skipped;
mod times;
mod trash;
mod trees;
mod world;
mod xattrs;
