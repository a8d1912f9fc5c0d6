use super::*;

const D: InodeId = InodeId(7);
const F: InodeId = InodeId(8);
const END: Instant = Instant(1000);
const NOW: Instant = Instant(10);

fn attr(entries: u64) -> Attr {
    let kind = InodeKind::Directory;
    Attr { inode: D, kind, entries: Some(entries), ..Attr::default() }
}
fn made() -> Rc<Directories> {
    let d = Rc::new(Directories::default());
    d.made(&attr(0), END);
    d
}
fn add(d: &Rc<Directories>, name: &[u8], before: u64) {
    let said = DirChanged { attr: attr(before + 1), lease_ms: 1, before };
    d.change(&[D], true).done(&[(&said, END)], |_| vec![Edit::Add(name, F)]);
}

#[test]
fn follows_own_changes_of_a_directory_that_it_made() {
    let d = made();
    assert_eq!(d.named(D, b"a", NOW), Named::Missing);
    add(&d, b"a", 0);
    assert_eq!(d.named(D, b"a", NOW), Named::There(F));
    assert_eq!(d.named(D, b"a", END), Named::Unknown, "not leased: ask for it");
    assert_eq!(d.named(D, b"b", NOW), Named::Missing);
    assert_eq!(d.attr(D, NOW, Duration::ZERO).expect("leased").0, attr(1));
    let said = DirChanged { attr: attr(2), lease_ms: 1, before: 1 };
    d.change(&[D], true).done(&[(&said, END)], |_| vec![Edit::Remove(b"a")]);
    assert_eq!(d.named(D, b"a", NOW), Named::Missing);
    assert_eq!(d.names.get(), 0);
    // A name moved onto another one of the same file: nothing happens.
    add(&d, b"b", 2);
    let said = DirChanged { attr: attr(3), lease_ms: 1, before: 3 };
    d.change(&[D], true).done(&[(&said, END)], |_| vec![Edit::Remove(b"b")]);
    assert_eq!(d.named(D, b"b", NOW), Named::There(F));
    for odd in [&b"."[..], b"..", b"", &[b'x'; 256]] {
        assert_eq!(d.named(D, odd, NOW), Named::Unknown);
    }
}

/// The metadata engine has lost changes of ours with its power: others make as many, and the directory seems to be as it was.
#[test]
fn names_are_those_of_one_life_of_the_engine() {
    let of = |life, entries| Attr { life, ..attr(entries) };
    let d: Rc<Directories> = Rc::default();
    d.made(&of(5, 0), END);
    let said = DirChanged { attr: of(5, 1), lease_ms: 1, before: 0 };
    d.change(&[D], true).done(&[(&said, END)], |_| vec![Edit::Add(b"a", F)]);
    assert_eq!(d.named(D, b"a", NOW), Named::There(F));
    d.heard(&of(6, 1), END, d.tick());
    assert_eq!(d.named(D, b"a", NOW), Named::Unknown);
}

/// A change of ours from `before` on.
fn changes(
    d: &Rc<Directories>,
    dirs: &[(InodeId, u64)],
    edits: impl Fn(InodeId) -> Vec<Edit<'static>>,
) {
    let said = |(inode, before): &(InodeId, u64)| {
        let attr = Attr { inode: *inode, ..attr(before + 1) };
        DirChanged { attr, lease_ms: 1, before: *before }
    };
    let said: Vec<_> = dirs.iter().map(said).collect();
    let ids: Vec<_> = dirs.iter().map(|(dir, _)| *dir).collect();
    let said: Vec<_> = said.iter().map(|s| (s, END)).collect();
    d.change(&ids, true).done(&said, edits);
}

#[test]
fn a_name_that_moves_leads_to_its_inode() {
    let (d, other) = (made(), InodeId(9));
    d.made(&Attr { inode: other, ..attr(0) }, END);
    add(&d, b"a", 0);
    changes(&d, &[(D, 1)], |_| vec![Edit::Remove(b"a"), Edit::Arrived(b"b")]);
    assert_eq!((d.named(D, b"a", NOW), d.named(D, b"b", NOW)), (Named::Missing, Named::There(F)));
    changes(&d, &[(D, 2), (other, 0)], |dir| match dir == D {
        true => vec![Edit::Remove(b"b")],
        false => vec![Edit::Arrived(b"c")],
    });
    assert_eq!(
        (d.named(D, b"b", NOW), d.named(other, b"c", NOW)),
        (Named::Missing, Named::There(F))
    );
    // Where it came from was not followed: it is there, but what it is has to be asked for.
    changes(&d, &[(InodeId(99), 5), (other, 1)], |dir| match dir == other {
        true => vec![Edit::Arrived(b"c")],
        false => vec![Edit::Remove(b"x")],
    });
    assert_eq!(d.named(other, b"c", NOW), Named::Unknown);
    // Two names that were exchanged.
    add(&d, b"x", 3);
    changes(&d, &[(D, 4)], |_| vec![Edit::Changed(b"x"), Edit::Changed(b"y")]);
    assert_eq!((d.named(D, b"x", NOW), d.named(D, b"y", NOW)), (Named::Unknown, Named::Unknown));
}

