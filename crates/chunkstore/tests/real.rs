//! The store on a real file system.

use glowfs_chunkstore::{StageKind, StageRequest, Store, StoreConfig};
use glowfs_rt::{Buf, Rt};
use glowfs_types::checksum::{crc32c, piece_checksums};
use glowfs_types::{ChunkId, ChunkVersion, ClusterId, DataId, NodeId, Status, TargetId, VolumeId};

const T: TargetId = TargetId(7);

fn config() -> StoreConfig {
    StoreConfig {
        log_segment_bytes: 1 << 20,
        log_bytes_max: 4 << 20,
        reserve_bytes: 0,
        ..StoreConfig::new(ClusterId(1), NodeId(2))
    }
}

fn chunk(index: u64) -> ChunkId {
    ChunkId { volume: VolumeId(1), data: DataId(5), index }
}

fn write(c: u64, version: u64, offset: u32, bytes: Vec<u8>, commit: bool) -> StageRequest {
    let mut crcs = Vec::new();
    piece_checksums(offset, &bytes, &mut crcs);
    StageRequest {
        chunk: chunk(c),
        version: ChunkVersion(version),
        kind: StageKind::Write,
        offset,
        len: 0,
        payload: Buf::from_vec(bytes),
        crcs,
        chunk_bytes: 1 << 20,
        channel: None,
        commit,
        flush: false,
    }
}

fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
        .collect()
}

async fn read_all(store: &Store, rt: &Rt, c: u64, len: usize) -> Vec<u8> {
    let (r, buf) = store.read(T, chunk(c), 0, rt.alloc(len)).await;
    let r = r.expect("readable");
    assert_eq!(r.crc, crc32c(&buf));
    buf.to_vec()
}

#[test]
fn written_read_reopened() {
    let tmp = tempfile::tempdir().expect("tempdir");
    let path = tmp.path().to_owned();
    glowfs_rt::real::run(|rt| async move {
        let mut model = vec![0u8; 1 << 20];
        {
            let store =
                Store::open(&rt, rt.open_dir(&path).expect("dir"), config()).await.expect("open");
            assert!(store.was_clean());
            store.create_target(T).await.expect("target");
            store.stage(T, write(0, 1, 0, pattern(1, 1 << 20), true)).await.expect("whole");
            model.copy_from_slice(&pattern(1, 1 << 20));
            let mut version = 1;
            for i in 0..700u32 {
                version += 1;
                let offset = (i * 7_919) % ((1 << 20) - 9000);
                let len = 1 + (i as usize * 131) % 9000;
                store
                    .stage(T, write(0, version, offset, pattern(i, len), false))
                    .await
                    .expect("small");
                store.commit(T, chunk(0), ChunkVersion(version)).await.expect("commit");
                model[offset as usize..offset as usize + len].copy_from_slice(&pattern(i, len));
            }
            assert!(read_all(&store, &rt, 0, 1 << 20).await == model);
            store
                .stage(T, write(0, version + 1, 4096, pattern(3, 300_000), true))
                .await
                .expect("large");
            model[4096..304_096].copy_from_slice(&pattern(3, 300_000));
            let state = store.chunk(T, chunk(0)).expect("there");
            assert_eq!((state.committed.0, state.len), (version + 1, 1 << 20));
            assert!(read_all(&store, &rt, 0, 1 << 20).await == model);
            store.checkpoint().await.expect("checkpoint");
            assert!(read_all(&store, &rt, 0, 1 << 20).await == model);
            store.close().await.expect("close");
        }
        let store =
            Store::open(&rt, rt.open_dir(&path).expect("dir"), config()).await.expect("reopen");
        assert!(store.was_clean());
        assert!(read_all(&store, &rt, 0, 1 << 20).await == model);
        assert!(
            store.scrub_next(T, None).await.expect("scrub").expect("one").bad_blocks.is_empty()
        );
        let other = StoreConfig { cluster: ClusterId(9), ..config() };
        drop(store);
        let e =
            Store::open(&rt, rt.open_dir(&path).expect("dir"), other).await.err().expect("refused");
        assert_eq!(e.status, Status::WrongCluster);
        let store =
            Store::open(&rt, rt.open_dir(&path).expect("dir"), config()).await.expect("again");
        assert!(!store.was_clean(), "it was not closed");
        assert!(read_all(&store, &rt, 0, 1 << 20).await == model);
    });
}
