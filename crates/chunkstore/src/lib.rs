//! Chunks on one disk: log, block files, checksums, recovery.
