//! The model of a file with one user: its exact bytes.

/// A file that one task works on, one operation at a time.
#[derive(Clone, Debug, Default)]
pub struct FileModel {
    bytes: Vec<u8>,
}

impl FileModel {
    /// Its length.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
    /// A write was acknowledged.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset as usize..end].copy_from_slice(data);
    }
    /// A truncate was acknowledged.
    pub fn truncate(&mut self, len: u64) {
        self.bytes.resize(len as usize, 0);
    }
    /// What is wrong with these bytes, read at `offset` (zeros are expected past the end).
    pub fn check(&self, offset: u64, got: &[u8]) -> Option<String> {
        let want = |i: usize| self.bytes.get(offset as usize + i).copied().unwrap_or(0);
        let at = got.iter().enumerate().position(|(i, b)| *b != want(i))?;
        let end = got
            .iter()
            .enumerate()
            .skip(at)
            .position(|(i, b)| *b == want(i))
            .map_or(got.len(), |n| at + n);
        Some(format!(
            "byte {} is {:#04x} and must be {:#04x}; {} bytes from there are wrong (length {})",
            offset as usize + at,
            got[at],
            want(at),
            end - at,
            self.bytes.len()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_and_cuts_are_zeros() {
        let mut m = FileModel::default();
        m.write(10, b"abcdef");
        m.truncate(12);
        m.truncate(14);
        assert_eq!(m.check(8, b"\0\0ab\0\0\0\0"), None);
        let e = m.check(8, b"\0\0abcd").expect("revived");
        assert!(e.contains("byte 12") && e.contains("2 bytes"), "{e}");
    }
}
