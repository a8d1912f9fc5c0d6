//! The rings of `glowfs-usrbio` for Python: [`Connection`](connection::Connection), [`Buffer`](buffer::Buffer), [`File`](file::File) and
//! [`Ring`](ring::Ring), as the package `glowfs` shows them.
//!
//! Guarantees: nothing that a Python program does makes it read or write memory that is not mapped; memory is unmapped only
//! when no view and no operation uses it; the interpreter is free while this waits. Must never: do more than translate.

mod buffer;
mod connection;
mod error;
mod file;
mod fork;
mod operation;
mod ring;

use pyo3::prelude::*;

#[pymodule]
mod _glowfs {
    #[pymodule_export]
    use super::buffer::Buffer;
    #[pymodule_export]
    use super::connection::{Connection, is_glowfs, mount_point_of};
    #[pymodule_export]
    use super::file::File;
    #[pymodule_export]
    use super::ring::{Completion, Ring};

    #[allow(unused_imports)]
    use super::*;
}
