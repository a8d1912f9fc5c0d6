//! One-machine clusters.
