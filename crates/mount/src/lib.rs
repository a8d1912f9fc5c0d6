//! The mount daemon: FUSE requests to client calls.
