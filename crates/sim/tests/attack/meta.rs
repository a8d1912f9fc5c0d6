//! The metadata service: others' names, files, sessions and requests.

use super::lab::*;
use glowfs_net::Conn;
use glowfs_types::wire::meta::*;
use glowfs_types::wire::{Empty, decode, encode, method};
use glowfs_types::*;
use std::rc::Rc;

/// Mallory, connected by hand under a client id that mgmtd does not know.
struct Mallory {
    conn: Rc<Conn>,
    id: ClientId,
}

impl Mallory {
    async fn new(lab: &Lab) -> Self {
        let id = ClientId(0xBAD);
        let conn = lab.conn(&lab.meta, &lab.mallory_token, id).await.expect("a user");
        Self { conn, id }
    }
    fn caller(&self) -> Caller {
        caller(self.id, MALLORY)
    }
    async fn call<Q: minicbor::Encode<()>>(&self, m: u16, q: &Q) -> Result<Vec<u8>> {
        call(&self.conn, m, q).await
    }
    fn open(&self, inode: InodeId, request: u128, flags: OpenFlags) -> Open {
        Open { caller: self.caller(), request: RequestId(request), inode, flags }
    }
    fn make(&self, parent: InodeId, name: &str, request: u128, flags: OpenFlags) -> Make {
        Make {
            caller: self.caller(),
            request: RequestId(request),
            parent,
            name: name.as_bytes().to_vec().into(),
            kind: InodeKind::File,
            mode: 0o644,
            rdev: 0,
            symlink: Vec::new(),
            open: Some(flags),
            exclusive: false,
            ..Make::default()
        }
    }
    fn sync(&self, of: &Attr, session: Option<SessionId>) -> Sync {
        Sync {
            caller: self.caller(),
            request: RequestId(0),
            inode: of.inode,
            session,
            len_at_least: Some(1 << 40),
            epoch: of.epoch,
            mtime: Some(Time { secs: 4_000_000_000, nanos: 0 }),
            atime: Some(Time { secs: 4_000_000_000, nanos: 0 }),
            durable: false,
            ..Sync::default()
        }
    }
}

fn both(session: u128) -> OpenFlags {
    OpenFlags {
        read: true,
        write: true,
        truncate: false,
        session: SessionId(session),
        append: false,
        inline: false,
        exec: false,
    }
}

#[test]
fn nobody_acts_as_another_client_user_or_volume() {
    siege(|lab| async move {
        let secret = lab.secret("secret").await;
        let m = Mallory::new(&lab).await;
        let ask = |caller: Caller| OfInode { caller, inode: secret.attr.inode };
        let alice = secret.client.id();
        let of_alice = ask(caller(alice, MALLORY));
        refused(m.call(method::GETATTR, &of_alice).await, Status::SessionEnded);
        for uid in [ALICE, 0] {
            let other = ask(caller(m.id, uid));
            refused(m.call(method::GETATTR, &other).await, Status::AccessDenied);
        }
        // Groups are mgmtd's word, not the caller's.
        let groups = Caller { gid: ALICE, groups: vec![0, ALICE], ..m.caller() };
        let open = Open { caller: groups, ..m.open(secret.attr.inode, 1, both(1)) };
        refused(m.call(method::OPEN, &open).await, Status::AccessDenied);
        // Nor is what his kernel has seen to.
        let admitted = Caller { admitted: true, ..m.caller() };
        let open = Open { caller: admitted, ..m.open(secret.attr.inode, 2, both(2)) };
        refused(m.call(method::OPEN, &open).await, Status::AccessDenied);
        let volume = Caller { volume: VolumeId(2), ..m.caller() };
        refused(m.call(method::GETATTR, &ask(volume)).await, Status::NotFound);
        secret.is_untouched(&lab).await;
    });
}

