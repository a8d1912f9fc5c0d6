//! Requests of the kernel.

use glowfs_fuse::abi::{InHeader, WriteIn, opcode};
use glowfs_fuse::request::{NAME_BYTES_MAX, Op, parse};
use zerocopy::IntoBytes;

pub fn run(input: &[u8]) {
    if let Ok(request) = parse(input) {
        let name = match &request.op {
            Op::Lookup { name } | Op::Unlink { name } | Op::Rmdir { name } => Some(name),
            Op::Symlink { name, .. } | Op::Mknod { name, .. } | Op::Create { name, .. } => {
                Some(name)
            }
            _ => None,
        };
        if let Some(name) = name {
            assert!(!name.is_empty() && name.len() <= NAME_BYTES_MAX, "a name without bounds");
            assert!(!name.contains(&b'/') && !name.contains(&0), "a name that is a path");
        }
    }
}

fn request(code: u32, body: &[u8]) -> Vec<u8> {
    let header = InHeader {
        len: (size_of::<InHeader>() + body.len()) as u32,
        opcode: code,
        unique: 7,
        nodeid: 1,
        ..InHeader::default()
    };
    [header.as_bytes(), body].concat()
}

pub fn seeds() -> Vec<Vec<u8>> {
    let write = WriteIn { size: 8, ..WriteIn::default() };
    let mut seeds = vec![
        request(opcode::LOOKUP, b"name\0"),
        request(opcode::SYMLINK, b"name\0target\0"),
        request(opcode::WRITE, &[write.as_bytes(), b"payload!"].concat()),
    ];
    // Every operation with room enough for its structure and a name.
    seeds.extend((1..56).map(|code| request(code, &[&[0; 64][..], b"a\0b\0"].concat())));
    seeds
}
