//! Contents of small files beside their inode records: against a model, and each way out of there.

use crate::checked::checked;
use crate::world::{V, World};
use glowfs_kv::run_transaction;
use glowfs_namespace::{self as ns, Context, Env, Spill};
use glowfs_rt::real;
use glowfs_types::wire::inline::{InlineRead, InlineWrite};
use glowfs_types::wire::meta::*;
use glowfs_types::*;

const ROOT: InodeId = InodeId(1);
const LIMIT: u64 = 100;
const SESSION: SessionId = SessionId(9);

fn who() -> Caller {
    Caller { client: ClientId(1), volume: V, ..Caller::default() }
}

macro_rules! run {
    ($w:expr, $cx:ident => $work:expr) => {{
        let (w, who) = ($w, who());
        run_transaction(&w.rt, &w.engine, async |tx| {
            let $cx = &Context::new(tx, &who, w);
            $work
        })
        .await
    }};
}

impl World {
    async fn make(&self, name: &str, inline: bool) -> Attr {
        let session =
            if name == "f" { SESSION } else { SessionId(1000 + u128::from(self.id.get())) };
        let flags = OpenFlags { read: true, write: true, session, inline, ..OpenFlags::default() };
        let name = name.as_bytes().to_vec().into();
        let q = Make {
            caller: who(),
            parent: ROOT,
            name,
            mode: 0o644,
            open: Some(flags),
            ..Make::default()
        };
        run!(self, cx => ns::make(cx, &q).await).expect("made").attr
    }
    fn write_q(&self, inode: InodeId, request: u128, offset: u64, bytes: &[u8]) -> InlineWrite {
        let (request, bytes) = (RequestId(request), bytes.to_vec().into());
        InlineWrite {
            caller: who(),
            request,
            inode,
            session: SESSION,
            offset,
            bytes,
            fence: 0,
            under: None,
        }
    }
    async fn write(&self, q: &InlineWrite) -> Result<(Attr, bool)> {
        run!(self, cx => ns::inline_write(cx, q).await)
    }
    async fn read(&self, inode: InodeId) -> (Attr, Option<Vec<u8>>) {
        let q = InlineRead { caller: who(), inode, session: None, exec: false };
        run!(self, cx => ns::inline_read(cx, &q).await).expect("read")
    }
    async fn cut(&self, inode: InodeId, len: u64) -> Result<Attr> {
        let q = SetAttr { caller: who(), inode, len: Some(len), ..SetAttr::default() };
        run!(self, cx => ns::setattr(cx, &q).await).map(|(attr, _)| attr)
    }
    async fn spill(&self, inode: InodeId, given_up: Option<DataId>) -> Spill {
        run!(self, cx => ns::spill(cx, inode, given_up).await).expect("spill")
    }
    async fn finish(&self, inode: InodeId, data: DataId) -> bool {
        run!(self, cx => ns::finish_spill(cx, inode, data).await).expect("finish")
    }
    async fn garbage(&self) -> Vec<DataId> {
        let all = run!(self, cx => ns::garbage(cx.tx, V, 100).await).expect("garbage");
        all.found.into_iter().map(|g| g.data).collect()
    }
    async fn bytes_used(&self) -> u64 {
        run!(self, cx => ns::statfs(cx.tx, V).await).expect("statfs").bytes
    }
    async fn contents_kept(&self) -> u64 {
        run!(self, cx => ns::statfs(cx.tx, V).await).expect("statfs").contents
    }
}