#[test]
fn what_the_mode_denies_is_denied() {
    siege(|lab| async move {
        let alice = lab.client(&lab.alice_token).await;
        let home = lab.home().await;
        let closed = make(&alice, ALICE, home, "closed", InodeKind::Directory, 0o700).await;
        let closed = closed.expect("a directory").attr.inode;
        let secret = lab.secret("secret").await;
        let m = Mallory::new(&lab).await;
        let name: Name = b"x".to_vec().into();
        let lookup = Lookup { caller: m.caller(), parent: closed, name: name.clone() };
        refused(m.call(method::LOOKUP, &lookup).await, Status::AccessDenied);
        let (after, limit) = (0, 10);
        let list = ReadDir {
            caller: m.caller(),
            inode: closed,
            after,
            limit,
            attributes: true,
            atime: AtimeRule::default(),
        };
        refused(m.call(method::READDIR, &list).await, Status::AccessDenied);
        refused(
            m.call(method::MAKE, &m.make(closed, "mine", 7, both(7))).await,
            Status::AccessDenied,
        );
        let inode = secret.attr.inode;
        for (read, write, truncate) in
            [(true, false, false), (false, true, false), (true, true, true), (true, false, true)]
        {
            let flags = OpenFlags {
                read,
                write,
                truncate,
                session: SessionId(9),
                append: false,
                inline: false,
                exec: false,
            };
            refused(m.call(method::OPEN, &m.open(inode, 8, flags)).await, Status::AccessDenied);
        }
        // By its name, through an open that would make it.
        let by_name = m.make(home, "secret", 9, both(9));
        refused(m.call(method::MAKE, &by_name).await, Status::AccessDenied);
        let renew = |session| Renew {
            caller: m.caller(),
            inode,
            session,
            read: true,
            write: false,
            spill: false,
            exec: false,
        };
        refused(m.call(method::RENEW, &renew(None)).await, Status::AccessDenied);
        let set = |len, mode, uid| SetAttr {
            caller: m.caller(),
            inode,
            len,
            mode,
            uid,
            ..SetAttr::default()
        };
        refused(m.call(method::SETATTR, &set(Some(0), None, None)).await, Status::AccessDenied);
        for (mode, uid) in [(Some(0o777), None), (None, Some(MALLORY))] {
            let set = set(None, mode, uid);
            refused(m.call(method::SETATTR, &set).await, Status::NotPermitted);
        }
        let xattr = OfXattr {
            caller: m.caller(),
            request: RequestId(0),
            inode,
            name: b"user.a".to_vec().into(),
        };
        refused(m.call(method::GETXATTR, &xattr).await, Status::AccessDenied);
        secret.is_untouched(&lab).await;
    });
}

/// The id of an own request that was done, sent again with something else in it.
#[test]
fn a_replayed_request_does_nothing_and_shows_nothing_but_its_own() {
    siege(|lab| async move {
        let secret = lab.secret("secret").await;
        let (inode, home) = (secret.attr.inode, lab.home().await);
        let m = Mallory::new(&lab).await;
        let first = m.make(home, "mine", 1, both(1));
        let mine = m.call(method::MAKE, &first).await.expect("an own file");
        let mine: AttrReply = decode(&mine).expect("a reply");
        let open = m.open(mine.attr.inode, 2, both(2));
        m.call(method::OPEN, &open).await.expect("an own file");
        let link = Link {
            caller: m.caller(),
            request: RequestId(3),
            inode,
            parent: home,
            name: b"alias".to_vec().into(),
        };
        m.call(method::LINK, &link).await.expect("a name for another's file is no right to it");
        let chmod = SetAttr {
            caller: m.caller(),
            request: RequestId(4),
            inode: mine.attr.inode,
            mode: Some(0o600),
            ..SetAttr::default()
        };
        m.call(method::SETATTR, &chmod).await.expect("an own file");
        for request in [1, 2, 3, 4] {
            for session in [1, 2, 5] {
                let open = m.open(inode, request, both(session));
                refused(m.call(method::OPEN, &open).await, Status::NotPermitted);
                // The name is the one that the request made.
                for (parent, name) in [(home, "secret"), (home, "alias"), (inode, "mine")] {
                    let make = m.make(parent, name, request, both(session));
                    refused(m.call(method::MAKE, &make).await, Status::NotPermitted);
                }
            }
            let chmod = SetAttr { inode, request: RequestId(request), ..chmod.clone() };
            refused(m.call(method::SETATTR, &chmod).await, Status::NotPermitted);
        }
        // Its true repetition gets the same answer, and nothing is made twice.
        let again: AttrReply =
            decode(&m.call(method::MAKE, &first).await.expect("the same")).expect("a reply");
        assert_eq!(again.attr.inode, mine.attr.inode);
        let replies = (mine.open.expect("open"), again.open.expect("open"));
        assert_eq!(replies.0.session, replies.1.session);
        // Alice may not repeat it for him either: what comes back is what she may have herself.
        let id = secret.client.id();
        let alice = lab.conn(&lab.meta, &lab.alice_token, id).await.expect("Alice");
        let hers = Make { caller: caller(id, ALICE), ..first };
        refused(call(&alice, method::MAKE, &hers).await, Status::NotPermitted);
    });
}

