//! [`Acl`]: POSIX access control lists, as Linux has them in `system.posix_acl_access` and `system.posix_acl_default`. Pure.
//!
//! The mode of a file and its list agree: the entries of the owner and of others are the mode's, and the group bits are the mask (or, without
//! one, the group's entry). A list that says no more than a mode is not kept.

use crate::access::{EXEC, READ, WRITE};
use glowfs_types::wire::meta::Caller;
use glowfs_types::{Error, Result, Status};

const VERSION: u32 = 2;
const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;
/// The id of entries that are of nobody by name.
const NO_ID: u32 = u32::MAX;
const HEAD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The greatest number of entries: what a kernel takes in one page.
const ENTRIES_MAX: usize = 500;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// See the module. Always well-formed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<Entry>);

impl Acl {
    /// Reads the bytes of the extended attribute.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let bad = |what: &str| Err(Error::new(Status::InvalidArgument, format!("ACL: {what}")));
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            return bad("cut short");
        };
        if u32::from_le_bytes(*head) != VERSION {
            return Err(Error::new(Status::NotSupported, "ACL: another version than 2"));
        }
        if rest.len() % ENTRY_BYTES != 0 || rest.len() / ENTRY_BYTES > ENTRIES_MAX {
            return bad("wrong length");
        }
        let entries = rest.chunks_exact(ENTRY_BYTES).map(|e| {
            let tag = u16::from_le_bytes([e[0], e[1]]);
            let named = matches!(tag, USER | GROUP);
            let id = u32::from_le_bytes([e[4], e[5], e[6], e[7]]);
            let perm = u16::from_le_bytes([e[2], e[3]]);
            Entry { tag, perm, id: if named { id } else { NO_ID } }
        });
        let acl = Self(entries.collect());
        if acl.is_valid() { Ok(acl) } else { bad("entries missing, twice, or in a wrong order") }
    }

    fn is_valid(&self) -> bool {
        let rising = self.0.windows(2).all(|w| (w[0].tag, w[0].id) < (w[1].tag, w[1].id));
        let known = |e: &Entry| matches!(e.tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER);
        let fine = self
            .0
            .iter()
            .all(|e| known(e) && e.perm <= 7 && (e.id != NO_ID || !matches!(e.tag, USER | GROUP)));
        let has = |tag| self.get(tag).is_some();
        rising
            && fine
            && has(USER_OBJ)
            && has(GROUP_OBJ)
            && has(OTHER)
            && (has(MASK) || !self.names())
    }
    /// Whether it names users or groups.
    fn names(&self) -> bool {
        self.0.iter().any(|e| matches!(e.tag, USER | GROUP))
    }
    fn get(&self, tag: u16) -> Option<u16> {
        self.0.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }
    fn set(&mut self, tag: u16, perm: u32) {
        for e in self.0.iter_mut().filter(|e| e.tag == tag) {
            e.perm = (perm & 7) as u16;
        }
    }

    /// The bytes of the extended attribute.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for e in &self.0 {
            out.extend_from_slice(&e.tag.to_le_bytes());
            out.extend_from_slice(&e.perm.to_le_bytes());
            out.extend_from_slice(&e.id.to_le_bytes());
        }
        out
    }

    /// Whether it says no more than a mode.
    pub fn is_mode(&self) -> bool {
        self.0.len() == 3
    }
    /// The permission bits that go with it (0777).
    pub fn mode(&self) -> u32 {
        let perm = |tag| u32::from(self.get(tag).unwrap_or(0));
        let group = self.get(MASK).map_or(perm(GROUP_OBJ), u32::from);
        perm(USER_OBJ) << 6 | group << 3 | perm(OTHER)
    }
    /// chmod: the entries that the mode stands for.
    pub fn set_mode(&mut self, mode: u32) {
        let group = if self.get(MASK).is_some() { MASK } else { GROUP_OBJ };
        self.set(USER_OBJ, mode >> 6);
        self.set(group, mode >> 3);
        self.set(OTHER, mode);
    }
    /// What a new file gets of the default list of its directory, if it was to get `mode`.
    pub fn inherited(&self, mode: u32) -> Self {
        let mut acl = self.clone();
        acl.set_mode(self.mode() & mode);
        acl
    }

    /// Whether it gives the caller all of `want` (of [`READ`], [`WRITE`], [`EXEC`]) of a file of that owner and group.
    pub fn permits(&self, caller: &Caller, (uid, gid): (u32, u32), want: u32) -> bool {
        debug_assert_eq!(want & !(READ | WRITE | EXEC), 0);
        let gives = |perm: u16| u32::from(perm) & want == want;
        let mask = self.get(MASK).unwrap_or(7);
        if caller.uid == uid {
            return self.get(USER_OBJ).is_some_and(gives);
        }
        if let Some(e) = self.0.iter().find(|e| e.tag == USER && e.id == caller.uid) {
            return gives(e.perm & mask);
        }
        let mine = |e: &&Entry| match e.tag {
            GROUP_OBJ => crate::access::in_group(caller, gid),
            GROUP => crate::access::in_group(caller, e.id),
            _ => false,
        };
        let mut groups = self.0.iter().filter(mine).peekable();
        if groups.peek().is_some() {
            return groups.any(|e| gives(e.perm & mask));
        }
        self.get(OTHER).is_some_and(gives)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl(entries.iter().map(|&(tag, perm, id)| Entry { tag, perm, id }).collect())
    }
    fn full() -> Acl {
        acl(&[
            (USER_OBJ, 7, NO_ID),
            (USER, 6, 5),
            (USER, 0, 6),
            (GROUP_OBJ, 5, NO_ID),
            (GROUP, 6, 50),
            (MASK, 4, NO_ID),
            (OTHER, 1, NO_ID),
        ])
    }

    #[test]
    fn bytes_and_back_and_what_is_refused() {
        let bytes = full().to_bytes();
        assert_eq!(Acl::parse(&bytes).expect("good"), full());
        assert_eq!(bytes[..12], [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255]);
        for n in 0..bytes.len() {
            assert!(Acl::parse(&bytes[..n]).is_err(), "{n} bytes");
        }
        let without_mask =
            acl(&[(USER_OBJ, 7, NO_ID), (USER, 6, 5), (GROUP_OBJ, 5, NO_ID), (OTHER, 1, NO_ID)]);
        let twice = acl(&[
            (USER_OBJ, 7, NO_ID),
            (USER_OBJ, 7, NO_ID),
            (GROUP_OBJ, 5, NO_ID),
            (OTHER, 1, NO_ID),
        ]);
        let more = acl(&[(USER_OBJ, 8, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 1, NO_ID)]);
        for bad in [without_mask, twice, more] {
            assert!(Acl::parse(&bad.to_bytes()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_first_entry_that_fits_decides_and_the_mask_bounds_it() {
        let may = |uid, gid, want| {
            let caller = Caller { uid, gid, ..Caller::default() };
            full().permits(&caller, (1, 10), want)
        };
        assert!(may(1, 99, READ | WRITE | EXEC), "the owner is not masked");
        assert!(may(5, 99, READ) && !may(5, 99, WRITE), "a named user, masked");
        assert!(!may(6, 50, READ), "a named user's entry wins over his groups");
        assert!(may(7, 10, READ) && !may(7, 10, EXEC), "the group, masked");
        assert!(may(7, 50, READ) && !may(7, 50, WRITE), "a named group");
        assert!(may(7, 99, EXEC) && !may(7, 99, READ), "others are not masked");
    }

    #[test]
    fn mode_and_list_agree() {
        let mut a = full();
        assert_eq!(a.mode(), 0o741);
        a.set_mode(0o620);
        assert_eq!((a.mode(), a.get(GROUP_OBJ), a.get(MASK)), (0o620, Some(5), Some(2)));
        assert_eq!(full().inherited(0o644).mode(), 0o640);
        let plain = acl(&[(USER_OBJ, 6, NO_ID), (GROUP_OBJ, 4, NO_ID), (OTHER, 0, NO_ID)]);
        assert!(plain.is_mode() && plain.mode() == 0o640 && !full().is_mode());
    }
}
