//! The client library: routing, metadata calls, striped chunk I/O, retries.
