//! The rules of the file system over a key-value transaction.
