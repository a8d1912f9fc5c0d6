//! The transactional key-value interface, the embedded engine, and the engine over RPC.
