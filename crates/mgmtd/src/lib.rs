//! The cluster manager service.
