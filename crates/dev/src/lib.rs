//! One-machine clusters: `glowfs dev`.
//!
//! A dev cluster is a directory: `cluster.json` (what it is), `etc/` (configuration files), `tokens/`, `log/`, `data/`
//! and `run/` (sockets). Its services are ordinary `glowfs` processes; nothing here is needed by them, and this crate
//! ends only processes that it started.

pub mod down;
pub mod etcd;
pub mod mount_point;
pub mod network;
pub mod plan;
pub mod ports;
pub mod process;
pub mod state;
pub mod status;
pub mod up;
pub mod wait;