#[test]
fn random_writes_and_truncates_equal_the_model() {
    real::run(|rt| async move {
        for seed in 0..40u64 {
            let w = World::new(&rt, LIMIT as u32).await;
            let f = w.make("f", true).await;
            assert!(f.inline);
            let (mut model, mut state) = (Vec::<u8>::new(), seed * 7919);
            let mut epoch = f.epoch;
            let mut below = |n: u64| {
                state += 1;
                layout::splitmix64(state) % n
            };
            let mut old: Option<InlineWrite> = None;
            for step in 1..=60u128 {
                w.clock.set(w.clock.get() + 1);
                let at = below(LIMIT);
                match below(8) {
                    0..5 => {
                        let bytes = vec![step as u8; 1 + below(LIMIT - at) as usize];
                        let q = w.write_q(f.inode, step, at, &bytes);
                        let (attr, done) = w.write(&q).await.expect("written");
                        let end = at as usize + bytes.len();
                        model.resize(model.len().max(end), 0);
                        model[at as usize..end].copy_from_slice(&bytes);
                        assert!(done && attr.inline && attr.len == model.len() as u64);
                        assert_eq!(attr.mtime, w.now());
                        old = Some(q);
                    }
                    5 | 6 => {
                        w.cut(f.inode, at).await.expect("cut");
                        model.resize(at as usize, 0);
                        epoch = epoch.next();
                    }
                    _ => {
                        // A copy that comes late has no effect.
                        if let Some(q) = &old {
                            assert!(w.write(q).await.expect("again").1);
                        }
                    }
                }
                let (attr, bytes) = w.read(f.inode).await;
                assert_eq!(bytes.as_ref(), Some(&model), "seed {seed} step {step}");
                assert_eq!((attr.len, attr.epoch), (model.len() as u64, epoch));
                assert_eq!((w.bytes_used().await, w.contents_kept().await), (attr.len, attr.len));
            }
            checked(&w.rt, &w.engine, &w, &who(), &format!("seed {seed}")).await;
            let q = Unlink {
                caller: who(),
                request: RequestId(0),
                parent: ROOT,
                name: b"f".to_vec().into(),
                directory: false,
            };
            run!(&w, cx => ns::unlink(cx, &q).await).expect("removed");
            let close =
                Sync { caller: who(), inode: f.inode, session: Some(SESSION), ..Sync::default() };
            run!(&w, cx => ns::close(cx, &close).await).expect("closed");
            assert_eq!((w.garbage().await, w.bytes_used().await), (vec![], 0));
            assert_eq!(w.contents_kept().await, 0);
            checked(&w.rt, &w.engine, &w, &who(), &format!("seed {seed}, removed")).await;
        }
    });
}

#[test]
fn a_spill_has_data_of_its_own_and_counts_only_if_it_is_the_last() {
    real::run(|rt| async move {
        let w = World::new(&rt, LIMIT as u32).await;
        let f = w.make("f", true).await;
        w.write(&w.write_q(f.inode, 1, 0, b"abc")).await.expect("written");
        let Spill::Store(first, bytes) = w.spill(f.inode, None).await else { panic!("store") };
        assert_eq!(bytes, b"abc");
        assert!(first.data != f.data && first.epoch > f.epoch && first.inline);
        // Meanwhile it is read where it was, and nobody changes it.
        assert_eq!(w.read(f.inode).await.1.as_deref(), Some(&b"abc"[..]));
        let late = w.write_q(f.inode, 2, 0, b"x");
        assert_eq!(w.write(&late).await.expect_err("on its way").status, Status::Pending);
        assert_eq!(w.spill(f.inode, None).await, Spill::Underway(first.data));
        // The first attempt seems to be dead: its data is garbage, and its end has no effect.
        let next = w.spill(f.inode, Some(first.data)).await;
        let Spill::Store(second, _) = next else { panic!("store") };
        assert_ne!(second.data, first.data);
        assert_eq!(w.garbage().await, [first.data]);
        assert!(!w.finish(f.inode, first.data).await);
        assert!(w.finish(f.inode, second.data).await);
        assert!(w.finish(f.inode, second.data).await, "a repetition");
        let (attr, bytes) = w.read(f.inode).await;
        assert!(!attr.inline && bytes.is_none() && attr.data == second.data && attr.len == 3);
        assert!(!w.write(&late).await.expect("told").1);
        assert_eq!(w.spill(f.inode, None).await, Spill::Over(false));
        // A truncate takes it back.
        let g = w.make("g", true).await;
        w.cut(g.inode, 5).await.expect("zeros");
        let Spill::Store(vain, _) = w.spill(g.inode, None).await else { panic!("store") };
        let attr = w.cut(g.inode, 2).await.expect("cut");
        assert!(attr.inline && attr.data != vain.data && attr.epoch > vain.epoch);
        assert!(!w.finish(g.inode, vain.data).await);
        assert_eq!(w.read(g.inode).await.1.as_deref(), Some(&[0; 2][..]));
        // From here on it is like any other file.
        let cut = SetAttr { caller: who(), inode: f.inode, len: Some(0), ..SetAttr::default() };
        run!(&w, cx => ns::setattr(cx, &cut).await).expect("cut");
        assert_eq!(w.garbage().await, [first.data, vain.data, second.data]);
        checked(&w.rt, &w.engine, &w, &who(), "spilled").await;
    });
}

