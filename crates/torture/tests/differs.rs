//! The check at the end of a run fails when it should: bytes on the disks and a replica are spoilt behind the backs of real services. And what
//! the watchdog says of a cluster that lacks somebody.

use glowfs_client::{Client, ClientConfig};
use glowfs_rt::{Duration, Rt, real};
use glowfs_torture::cluster::{Cluster, Shape};
use glowfs_torture::flight::Flight;
use glowfs_torture::replicas::{Compared, compare};
use glowfs_torture::scrub::{Expected, Logs, everything};
use glowfs_torture::site::Site;
use glowfs_torture::work::library::Access;
use glowfs_types::routing::ChainInfo;
use glowfs_types::wire::data::{
    ChunkSummary, ListChunks, SyncListReply, Update, UpdateHead, update,
};
use glowfs_types::wire::method;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

/// What the services remember of a block.
const BLOCK: usize = 4096;
/// Blocks of the file.
const BLOCKS: usize = 512;
/// How long it may take until mgmtd knows that a node is gone.
const BOUND: Duration = Duration::from_secs(60);
/// Nobody writes: what is not equal after this will never be.
const SETTLED: Duration = Duration::from_secs(3);

/// What is in a block of the file, and in no other block.
fn block(number: usize) -> Vec<u8> {
    (0..BLOCK / 4).flat_map(|i| ((number * BLOCK + i) as u32 ^ 0x5a5a_5a5a).to_le_bytes()).collect()
}

/// Turns a byte over wherever this block lies on the disks of the storage nodes `whom`. Returns how many there were.
fn spoil(c: &Cluster, whom: &[&str], bytes: &[u8]) -> usize {
    let all = c.services().expect("the services");
    let disks = all.iter().filter(|s| whom.contains(&s.id.as_str())).flat_map(|s| &s.data);
    let entries = disks.flat_map(|d| std::fs::read_dir(d).expect("a disk").flatten());
    let files = entries.filter(|e| e.file_name().to_string_lossy().starts_with("blocks-"));
    let mut found = 0;
    for path in files.map(|e| e.path()) {
        let now = std::fs::read(&path).expect("a block file");
        let file = File::options().write(true).open(&path).expect("a block file");
        for (at, _) in now.chunks(BLOCK).enumerate().filter(|(_, b)| *b == bytes) {
            file.write_all_at(&[!bytes[99]], (at * BLOCK + 99) as u64).expect("written");
            found += 1;
        }
    }
    found
}

fn compared(c: &Cluster) -> Compared {
    let (mgmtd, token) = c.access().expect("its addresses");
    compare(Access { mgmtd, token, dir: String::new() }, SETTLED).expect("compared")
}

/// A message that is bytes already.
struct Raw(Vec<u8>);

impl minicbor::Encode<()> for Raw {
    fn encode<W: minicbor::encode::Write>(
        &self,
        e: &mut minicbor::Encoder<W>,
        _: &mut (),
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        e.writer_mut().write_all(&self.0).map_err(minicbor::encode::Error::write)
    }
}

/// An answer that nobody looks at.
struct Any;

impl<'b> minicbor::Decode<'b, ()> for Any {
    fn decode(_: &mut minicbor::Decoder<'b>, _: &mut ()) -> Result<Self, minicbor::decode::Error> {
        Ok(Self)
    }
}

/// Shortens one chunk at the tail of its chain only, as a predecessor that never had it done itself. The tail's target.
fn plant(c: &Cluster) -> u64 {
    let (mgmtd, _) = c.access().expect("its addresses");
    let token = std::fs::read_to_string(c.dir.join("tokens/service")).expect("the services' token");
    let config = ClientConfig { mgmtd, token: token.trim().into(), ..ClientConfig::default() };
    real::run(move |rt: Rt| async move {
        let client: Rc<Client> =
            Client::connect(&rt, config.on_this_host()).await.expect("connected");
        let chains: Vec<ChainInfo> = client.routing().chains.values().cloned().collect();
        for chain in chains {
            let tail = *chain.members.last().expect("a member");
            let ask = ListChunks { target: tail.target, after: None, limit: 100 };
            let all: SyncListReply =
                client.node_call(tail.node, method::LIST_CHUNKS, &ask).await.expect("its chunks");
            let Some(chunk) = all.chunks.iter().find(|c| c.len as usize > BLOCK) else { continue };
            let head = shorter(&chain, chunk);
            let body = Raw(Update::encode(&head, &[]));
            let _: Any = client.node_call(tail.node, method::FORWARD, &body).await.expect("taken");
            client.close().await;
            return tail.target.0;
        }
        panic!("no chunk is long enough");
    })
}

