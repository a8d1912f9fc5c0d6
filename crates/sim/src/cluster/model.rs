//! The model of a file with one user: its exact bytes.

use std::ops::Range;

/// A file that one task works on, one operation at a time.
#[derive(Clone, Debug, Default)]
pub struct FileModel {
    bytes: Vec<u8>,
    /// Ranges changed since the last flush.
    dirty: Vec<Range<usize>>,
    /// Ranges that may have gone with all power, of which the next flush has to tell if they have.
    doubtful: Vec<Range<usize>>,
    /// Ranges of which the certainty is gone for good.
    unknown: Vec<Range<usize>>,
    /// Ranges that an operation under way may change.
    under_way: Vec<Range<usize>>,
    /// The least length that one may leave.
    cut_to: Option<usize>,
    /// The length when the metadata was last told it.
    told_len: usize,
    /// The greatest length that was cut off since the last flush.
    cut_off: usize,
    /// The greatest length that was cut off and may be there again for good, until the file is cut anew: a flush that is content does not undo the loss that one before it has told of.
    came_back: usize,
}

/// What is left of ranges without one.
fn without(ranges: &mut Vec<Range<usize>>, at: &Range<usize>) {
    *ranges = std::mem::take(ranges)
        .into_iter()
        .flat_map(|r| [r.start..r.end.min(at.start), r.start.max(at.end)..r.end])
        .filter(|r| !r.is_empty())
        .collect();
}