#[test]
fn what_needs_chunks_gets_them() {
    real::run(|rt| async move {
        let w = World::new(&rt, LIMIT as u32).await;
        // Empty: at once.
        let empty = w.make("f", true).await;
        assert_eq!(w.spill(empty.inode, None).await, Spill::Over(true));
        let (attr, bytes) = w.read(empty.inode).await;
        assert!(!attr.inline && bytes.is_none() && attr.data != empty.data);
        let f = w.make("g", true).await;
        let long = w.cut(f.inode, LIMIT + 1).await.expect("extended");
        assert!(!long.inline && long.len == LIMIT + 1 && long.allocated == 0, "{long:?}");
        // With contents: the service has to store them first.
        let f = w.make("h", true).await;
        w.cut(f.inode, 5).await.expect("zeros");
        assert_eq!(w.cut(f.inode, LIMIT + 1).await.expect_err("too long").status, Status::Pending);
        let renew = Renew {
            caller: who(),
            inode: f.inode,
            session: None,
            read: true,
            write: false,
            spill: false,
            exec: false,
        };
        assert!(run!(&w, cx => ns::renew(cx, &renew).await).expect("renewed").attr.inline);
        let spill = Renew { spill: true, ..renew };
        let e = run!(&w, cx => ns::renew(cx, &spill).await).expect_err("chunks");
        assert_eq!(e.status, Status::Pending);
        // A client of an older release opens chunks only.
        let (caller, request, flags) =
            (who(), RequestId(0), OpenFlags { read: true, ..OpenFlags::default() });
        let old = Open { caller, request, inode: f.inode, flags };
        assert_eq!(
            run!(&w, cx => ns::open(cx, &old).await).expect_err("chunks").status,
            Status::Pending
        );
        let new = Open { flags: OpenFlags { inline: true, ..flags }, ..old };
        let opened = run!(&w, cx => ns::open(cx, &new).await).expect("opened");
        assert_eq!(opened.content.as_deref(), Some(&[0; 5][..]));
        assert!(!w.make("old", false).await.inline);
        // Who speaks of chunks that the metadata does not know of is not believed.
        let f = w.make("i", true).await;
        let session = Some(SessionId(999 + u128::from(f.inode.0)));
        let q = Sync {
            caller: who(),
            inode: f.inode,
            session,
            len_at_least: Some(7),
            ..Sync::default()
        };
        let e = run!(&w, cx => ns::sync(cx, &q).await).expect_err("no chunks");
        assert_eq!(e.status, Status::SessionEnded);
        checked(&w.rt, &w.engine, &w, &who(), "ways out").await;
    });
}

#[test]
fn a_spill_that_failed_leaves_the_file_as_it_was() {
    real::run(|rt| async move {
        let w = World::new(&rt, LIMIT as u32).await;
        let f = w.make("f", true).await;
        w.write(&w.write_q(f.inode, 1, 0, b"abc")).await.expect("written");
        let abandon = async |data| {
            run!(&w, cx => ns::abandon_spill(cx, f.inode, data).await).expect("abandon")
        };
        assert!(!abandon(f.data).await, "none is under way");
        let Spill::Store(first, _) = w.spill(f.inode, None).await else { panic!("store") };
        let Spill::Store(second, _) = w.spill(f.inode, Some(first.data)).await else {
            panic!("store")
        };
        assert!(!abandon(first.data).await, "another one is at it");
        assert!(abandon(second.data).await && !abandon(second.data).await);
        assert!(!w.finish(f.inode, second.data).await, "too late");
        assert!(w.write(&w.write_q(f.inode, 2, 1, b"x")).await.expect("written").1);
        let (attr, bytes) = w.read(f.inode).await;
        assert!(attr.inline && attr.data != second.data && attr.epoch > second.epoch);
        assert_eq!(bytes.as_deref(), Some(&b"axc"[..]));
        assert_eq!(w.garbage().await, [first.data, second.data]);
        assert_eq!(w.contents_kept().await, 3);
        let Spill::Store(third, _) = w.spill(f.inode, None).await else { panic!("store") };
        assert!(w.finish(f.inode, third.data).await);
        assert_eq!((w.contents_kept().await, w.bytes_used().await), (0, 3));
        checked(&w.rt, &w.engine, &w, &who(), "abandoned").await;
    });
}

