//! Chain replication of one target as a pure state machine.