#[test]
fn a_recall_or_a_change_by_others_ends_it() {
    let d = made();
    d.recalled(D);
    assert_eq!(d.named(D, b"a", NOW), Named::Unknown);
    assert!(d.attr(D, NOW, Duration::ZERO).is_none());
    let d = made();
    add(&d, b"a", 1);
    assert_eq!(d.named(D, b"b", NOW), Named::Unknown, "somebody was there before");
    let d = made();
    d.heard(&attr(1), END, d.tick());
    assert_eq!(d.named(D, b"a", NOW), Named::Unknown, "seen in the attributes");
}

#[test]
fn without_a_lease_the_attributes_tell_whether_it_still_holds() {
    let d = made();
    assert_eq!(d.named(D, b"a", END), Named::MissingIfUnchanged);
    assert!(d.attr(D, END, Duration::ZERO).is_none());
    let later = Instant(2000);
    d.heard(&attr(0), later, d.tick());
    assert_eq!(d.named(D, b"a", END), Named::Missing);
    // A lease that was refused.
    let said = DirChanged { attr: attr(1), lease_ms: 0, before: 0 };
    d.change(&[D], true).done(&[(&said, Instant(0))], |_| vec![Edit::Add(b"a", F)]);
    assert_eq!(d.named(D, b"b", NOW), Named::MissingIfUnchanged);
    d.heard(&attr(1), later, d.tick());
    assert_eq!(d.named(D, b"b", NOW), Named::Missing);
}

#[test]
fn answers_that_a_change_of_ours_overlapped_do_not_count() {
    let d = made();
    let asked = d.tick();
    let changing = d.change(&[D], false);
    assert!(d.attr(D, NOW, Duration::ZERO).is_none(), "it is being changed");
    d.heard(&attr(0), END, d.tick());
    assert!(d.attr(D, NOW, Duration::ZERO).is_none());
    drop(changing);
    d.heard(&attr(0), END, asked);
    assert!(d.attr(D, NOW, Duration::ZERO).is_none(), "asked before");
    d.heard(&attr(0), END, d.tick());
    assert!(d.attr(D, NOW, Duration::ZERO).is_some());
    assert_eq!(d.named(D, b"a", NOW), Named::Missing, "no name was concerned");
    // Two at a time: neither knows what the other did.
    let (one, two) = (d.change(&[D], true), d.change(&[D], true));
    let said = DirChanged { attr: attr(1), lease_ms: 1, before: 0 };
    one.done(&[(&said, END)], |_| vec![Edit::Add(b"a", F)]);
    two.done(&[(&said, END)], |_| vec![Edit::Add(b"b", F)]);
    assert!(d.attr(D, NOW, Duration::ZERO).is_none());
    assert_eq!(d.named(D, b"c", NOW), Named::Unknown);
}

#[test]
fn changes_of_names_are_counted_as_they_begin_and_end() {
    let d = made();
    let count = || d.name_changes(D);
    drop(d.change(&[D], false));
    assert_eq!(count(), 0, "no names");
    let changing = d.change(&[D, D], true);
    assert_eq!((count(), d.name_changes(F)), (1, 0));
    drop(changing);
    assert_eq!(count(), 2, "what failed may have been done");
    add(&d, b"a", 0);
    assert_eq!(count(), 4);
}

#[test]
fn a_change_that_failed_leaves_nothing() {
    let d = made();
    drop(d.change(&[D], true));
    assert_eq!(d.named(D, b"a", NOW), Named::Unknown);
    assert!(d.known.borrow().is_empty());
}

#[test]
fn it_is_bounded() {
    let d = made();
    for i in 0..=NAMES_MAX as u64 {
        add(&d, &i.to_be_bytes(), i);
    }
    assert_eq!((d.named(D, b"a", NOW), d.names.get()), (Named::Unknown, 0));
    for i in 100..100 + 2 * DIRECTORIES_MAX as u64 {
        d.made(&Attr { inode: InodeId(i), ..attr(0) }, END);
        assert!(d.known.borrow().len() <= DIRECTORIES_MAX);
    }
}
