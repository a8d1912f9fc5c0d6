//! A dump of the metadata. The first byte chooses: the bytes as they are, or with every checksum in them made right. What is read to its end
//! must be the same when it is written and read again.

use glowfs_kv::dump::format::{BlockWriter, Header, Reader};
use glowfs_kv::{Key, Value};
use glowfs_types::ClusterId;
use glowfs_types::checksum::crc32c;

// docs/formats/metadata-dump.md
const HEADER: usize = 64;
const BLOCK_HEADER: usize = 32;
const TRAILER: usize = 64;

fn seal(part: &mut [u8]) {
    let at = part.len() - 4;
    let sum = crc32c(&part[..at]).to_le_bytes();
    part[at..].copy_from_slice(&sum);
}

/// Makes the checksums right, as far as the file has the form of one.
fn mend(file: &mut [u8]) {
    if file.len() < HEADER {
        return;
    }
    seal(&mut file[..HEADER]);
    let mut at = HEADER;
    while at + BLOCK_HEADER <= file.len() && &file[at..at + 4] == b"GMDB" {
        let len = u32::from_le_bytes([file[at + 4], file[at + 5], file[at + 6], file[at + 7]]);
        let begin = at + BLOCK_HEADER;
        let end = begin.saturating_add(len as usize);
        if end > file.len() {
            return;
        }
        let sum = crc32c(&file[begin..end]).to_le_bytes();
        file[at + 20..at + 24].copy_from_slice(&sum);
        seal(&mut file[at..begin]);
        at = end;
    }
    if at + TRAILER <= file.len() {
        let digest = *blake3::hash(&file[..at]).as_bytes();
        file[at + 24..at + 56].copy_from_slice(&digest);
        seal(&mut file[at..at + TRAILER]);
    }
}

fn read(file: &[u8]) -> Option<(Header, Vec<(Key, Value)>)> {
    let mut reader = Reader::new(file).ok()?;
    let mut all = Vec::new();
    while let Some(block) = reader.next_block().ok()? {
        all.extend(block);
    }
    let summary = reader.summary().expect("it was read to its end");
    assert_eq!((summary.entries, summary.bytes), (all.len() as u64, file.len() as u64));
    Some((reader.header().clone(), all))
}

fn written(header: &Header, entries: &[(Key, Value)]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = BlockWriter::new(&mut file, header).expect("memory takes all");
    entries.iter().for_each(|(k, v)| writer.push(k, v).expect("memory takes all"));
    writer.finish().expect("memory takes all");
    file
}

pub fn run(input: &[u8]) {
    let Some((how, file)) = input.split_first() else { return };
    let mut file = file.to_vec();
    if how & 1 != 0 {
        mend(&mut file);
    }
    if let Some((header, entries)) = read(&file) {
        let again = read(&written(&header, &entries));
        assert_eq!(again, Some((header, entries)), "it changes by being written");
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let header = Header { cluster: ClusterId(7), version: 9, taken_ns: 10 };
    let all: Vec<(Key, Value)> = (0..5).map(|i| (vec![b'k', i], vec![i; usize::from(i)])).collect();
    let files = [0, 1, 5].map(|n| written(&header, &all[..n]));
    files.iter().flat_map(|f| [[&[0], &f[..]].concat(), [&[1], &f[..]].concat()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target that never gets past the checksums would test nothing.
    #[test]
    fn a_mended_file_is_read() {
        let mut file = seeds()[5][1..].to_vec();
        assert!(read(&file).is_some_and(|(_, all)| all.len() == 5));
        file[HEADER + BLOCK_HEADER + 8] = b'j';
        assert!(read(&file).is_none());
        mend(&mut file);
        assert!(read(&file).is_some_and(|(_, all)| all.len() == 5 && all[0].0 == [b'j', 0]));
    }
}
