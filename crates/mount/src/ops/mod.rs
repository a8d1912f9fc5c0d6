//! The operations, by what they touch.

mod append;
mod attrs;
mod back;
mod closing;
mod copy;
mod dirs;
mod durable;
mod files;
mod flags;
mod inline;
mod io;
mod locks;
mod names;
mod open_flags;
mod pages;
mod sparse;
mod tails;
mod xattr;
pub(crate) use io::HowToWrite;

pub use append::Appends;
pub use back::WriteBack;
pub use closing::Unanswered;
pub use flags::{FSGETXATTR, FSSETXATTR, GETFLAGS, SETFLAGS};
pub use locks::Owners;
