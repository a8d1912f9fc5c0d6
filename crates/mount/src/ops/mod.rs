//! The operations, by what they touch.

mod attrs;
mod dirs;
mod files;
mod io;
mod locks;
mod names;
mod xattr;
pub(crate) use io::HowToWrite;

pub use locks::Owners;
