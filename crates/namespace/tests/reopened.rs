//! Sessions that were lost with the power of the engine's host are put back, and no others.

use crate::checked::checked;
use crate::world::{V, World};
use glowfs_kv::{Engine, Key, Memory, RangePage, Value, Version, run_transaction};
use glowfs_namespace::{self as ns, Context, Opened, Proven};
use glowfs_rt::{BoxFuture, real};
use glowfs_types::wire::inline::InlineWrite;
use glowfs_types::wire::kv::Commit;
use glowfs_types::wire::meta::*;
use glowfs_types::*;
use std::cell::Cell;
use std::rc::Rc;

const ROOT: InodeId = InodeId(1);
const SESSION: SessionId = SessionId(7);
/// The life in which files were opened.
const OPENED: u64 = 5;

/// An engine that says in which life it is.
struct Lives(Memory, Rc<Cell<u64>>);

impl Engine for Lives {
    fn begin(&self) -> BoxFuture<Result<Version>> {
        self.0.begin()
    }
    fn get(&self, version: Version, keys: Vec<Key>) -> BoxFuture<Result<Vec<Option<Value>>>> {
        self.0.get(version, keys)
    }
    fn get_range(
        &self,
        version: Version,
        begin: Key,
        end: Key,
        limit: u32,
        reverse: bool,
    ) -> BoxFuture<Result<RangePage>> {
        self.0.get_range(version, begin, end, limit, reverse)
    }
    fn commit(&self, commit: Commit) -> BoxFuture<Result<Version>> {
        self.0.commit(commit)
    }
    fn flush_barrier(&self) -> BoxFuture<Result<()>> {
        self.0.flush_barrier()
    }
    fn life(&self, _: Version) -> u64 {
        self.1.get()
    }
}

fn who(uid: u32, client: u128) -> Caller {
    Caller { uid, gid: uid, client: ClientId(client), volume: V, ..Caller::default() }
}

macro_rules! run {
    ($w:expr, $who:expr, $cx:ident => $work:expr) => {{
        let (w, who) = ($w, &$who);
        run_transaction(&w.rt, &w.engine, async |tx| {
            let $cx = &Context::new(tx, who, w);
            $work
        })
        .await
    }};
}

async fn world(rt: &glowfs_rt::Rt) -> (World, Rc<Cell<u64>>) {
    let life = Rc::new(Cell::new(OPENED));
    let engine: Rc<dyn Engine> = Rc::new(Lives(Memory::new(), life.clone()));
    (World::over(rt, 100, engine).await, life)
}

async fn make(w: &World, name: &str, mode: u32) -> InodeId {
    let name = name.as_bytes().to_vec().into();
    let q = Make { caller: who(0, 1), parent: ROOT, name, mode, ..Make::default() };
    run!(w, q.caller, cx => ns::make(cx, &q).await).expect("made").attr.inode
}

fn again(inode: InodeId, request: u128) -> Reopen {
    let (caller, request) = (who(9, 1), RequestId(request));
    let life = OPENED;
    Reopen { caller, request, inode, session: SESSION, write: true, life, ..Reopen::default() }
}

const WRITES: Proven = Proven { read: false, write: true };

async fn reopen(w: &World, q: &Reopen, proven: Proven) -> std::result::Result<Opened, Status> {
    run!(w, q.caller, cx => ns::reopen(cx, q, proven).await).map_err(|e| e.status)
}

async fn close(w: &World, inode: InodeId) -> Result<Attr> {
    let q = Sync { caller: who(9, 1), inode, session: Some(SESSION), ..Sync::default() };
    run!(w, q.caller, cx => ns::close(cx, &q).await)
}

#[test]
fn a_session_comes_back_once_in_a_later_life() {
    real::run(|rt| async move {
        let (w, life) = world(&rt).await;
        let (w, inode) = (&w, make(&w, "f", 0o600).await);
        let ended = Err(Status::SessionEnded);
        assert_eq!(reopen(w, &again(inode, 1), WRITES).await.map(drop), ended, "the same life");
        life.set(OPENED + 1);
        for unknown in [0, OPENED + 1, OPENED + 2] {
            let q = Reopen { life: unknown, ..again(inode, 2) };
            assert_eq!(reopen(w, &q, WRITES).await.map(drop), ended, "{unknown}");
        }
        let q = Reopen { fence: 3, ..again(inode, 3) };
        let opened = reopen(w, &q, WRITES).await.expect("it is there again");
        assert_eq!((opened.session, opened.write, opened.attr.life), (Some(SESSION), true, 6));
        let copy = reopen(w, &q, WRITES).await.expect("a copy");
        let other = reopen(w, &again(inode, 4), WRITES).await.expect("it is there");
        assert_eq!((&copy.attr, &other.attr), (&opened.attr, &opened.attr), "once");
        let page = run!(w, who(0, 1), cx => {
            ns::sessions_of(cx.tx, V, ClientId(1), None, 9).await
        });
        let found = page.expect("listed").found;
        assert!(found.len() == 1 && found[0].write && found[0].inode == inode);
        // What was given up before is too late still.
        let late =
            Sync { fence: 2, caller: who(9, 1), inode, session: Some(SESSION), ..Sync::default() };
        run!(w, late.caller, cx => ns::sync(cx, &late).await).expect("told");
        close(w, inode).await.expect("closed");
        assert_eq!(
            reopen(w, &q, WRITES).await.map(drop),
            ended,
            "a copy that comes after the close"
        );
        checked(&w.rt, &w.engine, w, &who(0, 1), "reopened").await;
    });
}