fn shorter(chain: &ChainInfo, chunk: &ChunkSummary) -> UpdateHead {
    UpdateHead {
        kind: update::TRUNCATE,
        chunk: chunk.chunk.into(),
        chain: chain.id.0.into(),
        chain_version: chain.version.0.into(),
        target: chain.members.last().expect("a member").target.0.into(),
        len: (BLOCK as u32).into(),
        version: chunk.committed.next().0.into(),
        base: chunk.committed.0.into(),
        chunk_bytes: chunk.chunk_bytes.into(),
        ..UpdateHead::default()
    }
}

#[test]
fn what_is_spoilt_or_differs_is_found() {
    let torture = Path::new(env!("CARGO_BIN_EXE_glowfs-torture"));
    let glowfs = torture.with_file_name("glowfs");
    assert!(glowfs.exists(), "{} is not there: cargo build --bins first", glowfs.display());
    let dir = std::env::temp_dir().join(format!("glowfs-differs-{}", std::process::id()));
    let options = ["--disks", "1"].map(String::from).into();
    let site =
        Site::up(&Shape { glowfs, dir, storages: 3, options }, &[], false).expect("a cluster");
    let c = site.cluster.clone();
    let flight = Flight::new(["test".to_owned()]);
    let file = File::create(c.mounts[0].join("file")).expect("a file");
    // Large pieces go to the block files at once.
    file.write_all_at(&(0..BLOCKS).flat_map(block).collect::<Vec<_>>(), 0).expect("written");
    file.sync_all().expect("synced");
    drop(file);
    let scrub = |expected: Expected| everything(&c, &flight, &expected).expect("scrubbed");
    let since = || Expected::Sound(Logs::now(&c.services().expect("the services")));

    // All is well.
    let (sound, same) = (scrub(Expected::Sound(Logs::default())), compared(&c));
    assert_eq!((sound.found, sound.failures), (0, vec![]));
    assert_eq!((same.difference_count, same.failures("now")), (0, vec![]));
    assert!(same.replicas == 3 * same.chunks && sound.replicas == same.replicas, "{same:?}");

    // Bytes of one replica, though nothing was to be damaged; and the same although that was the plan.
    assert_eq!(spoil(&c, &["storage-2"], &block(5)), 1);
    let unexpected = scrub(since());
    assert_eq!(unexpected.found, 1);
    assert!(unexpected.failures.concat().contains("scrub found a chunk"), "{unexpected:?}");
    assert_eq!(spoil(&c, &["storage-1"], &block(6)), 1);
    let planned = scrub(Expected::Planted);
    assert_eq!((planned.found, planned.failures), (1, vec![]), "and mended");
    assert_eq!(scrub(since()).failures, Vec::<String>::new());

    // Bytes of all replicas: nobody can mend them. Versions and recorded checksums are the same.
    assert_eq!(spoil(&c, &["storage-1", "storage-2", "storage-3"], &block(7)), 3);
    let lost = scrub(Expected::Planted).failures.concat();
    assert!(lost.contains("damage stays: the scrub found 3 replicas and then 3"), "{lost}");
    assert_eq!(compared(&c).failures("now"), Vec::<String>::new());

    // One replica that has what the others do not have.
    let tail = plant(&c);
    let bad = compared(&c);
    let said = bad.failures("now").join("\n");
    assert!(bad.difference_count == 1 && said.contains("1 chunks differ"), "{said}");
    assert!(said.contains(&format!("target {tail} ")) && said.contains("4096 bytes"), "{said}");

    // What the watchdog would say of a node that is gone, and of the chains that lack it.
    c.dev("kill", &["storage-3"]).expect("killed");
    let began = std::time::Instant::now();
    loop {
        let said = c.view.ailing().join("\n");
        if said.contains("(storage) is failed") && said.contains("is degraded, version") {
            break;
        }
        assert!(began.elapsed() < BOUND, "{said}");
        std::thread::sleep(Duration::from_millis(200));
    }
    site.close(Ok(()), |()| true).expect("taken down");
}
