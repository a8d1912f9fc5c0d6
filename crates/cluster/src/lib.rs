//! Chain states, leases and primary election as pure state machines.
