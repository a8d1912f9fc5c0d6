//! The targets, one a file.

pub mod chunk_store;
pub mod configuration;
pub mod data_path;
mod etcd;
pub mod fuse_request;
pub mod layout;
pub mod messages;
pub mod metadata_dump;
pub mod metadata_engine;
pub mod net_client;
pub mod net_server;
pub mod records;
pub mod rings;