#[test]
fn anothers_session_is_of_no_use() {
    siege(|lab| async move {
        let secret = lab.secret("secret").await;
        let (inode, session) = (secret.attr.inode, Some(secret.session));
        let m = Mallory::new(&lab).await;
        let renew = Renew {
            caller: m.caller(),
            inode,
            session,
            read: true,
            write: true,
            spill: false,
            exec: false,
        };
        refused(m.call(method::RENEW, &renew).await, Status::SessionEnded);
        for method in [method::SYNC, method::CLOSE] {
            let sync = m.sync(&secret.attr, session);
            refused(m.call(method, &sync).await, Status::SessionEnded);
            // Without one: answered, but it changes nothing.
            let _ = m.call(method, &m.sync(&secret.attr, None)).await;
            secret.is_untouched(&lab).await;
        }
        // A file that he may read: his open under her session's id must not take its place.
        let alice = &secret.client;
        let set = SetAttr {
            caller: caller(alice.id(), ALICE),
            inode,
            mode: Some(0o644),
            ..SetAttr::default()
        };
        let attr = alice.setattr(set).await.expect("hers").attr;
        let flags = OpenFlags {
            read: true,
            write: false,
            truncate: false,
            session: secret.session,
            append: false,
            inline: false,
            exec: false,
        };
        refused(m.call(method::OPEN, &m.open(inode, 5, flags)).await, Status::SessionEnded);
        // A session for reading: not for writing, and not for saying how long the file is.
        let flags = OpenFlags { session: SessionId(6), ..flags };
        let reply = m.call(method::OPEN, &m.open(inode, 6, flags)).await.expect("readable now");
        let opened: OpenReply = decode(&reply).expect("a reply");
        assert_eq!(capability_of(&opened).rights.get(), capability::rights::READ);
        let renew = Renew {
            caller: m.caller(),
            inode,
            session: opened.session,
            read: true,
            write: true,
            spill: false,
            exec: false,
        };
        refused(m.call(method::RENEW, &renew).await, Status::AccessDenied);
        m.call(method::SYNC, &m.sync(&secret.attr, opened.session)).await.expect("answered");
        let now = alice.getattr(OfInode { caller: caller(alice.id(), ALICE), inode }).await;
        let now = now.expect("it is there").attr;
        assert_eq!((now.len, now.mtime), (attr.len, attr.mtime));
    });
}

/// Who may only write gets no right to read, not even when the capability is renewed.
#[test]
fn a_session_for_writing_does_not_read() {
    siege(|lab| async move {
        let alice = lab.client(&lab.alice_token).await;
        let home = lab.home().await;
        make(&alice, ALICE, home, "drop", InodeKind::File, 0o622).await.expect("a file");
        let name = b"drop".to_vec().into();
        let m = Mallory::new(&lab).await;
        let lookup = Lookup { caller: m.caller(), parent: home, name };
        let found = m.call(method::LOOKUP, &lookup).await.expect("a file");
        let inode = decode::<AttrReply>(&found).expect("a reply").attr.inode;
        let flags = OpenFlags { read: false, ..both(4) };
        let reply = m.call(method::OPEN, &m.open(inode, 4, flags)).await.expect("writable");
        let opened: OpenReply = decode(&reply).expect("a reply");
        assert_eq!(capability_of(&opened).rights.get(), capability::rights::WRITE);
        let renew = Renew {
            caller: m.caller(),
            inode,
            session: opened.session,
            read: true,
            write: true,
            spill: false,
            exec: false,
        };
        refused(m.call(method::RENEW, &renew).await, Status::AccessDenied);
    });
}

#[test]
fn the_engine_and_what_clients_serve_are_not_for_users() {
    siege(|lab| async move {
        for token in [&lab.mallory_token, glowfs_sim::cluster::harness::ROOT_TOKEN] {
            let conn = lab.conn(&lab.meta, token, ClientId(0)).await.expect("a user");
            for m in [method::KV_BEGIN, method::KV_GET, method::KV_GET_RANGE, method::KV_COMMIT] {
                refused(call(&conn, m, &Empty {}).await, Status::AccessDenied);
            }
            let orphans = call(&conn, method::ORPHANS, &Empty {}).await;
            if token == lab.mallory_token {
                refused(orphans, Status::AccessDenied);
            }
            for m in [method::RECALL, method::IN_USE, method::HEARTBEAT, method::READ, 9999] {
                refused(call(&conn, m, &Empty {}).await, Status::UnknownMethod);
            }
        }
    });
}

#[test]
fn bodies_that_are_none_are_refused() {
    siege(|lab| async move {
        let m = Mallory::new(&lab).await;
        let good = encode(&m.make(ROOT_INODE, "file", 1, both(1)));
        for method in (method::LOOKUP..=method::RENEW).filter(|m| *m != method::STATFS) {
            for body in bad_bodies(&good) {
                refused(call_raw(&m.conn, method, body).await, Status::BadMessage);
            }
        }
        // A form that is right with values that are not.
        let name = |name: &[u8]| Lookup {
            caller: m.caller(),
            parent: ROOT_INODE,
            name: name.to_vec().into(),
        };
        for bad in [&b""[..], b"a/b", b"a\0b", &[b'x'; 256]] {
            let e = m.call(method::LOOKUP, &name(bad)).await.expect_err("no name");
            let fits = [Status::NotFound, Status::InvalidArgument, Status::NameTooLong];
            assert!(fits.contains(&e.status), "{e}");
        }
        lab.secret("after").await.is_untouched(&lab).await;
    });
}
