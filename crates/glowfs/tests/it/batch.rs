//! The client library's batches against a real cluster, beside a mount of it.

use crate::harness::{Cluster, sh};
use glowfs_client::{
    Batch, BatchConfig, Client, ClientConfig, Completion, Holes, OpenFile, OpenHow,
};
use glowfs_rt::{Buf, Duration, Rt, real};
use glowfs_types::{Depth, Status};
use std::rc::Rc;

/// Files, and bytes of each: some chunks, and a part of one.
const FILES: usize = 6;
const FILE_BYTES: usize = (3 << 20) + 12_345;

async fn connect(rt: &Rt, mgmtd: String, token: String) -> Rc<Client> {
    let config = ClientConfig { mgmtd: vec![mgmtd], token, ..ClientConfig::default() };
    Client::connect(rt, config.on_this_host()).await.expect("connected")
}

fn reading() -> OpenHow {
    OpenHow { read: true, ..OpenHow::default() }
}

fn batch(client: &Rc<Client>, entries: usize, depth: i32, timeout_ms: u64) -> Batch {
    let config =
        BatchConfig { entries, depth: Depth(depth), timeout: Duration::from_millis(timeout_ms) };
    Batch::new(client, config).expect("a batch")
}

/// Runs `work` with a client of its own in this process.
fn with_client<F: Future<Output = ()> + 'static>(
    c: &Cluster,
    work: impl FnOnce(Rt, Rc<Client>) -> F + 'static,
) {
    let status = c.status();
    let mgmtd = status["mgmtd"][0].as_str().expect("address").to_owned();
    let file = status["token_file"].as_str().expect("file");
    let token = std::fs::read_to_string(file).expect("token").trim().to_owned();
    real::run(|rt| async move {
        let client = connect(&rt, mgmtd, token).await;
        work(rt, client.clone()).await;
        client.close().await;
    });
}

