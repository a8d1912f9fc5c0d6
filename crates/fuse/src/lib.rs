//! The kernel's FUSE protocol: requests, replies and transports. Knows nothing of GlowFS.
