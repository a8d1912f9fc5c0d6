//! [`Late`]: errors of writes that were answered before they were sent. Each handle of the file hears of one once, at its next fsync or close.
//!
//! As Linux does for its page cache: a handle that is opened after an error of which nobody has heard yet hears of it as well.

use std::cell::Cell;

/// See the module.
#[derive(Default)]
pub struct Late {
    number: Cell<u64>,
    errno: Cell<i32>,
    heard: Cell<bool>,
}

/// How far a handle has heard.
#[derive(Default)]
pub struct Heard(Cell<u64>);

impl Late {
    /// A handle is opened.
    pub fn begin(&self) -> Heard {
        let number = self.number.get();
        Heard(Cell::new(if self.heard.get() { number } else { number.saturating_sub(1) }))
    }
    /// Something was lost.
    pub fn note(&self, errno: i32) {
        self.number.set(self.number.get() + 1);
        self.errno.set(errno);
        self.heard.set(false);
    }
    /// What the handle has not heard of; from now on it has.
    pub fn hear(&self, handle: &Heard) -> Option<i32> {
        let number = self.number.get();
        if handle.0.replace(number) == number {
            return None;
        }
        self.heard.set(true);
        Some(self.errno.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_handle_hears_of_an_error_once() {
        let late = Late::default();
        let (a, b) = (late.begin(), late.begin());
        assert_eq!(late.hear(&a), None);
        late.note(28);
        let c = late.begin();
        assert_eq!(late.hear(&a), Some(28));
        assert_eq!(late.hear(&a), None, "once");
        let d = late.begin();
        assert_eq!(late.hear(&d), None, "opened after somebody had heard");
        assert_eq!(late.hear(&b), Some(28));
        assert_eq!(late.hear(&c), Some(28), "opened before anybody had heard");
        late.note(28);
        late.note(5);
        assert_eq!(late.hear(&a), Some(5), "the newest");
        assert_eq!(late.hear(&a), None);
        assert_eq!((late.hear(&b), late.hear(&d)), (Some(5), Some(5)));
    }
}