async fn one(batch: &Batch) -> Completion {
    let mut all = batch.wait_all(Some(Duration::from_secs(30))).await;
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

async fn read(
    rt: &Rt,
    batch: &Batch,
    file: &Rc<OpenFile>,
    at: u64,
    len: usize,
    holes: Holes,
) -> Completion {
    batch.prepare_read(file, at, rt.alloc(len), holes, at).map_err(|(e, _)| e).expect("prepared");
    assert_eq!(batch.submit(), 1);
    one(batch).await
}

#[test]
fn samples_of_many_files_come_right_in_batches() {
    let c = Cluster::up("batch");
    sh(
        &c.mnt,
        &format!(
            "mkdir -p a/b; for i in $(seq {FILES}); do head -c {FILE_BYTES} /dev/urandom > a/b/f$i; done; ln -s a/b link; sync"
        ),
    );
    let content: Vec<Vec<u8>> = (1..=FILES)
        .map(|i| std::fs::read(c.mnt.join(format!("a/b/f{i}"))).expect("read"))
        .collect();
    with_client(&c, move |rt, client| async move {
        let mut files = Vec::new();
        for i in 1..=FILES {
            let path = format!("/link/f{i}");
            files.push(client.open_path(&path, &reading()).await.expect("opened"));
        }
        let e = client.open_path("/a/none", &reading()).await.err().expect("not there");
        assert_eq!(e.status, Status::NotFound, "{e}");
        for depth in [0, -8, 16] {
            let batch = batch(&client, 128, depth, 5);
            let mut asked = Vec::new();
            let mut ended = 0;
            while ended < 1000 {
                while asked.len() < 1000 && batch.outstanding() < 128 {
                    let (i, len) =
                        (rt.random() as usize % FILES, 1 + rt.random() as usize % 40_000);
                    // Some reach behind the end, some begin there.
                    let at = rt.random() as usize % (FILE_BYTES + 1000);
                    batch
                        .prepare_read(
                            &files[i],
                            at as u64,
                            rt.alloc(len),
                            Holes::Zeros,
                            asked.len() as u64,
                        )
                        .map_err(|(e, _)| e)
                        .expect("prepared");
                    asked.push((i, at, len));
                }
                batch.submit();
                for done in batch.wait(1, Some(Duration::from_secs(30))).await {
                    let (i, at, len) = asked[done.user as usize];
                    let n = done.result.expect("read");
                    let buf = done.buf.expect("the buffer");
                    let want = &content[i][at.min(FILE_BYTES)..(at + len).min(FILE_BYTES)];
                    assert_eq!((n, buf.len()), (want.len(), len), "depth {depth}, at {at}");
                    assert!(buf[..n] == *want, "depth {depth}: wrong bytes at {at} of file {i}");
                    ended += 1;
                }
            }
            assert_eq!(batch.outstanding(), 0);
        }
    });
}

#[test]
fn writes_in_batches_are_what_a_mount_reads() {
    let c = Cluster::up("batchwrites");
    let (mnt, bytes) = (c.mnt.clone(), 300 * 5000);
    with_client(&c, move |_, client| async move {
        let how = OpenHow { write: true, create: Some(0o644), ..reading() };
        let files = [
            client.open_path("/one", &how).await.expect("made"),
            client.open_path("/two", &how).await.expect("made"),
        ];
        let batch = batch(&client, 64, -16, 0);
        let mut asked = 0u64;
        let mut ended = 0;
        while ended < 600 {
            while asked < 600 && batch.outstanding() < 64 {
                let (file, place) = (&files[asked as usize % 2], asked / 2);
                let block = Buf::from_vec(vec![place as u8 ^ 0x5a; 5000]);
                batch.prepare_write(file, place * 5000, block, asked).expect("prepared");
                asked += 1;
            }
            batch.submit();
            for done in batch.wait(16, Some(Duration::from_secs(30))).await {
                assert_eq!(done.result.expect("written"), 5000);
                ended += 1;
            }
        }
        for file in &files {
            file.flush().await.expect("flushed");
            client.close_file(file).await.expect("closed");
        }
    });
    for name in ["one", "two"] {
        let got = std::fs::read(mnt.join(name)).expect("read");
        assert_eq!(got.len(), bytes);
        assert!(got.chunks(5000).enumerate().all(|(i, b)| b.iter().all(|x| *x == i as u8 ^ 0x5a)));
    }
}

#[test]
fn holes_depth_and_limits_are_those_of_the_rings() {
    let c = Cluster::up("batchrules");
    sh(
        &c.mnt,
        "head -c 8192 /dev/urandom > f; truncate -s 2M f; echo data >> f; truncate -s 3M f; sync",
    );
    with_client(&c, |rt, client| async move {
        let file = client.open_path("/f", &reading()).await.expect("opened");
        let all = batch(&client, 4, 0, 0);
        let whole = read(&rt, &all, &file, 0, 65536, Holes::Zeros).await;
        assert_eq!(whole.result.expect("read"), 65536, "a hole is zeros");
        assert!(whole.buf.expect("buffer")[8192..].iter().all(|b| *b == 0));
        let short = read(&rt, &all, &file, 4096, 65536, Holes::End).await;
        assert_eq!(short.result.expect("read"), 4096, "it ends before the hole");
        let none = read(&rt, &all, &file, 1 << 20, 4096, Holes::End).await;
        assert_eq!(none.result.expect_err("a hole").status, Status::NoAttribute);
        let behind = read(&rt, &all, &file, 4096, 2 << 20, Holes::End).await;
        assert_eq!(behind.result.expect_err("a hole").status, Status::NoAttribute);
        let end = read(&rt, &all, &file, 3 << 20, 4096, Holes::End).await;
        assert_eq!(end.result.expect("the end"), 0);
        let denied = all.prepare_write(&file, 0, Buf::from_vec(vec![1]), 9);
        denied.expect("prepared");
        all.submit();
        assert!(one(&all).await.result.is_err(), "it is not open for writing");

        // Exactly four at a time: three wait for the time-out, and a fourth one sets them going at once.
        let exact = batch(&client, 8, 4, 600);
        let began = rt.now();
        for n in 0..3 {
            exact
                .prepare_read(&file, 0, rt.alloc(512), Holes::Zeros, n)
                .map_err(|(e, _)| e)
                .expect("prepared");
        }
        exact.submit();
        assert!(exact.wait(3, Some(Duration::from_millis(200))).await.is_empty());
        assert_eq!(exact.wait_all(Some(Duration::from_secs(30))).await.len(), 3);
        assert!(rt.now().since(began) >= Duration::from_millis(600));

        // As many as there are entries, and a clear refusal then, with the buffer.
        for n in 0..8 {
            exact
                .prepare_read(&file, 0, rt.alloc(512), Holes::Zeros, n)
                .map_err(|(e, _)| e)
                .expect("prepared");
        }
        let (e, buf) =
            exact.prepare_read(&file, 0, rt.alloc(512), Holes::Zeros, 8).expect_err("full");
        assert_eq!((e.status, buf.len()), (Status::Overloaded, 512), "{e}");
        assert!(e.message.contains("take completions"), "{e}");
        assert_eq!(exact.submit(), 8);
        assert_eq!(exact.wait_all(Some(Duration::from_secs(30))).await.len(), 8);
        for config in [(0, 0), (70_000, 0), (8, 9)] {
            let config =
                BatchConfig { entries: config.0, depth: Depth(config.1), ..BatchConfig::default() };
            assert!(Batch::new(&client, config).is_err(), "{config:?}");
        }
    });
}
