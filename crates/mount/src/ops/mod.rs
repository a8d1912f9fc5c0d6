//! The operations, by what they touch.

mod attrs;
mod dirs;
mod files;
mod io;
mod names;
mod xattr;
pub(crate) use io::HowToWrite;
