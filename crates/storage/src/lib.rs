//! The storage service.