#[test]
fn a_write_that_was_given_up_is_refused_and_what_it_did_before_stays_done() {
    real::run(|rt| async move {
        let w = World::new(&rt, LIMIT as u32).await;
        let f = w.make("f", true).await;
        let done = w.write_q(f.inode, 1, 0, b"abc");
        w.write(&done).await.expect("written");
        let fence = async |fence| {
            let session = Some(SESSION);
            let q = Sync { caller: who(), inode: f.inode, session, fence, ..Sync::default() };
            run!(&w, cx => ns::sync(cx, &q).await).expect("told");
        };
        fence(2).await;
        fence(1).await;
        let late = w.write_q(f.inode, 2, 0, b"x");
        assert_eq!(w.write(&late).await.expect_err("late").status, Status::BadCapability);
        assert!(w.write(&done).await.expect("again").1, "a copy of what was done");
        let next = InlineWrite { fence: 2, ..w.write_q(f.inode, 3, 1, b"y") };
        assert!(w.write(&next).await.expect("written").1);
        assert_eq!(w.read(f.inode).await.1.as_deref(), Some(&b"ayc"[..]));
    });
}

#[test]
fn a_write_whose_place_is_of_before_a_truncate_hears_of_it() {
    real::run(|rt| async move {
        let w = World::new(&rt, LIMIT as u32).await;
        let f = w.make("f", true).await;
        let at = |attr: &Attr, request, offset, bytes| InlineWrite {
            under: Some(attr.epoch),
            ..w.write_q(f.inode, request, offset, bytes)
        };
        let first = at(&f, 1, 0, b"abcdef");
        let (attr, done) = w.write(&first).await.expect("written");
        assert!(done);
        let late = at(&attr, 2, 6, b"g");
        let cut = w.cut(f.inode, 2).await.expect("cut");
        assert_eq!(w.write(&late).await.expect_err("late").status, Status::Stale);
        assert!(w.write(&first).await.expect("again").1, "a copy of what was done");
        assert!(w.write(&at(&cut, 3, 2, b"g")).await.expect("written").1);
        // Also when its length is as it was.
        let same = w.cut(f.inode, 3).await.expect("cut");
        assert_eq!(w.write(&at(&cut, 4, 3, b"h")).await.expect_err("late").status, Status::Stale);
        assert!(w.write(&at(&same, 5, 3, b"h")).await.expect("written").1);
        assert_eq!(w.read(f.inode).await.1.as_deref(), Some(&b"abgh"[..]));
    });
}

#[test]
fn without_room_files_begin_with_chunks_and_what_grows_gets_some() {
    real::run(|rt| async move {
        let w = World::new(&rt, LIMIT as u32).await;
        let f = w.make("f", true).await;
        w.write(&w.write_q(f.inode, 1, 0, b"abc")).await.expect("written");
        w.room.set(false);
        assert!(!w.make("g", true).await.inline);
        assert!(w.write(&w.write_q(f.inode, 2, 0, b"xyz")).await.expect("in place").1);
        let longer = w.write_q(f.inode, 3, 2, b"12");
        assert_eq!(w.write(&longer).await.expect_err("longer").status, Status::Pending);
        assert_eq!(w.cut(f.inode, 4).await.expect_err("longer").status, Status::Pending);
        w.cut(f.inode, 2).await.expect("shorter");
        assert_eq!(w.contents_kept().await, 2);
        w.room.set(true);
        assert!(w.write(&longer).await.expect("room again").1);
        assert_eq!(w.read(f.inode).await.1.as_deref(), Some(&b"xy12"[..]));
        checked(&w.rt, &w.engine, &w, &who(), "without room").await;
    });
}
