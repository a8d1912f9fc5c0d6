//! Damage to what belongs to inodes, records of what is gone, and what cannot be mended.

use super::*;
use crate::record::{Contents, OrphanRecord, Session, pack};
use glowfs_kv::Key;
use glowfs_rt::real;
use world::NO_TABLE;

#[test]
fn records_of_what_is_gone() {
    use Problem::*;
    real::run(|rt| async move {
        const GONE: InodeId = InodeId(77_777);
        let c = ClientId(9);
        let session =
            Session { client: c, read: true, write: true, opened: Time::default(), fence: 0 };
        let plants: Vec<(&str, Key, Vec<u8>)> = vec![
            ("xattr", keys::xattr(V, GONE, b"user.a"), b"x".to_vec()),
            ("side", keys::dir_version(V, GONE), 1i64.to_le_bytes().to_vec()),
            ("orphan", keys::orphan(V, GONE), pack(&OrphanRecord::default())),
            ("contents", keys::content(V, GONE), b"abc".to_vec()),
            ("session", keys::session(V, GONE, SessionId(1)), pack(&session)),
            ("truncate", keys::cut(V, GONE, TruncateEpoch(2)), vec![]),
        ];
        for (what, key, value) in plants {
            clean_after(&rt, what, &[Stray], async |w, _| w.put(key.clone(), value.clone()).await)
                .await;
        }
        clean_after(&rt, "locks", &[Stray], async |w, t| {
            let table = w.get(&keys::locks(V, t.f)).await.expect("locked");
            w.put(keys::locks(V, GONE), table).await;
        })
        .await;
        clean_after(&rt, "a session unknown to its client", &[NoIndex], async |w, _| {
            w.clear(keys::client_session(V, ClientId(7), SessionId(50))).await
        })
        .await;
        clean_after(&rt, "locks unknown to their client", &[NoIndex], async |w, t| {
            w.clear(keys::client_lock(V, ClientId(7), t.f)).await
        })
        .await;
        clean_after(&rt, "a symlink's length", &[BadLength], async |w, t| {
            w.edit(t.link, |i| i.len = 3).await
        })
        .await;
        clean_after(&rt, "contents of a file of chunks", &[Stray], async |w, t| {
            w.put(keys::content(V, t.f), b"abc".to_vec()).await
        })
        .await;
        clean_after(&rt, "a truncate that is finished", &[Stray], async |w, t| {
            w.put(keys::cut(V, t.f, TruncateEpoch(2)), vec![]).await
        })
        .await;
        clean_after(&rt, "contents that are longer than their file", &[BadLength], async |w, t| {
            w.put(keys::content(V, t.f), b"abc".to_vec()).await;
            w.edit(t.f, |i| i.contents = Contents::Inline).await
        })
        .await;
        // A dead client's leftovers get some time to go; here nobody takes them away.
        clean_after(&rt, "sessions, locks and waits of clients", &[Stray], async |w, t| {
            w.put(keys::client_session(V, c, SessionId(1)), t.f.0.to_be_bytes().to_vec()).await;
            w.put(keys::client_lock(V, c, t.two), vec![]).await;
            let waits = crate::locking::Waiting { inode: GONE, exclusive: true, start: 0, end: 1 };
            w.put(keys::lock_wait(V, c, 3), pack(&waits)).await;
        })
        .await;
    });
}

#[test]
fn what_cannot_be_mended_is_left_alone() {
    use Problem::*;
    real::run(|rt| async move {
        let strange = vec![0xff, 0, 0xff];
        for (what, key) in [
            ("an inode", keys::inode(V, InodeId(500))),
            ("an inode in use", keys::inode(V, InodeId(4))),
            ("a volume record", keys::volume(V)),
            ("a queued removal", keys::orphan(V, InodeId(500))),
            ("a session", keys::session(V, InodeId(2), SessionId(8))),
            ("a request", keys::request(V, 1, RequestId(8))),
        ] {
            let (w, _) = damaged(&rt, what, &[Unreadable], async |w, _| {
                w.put(key.clone(), strange.clone()).await
            })
            .await;
            assert_eq!(w.get(&key).await.as_ref(), Some(&strange), "{what}");
        }
        // While an entry cannot be read, what it may lead to is not moved.
        let (w, t) = damaged(&rt, "an entry", &[Unreadable, Unnamed], async |w, t| {
            w.put(keys::dentry(V, t.d, b"f"), strange.clone()).await
        })
        .await;
        assert!(w.entry(ROOT_INODE, "lost+found").await.is_none());
        assert_eq!(w.inode(t.f).await.nlink, 1);

        let unknown = [keys::volume(V)[..8].to_vec(), b"Qwhat".to_vec()].concat();
        let (w, _) = damaged(&rt, "an unknown kind", &[Unknown], async |w, _| {
            w.put(unknown.clone(), b"x".to_vec()).await
        })
        .await;
        assert!(w.get(&unknown).await.is_some());
        damaged(&rt, "a key too short", &[Unreadable], async |w, _| {
            w.put(keys::inode(V, InodeId(9))[..12].to_vec(), vec![]).await
        })
        .await;
        damaged(&rt, "a newer format", &[NewerFormat], async |w, _| {
            let record =
                crate::record::VolumeRecord { format: keys::FORMAT + 1, made: Time::default() };
            w.put(keys::volume(V), pack(&record)).await;
        })
        .await;
        damaged(&rt, "a table that is not there", &[UnknownLayout], async |w, t| {
            w.edit(t.f, |i| i.layout.as_mut().expect("a file").table = ChainTableId(NO_TABLE)).await
        })
        .await;
        damaged(&rt, "a length", &[BadLength], async |w, t| {
            w.edit(t.f, |i| i.len = u64::MAX).await
        })
        .await;
        damaged(&rt, "a list", &[BadAcl], async |w, t| {
            w.edit(t.f, |i| i.acl = Some(vec![1, 2, 3].into())).await
        })
        .await;
        damaged(&rt, "the root is lost", &[LostDirectory, Stray], async |w, _| {
            w.clear(keys::inode(V, ROOT_INODE)).await
        })
        .await;
    });
}