/// A small write that its client gave up before is too late still.
#[test]
fn it_comes_back_with_its_fence() {
    real::run(|rt| async move {
        let (w, life) = world(&rt).await;
        let w = &w;
        let session = SessionId(1);
        let open = OpenFlags { write: true, inline: true, session, ..OpenFlags::default() };
        let name = b"f".to_vec().into();
        let make = Make {
            caller: who(9, 1),
            parent: ROOT,
            name,
            mode: 0o600,
            open: Some(open),
            ..Make::default()
        };
        let made = run!(w, make.caller, cx => ns::make(cx, &make).await).expect("made").attr;
        assert!(made.inline);
        life.set(OPENED + 1);
        let back = Reopen { fence: 3, ..again(made.inode, 1) };
        reopen(w, &back, Proven::default()).await.expect("its owner's");
        for (fence, expected) in [(2, Err(Status::BadCapability)), (3, Ok(()))] {
            let q = InlineWrite {
                caller: who(9, 1),
                request: RequestId(0),
                inode: made.inode,
                session: SESSION,
                offset: 0,
                bytes: b"x".to_vec().into(),
                fence,
                under: None,
            };
            let done = run!(w, q.caller, cx => ns::inline_write(cx, &q).await);
            assert_eq!(done.map(drop).map_err(|e| e.status), expected, "{fence}");
        }
    });
}

/// Nobody gets what he was not given: neither another one's session, nor a file that is gone, nor, without a proof, what an open would refuse.
#[test]
fn it_gives_nobody_more_than_he_had() {
    real::run(|rt| async move {
        let (w, life) = world(&rt).await;
        let w = &w;
        let (closed, open) = (make(w, "closed", 0o600).await, make(w, "open", 0o666).await);
        life.set(OPENED + 1);
        let nothing = Proven::default();
        let denied = Err(Status::AccessDenied);
        assert_eq!(reopen(w, &again(closed, 1), nothing).await.map(drop), denied);
        let reads = Reopen { read: true, ..again(closed, 1) };
        assert_eq!(reopen(w, &reads, WRITES).await.map(drop), denied, "only writing is proven");
        assert!(reopen(w, &again(open, 1), nothing).await.is_ok(), "anybody may");
        let elsewhere = again(closed, 2);
        let refused = Err(Status::InvalidArgument);
        assert_eq!(reopen(w, &elsewhere, WRITES).await.map(drop), refused, "it is of another file");
        let strange = Reopen { caller: who(9, 2), ..again(open, 3) };
        let ended = Err(Status::SessionEnded);
        assert_eq!(reopen(w, &strange, WRITES).await.map(drop), ended, "another client's");
        let gone = again(InodeId(4711), 4);
        assert_eq!(reopen(w, &gone, WRITES).await.map(drop), Err(Status::Stale));
        let set = SetAttr {
            caller: who(0, 1),
            inode: closed,
            flags: Some(inode_flags::APPEND),
            mode: Some(0o666),
            ..SetAttr::default()
        };
        run!(w, set.caller, cx => ns::setattr(cx, &set).await).expect("set");
        let session = SessionId(8);
        let q = Reopen { session, ..again(closed, 5) };
        assert_eq!(reopen(w, &q, nothing).await.map(drop), Err(Status::NotPermitted));
        assert!(reopen(w, &q, WRITES).await.is_ok(), "it was open before");
    });
}

/// By how often a file has changed its clients know what was lost of it: a session that comes back must not make up for what did not.
#[test]
fn it_changes_a_file_as_little_as_the_open_did() {
    real::run(|rt| async move {
        let (w, life) = world(&rt).await;
        let w = &w;
        let change = async |inode| {
            let q = OfInode { caller: who(0, 1), inode };
            run!(w, q.caller, cx => ns::getattr(cx, &q).await).expect("there").change
        };
        let inode = make(w, "f", 0o666).await;
        let before = change(inode).await;
        let flags = OpenFlags { write: true, session: SessionId(1), ..OpenFlags::default() };
        let q = Open { caller: who(9, 1), request: RequestId(0), inode, flags };
        run!(w, q.caller, cx => ns::open(cx, &q).await).expect("opened");
        let opened = change(inode).await - before;
        life.set(OPENED + 1);
        let other = make(w, "g", 0o666).await;
        let before = change(other).await;
        reopen(w, &again(other, 1), WRITES).await.expect("back");
        assert!(change(other).await - before <= opened);
        // Where chunks could be written already, nothing changes.
        let q = Reopen { session: SessionId(8), ..again(inode, 2) };
        let before = change(inode).await;
        reopen(w, &q, WRITES).await.expect("back");
        // (That there was but one writer is known no more.)
        assert!(change(inode).await - before <= 1);
    });
}
