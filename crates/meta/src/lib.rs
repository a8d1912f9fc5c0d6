//! The metadata service.
