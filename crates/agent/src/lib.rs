//! A service's link to mgmtd: heartbeats, lease, routing info, tokens, capability keys.
