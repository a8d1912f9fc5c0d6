//! [`Names`]: the names of buffers, over all sessions.
//!
//! Guarantees: a look-up takes no longer because of how many buffers there are: one program may have as many as there are descriptors. Names need not be unique; the buffer of the
//! session that was opened first is found.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// As the applications choose it; zeros: none.
pub(super) type Name = [u8; 16];
/// The session (its directory handle) and the buffer's number there.
pub(super) type Place = (u64, u32);

/// See the module.
#[derive(Default)]
pub(super) struct Names(RefCell<BTreeSet<(Name, Place)>>);

/// A buffer has a name as long as this lives.
pub(super) struct Named {
    names: Rc<Names>,
    key: (Name, Place),
}

impl Drop for Named {
    fn drop(&mut self) {
        self.names.0.borrow_mut().remove(&self.key);
    }
}

impl Names {
    /// Gives a buffer a name. What it had before is to be dropped first. None: it is to have none.
    pub fn give(self: &Rc<Self>, name: Name, place: Place) -> Option<Named> {
        if name == Name::default() {
            return None;
        }
        self.0.borrow_mut().insert((name, place));
        Some(Named { names: self.clone(), key: (name, place) })
    }
    /// Where the buffer of a name is.
    pub fn find(&self, name: Name) -> Option<Place> {
        let names = self.0.borrow();
        let (_, place) =
            names.range((name, Place::default())..).next().filter(|(n, _)| *n == name)?;
        Some(*place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_until_its_last_buffer_is_gone() {
        let names = Rc::new(Names::default());
        let name = |n| [n; 16];
        assert!(names.give(name(0), (1, 1)).is_none());
        let mut here = names.give(name(7), (2, 5));
        let there = names.give(name(7), (1, 9));
        let _other = names.give(name(9), (1, 1));
        assert_eq!((names.find(name(7)), names.find(name(8))), (Some((1, 9)), None));
        drop(there);
        assert_eq!(names.find(name(7)), Some((2, 5)));
        drop(here.take());
        here = names.give(name(6), (2, 5));
        assert_eq!((names.find(name(7)), names.find(name(6))), (None, Some((2, 5))));
        drop(here);
        assert_eq!((names.find(name(6)), names.find(name(0))), (None, None));
    }
}
