//! The one binary of GlowFS: every role is a sub-command.
fn main() {}