/// The parts of ranges that lie in `source`, as they lie when that is copied to `to`.
fn copied(ranges: &[Range<usize>], source: &Range<usize>, to: usize) -> Vec<Range<usize>> {
    ranges
        .iter()
        .map(|r| r.start.max(source.start)..r.end.min(source.end))
        .filter(|r| !r.is_empty())
        .map(|r| r.start - source.start + to..r.end - source.start + to)
        .collect()
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
    /// A change of these bytes is asked for. If it is never answered, it may have happened or not.
    pub fn asks(&mut self, offset: u64, len: u64) {
        self.under_way.push(offset as usize..(offset + len) as usize);
    }
    /// The same of a truncate.
    pub fn asks_to_cut(&mut self, len: u64) {
        self.under_way.push(len as usize..usize::MAX);
        self.cut_to = Some(len as usize);
    }
    /// What was asked for is answered, all of it.
    pub fn answered(&mut self) {
        self.under_way.clear();
        self.cut_to = None;
    }
    /// The metadata was told the length.
    pub fn len_told(&mut self) {
        self.told_len = self.bytes.len();
    }
    /// The length that it was told last.
    pub fn told_len(&self) -> u64 {
        self.told_len as u64
    }
    /// Its user is gone, in the middle of whatever was asked for, and nothing is under way any more.
    pub fn abandoned(&mut self) {
        let under_way = self.under_way.clone();
        self.unknown.extend(under_way);
    }
    /// The lengths that it may have after that: all that was acknowledged counts, but for what a loss of power may have taken (`lost`).
    pub fn lengths(&self, lost: bool) -> std::ops::RangeInclusive<u64> {
        let least = if lost { self.told_len.min(self.bytes.len()) } else { self.bytes.len() };
        let ends = self.under_way.iter().map(|r| if r.end == usize::MAX { r.start } else { r.end });
        // A cut that was not flushed may have gone with all power as well: then the chunks lead to the former end.
        let cut_off = if lost { self.cut_off.max(self.came_back) } else { 0 };
        let most = ends.max().unwrap_or(0).max(self.bytes.len()).max(cut_off);
        self.cut_to.map_or(least, |to| to.min(least)) as u64..=most as u64
    }
    /// A write was acknowledged.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let at = offset as usize..end;
        self.bytes[at.clone()].copy_from_slice(data);
        self.dirty.push(at.clone());
        without(&mut self.unknown, &at);
        without(&mut self.doubtful, &at);
    }
    /// A copy within the file was acknowledged; neither range reaches behind its end, and they do not overlap. What is not known of the source
    /// is not known of the copy.
    pub fn copy(&mut self, from: u64, to: u64, len: u64) {
        let source = from as usize..(from + len) as usize;
        let unknown = copied(&self.unknown, &source, to as usize);
        let doubtful = copied(&self.doubtful, &source, to as usize);
        let bytes = self.bytes[source].to_vec();
        self.write(to, &bytes);
        self.unknown.extend(unknown);
        self.doubtful.extend(doubtful);
    }
    /// A flush, begun when nothing was under way, was acknowledged: everything is there.
    pub fn flushed(&mut self) {
        self.cut_off = 0;
        self.dirty.clear();
        self.doubtful.clear();
    }
    /// It was, but tells that something is gone.
    pub fn told(&mut self) {
        self.came_back = self.came_back.max(self.cut_off);
        self.dirty.clear();
        self.unknown.append(&mut self.doubtful);
    }
    /// All power was lost: what was changed since the last flush may be anything, until the next one does not tell so.
    pub fn power_lost(&mut self) {
        self.doubtful.append(&mut self.dirty);
    }
    /// It is lost in a way of which nobody is told.
    pub fn silently_lost(&mut self) {
        self.came_back = self.came_back.max(self.cut_off);
        self.power_lost();
        self.unknown.append(&mut self.doubtful);
    }
    /// A truncate was acknowledged.
    pub fn truncate(&mut self, len: u64) {
        // What is cut off may come back at a loss of power, if the file grows again.
        self.dirty.push(len as usize..usize::MAX);
        self.cut_off = self.cut_off.max(self.bytes.len()).max(std::mem::take(&mut self.came_back));
        self.bytes.resize(len as usize, 0);
    }
    /// What is wrong with these bytes, read at `offset` (zeros are expected past the end).
    pub fn check(&self, offset: u64, got: &[u8]) -> Option<String> {
        let want = |i: usize| self.bytes.get(offset as usize + i).copied().unwrap_or(0);
        let known = |i: usize| {
            let at = offset as usize + i;
            !self.unknown.iter().chain(&self.doubtful).any(|r| r.contains(&at))
        };
        let at = got.iter().enumerate().position(|(i, b)| *b != want(i) && known(i))?;
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
    fn a_copy_is_as_uncertain_as_its_source() {
        let mut m = FileModel::default();
        m.write(0, b"abcdefgh");
        m.flushed();
        m.write(1, b"XY");
        m.power_lost();
        m.copy(0, 4, 4);
        assert_eq!(m.check(0, b"a??daqqd"), None);
        assert!(m.check(4, b"aqqe").is_some());
        assert!(m.check(4, b"bqqd").is_some());
    }

    #[test]
    fn a_flush_tells_of_a_loss_or_everything_is_there() {
        for told in [false, true] {
            let mut m = FileModel::default();
            m.write(0, b"abcd");
            m.flushed();
            m.write(1, b"X");
            m.power_lost();
            m.write(2, b"Y");
            assert_eq!(m.check(0, b"abYd"), None, "it may be gone");
            if told {
                m.told()
            } else {
                m.flushed()
            }
            assert_eq!(m.check(0, b"aXYd"), None);
            assert_eq!(m.check(0, b"abYd").is_none(), told);
            assert!(m.check(0, b"aXcd").is_some(), "written since");
        }
    }

    #[test]
    fn what_was_never_answered_may_be_there_or_not() {
        let mut m = FileModel::default();
        m.write(0, b"abcd");
        m.asks(3, 2);
        m.abandoned();
        assert_eq!((m.check(0, b"abcXY"), m.lengths(false)), (None, 4..=5));
        assert!(m.check(0, b"abXd").is_some());
        let mut m = FileModel::default();
        m.write(0, b"abcd");
        m.len_told();
        m.write(4, b"efgh");
        m.asks_to_cut(2);
        m.abandoned();
        assert_eq!((m.check(0, b"ab"), m.lengths(false), m.lengths(true)), (None, 2..=8, 2..=8));
        m.answered();
        assert_eq!((m.lengths(false), m.lengths(true)), (8..=8, 4..=8));
        m.truncate(2);
        m.len_told();
        assert_eq!((m.lengths(false), m.lengths(true)), (2..=2, 2..=8));
        m.flushed();
        assert_eq!(m.lengths(true), 2..=2);
    }

    #[test]
    fn a_cut_that_was_lost_stays_so_until_the_file_is_cut_again() {
        let mut m = FileModel::default();
        m.write(0, b"abcdefgh");
        m.flushed();
        m.truncate(2);
        m.len_told();
        m.power_lost();
        m.told();
        m.flushed();
        assert_eq!((m.lengths(false), m.lengths(true)), (2..=2, 2..=8));
        m.truncate(4);
        m.len_told();
        assert_eq!(m.lengths(true), 4..=8);
        m.flushed();
        assert_eq!(m.lengths(true), 4..=4);
    }

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
