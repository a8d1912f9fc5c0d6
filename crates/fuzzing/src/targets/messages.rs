//! Every CBOR message. The first byte chooses which; what is understood must survive being written and read again.

use glowfs_types::routing::*;
use glowfs_types::wire::append::*;
use glowfs_types::wire::closes::*;
use glowfs_types::wire::copy::*;
use glowfs_types::wire::data::*;
use glowfs_types::wire::flush::*;
use glowfs_types::wire::fsck::*;
use glowfs_types::wire::hello::*;
use glowfs_types::wire::inline::*;
use glowfs_types::wire::kv::*;
use glowfs_types::wire::lock::*;
use glowfs_types::wire::meta::*;
use glowfs_types::wire::mgmtd::*;
use glowfs_types::wire::operate::*;
use glowfs_types::wire::orphans::*;
use glowfs_types::wire::repair::*;
use glowfs_types::wire::sparse::*;
use glowfs_types::wire::trash::*;
use glowfs_types::wire::tree::*;
use glowfs_types::wire::vouch::*;
use glowfs_types::wire::{Empty, ErrorBody, decode, encode};
use glowfs_types::{ChunkId, Layout};

fn both_ways<T>(bytes: &[u8])
where
    T: for<'b> minicbor::Decode<'b, ()> + minicbor::Encode<()> + PartialEq + std::fmt::Debug,
{
    if let Ok(message) = decode::<T>(bytes) {
        let once = encode(&message);
        let again = decode::<T>(&once).unwrap_or_else(|e| panic!("what we wrote is not read: {e}"));
        assert_eq!(again, message, "it changes by being written");
        assert_eq!(encode(&again), once, "it changes by being read");
    }
}

macro_rules! messages {
    ($($t:ty)*) => {
        const READERS: &[fn(&[u8])] = &[$(both_ways::<$t>),*];
        #[cfg(test)]
        const NAMES: &[&str] = &[$(stringify!($t)),*];
    };
}

// New ones are appended: the first byte of the corpus counts.
messages! {
    ChunkId Layout NodeInfo TargetInfo ChainMember ChainInfo ChainTable RoutingInfo
    QueryExtent QueryExtentReply Flush RemoveData RemoveDataReply QueryChunk QueryChunkReply SyncList ChunkSummary SyncListReply
    ChannelRecord SyncDone DiskInfo StorageInfo
    Hello HelloReply RegisterRegion UnregisterRegion ServiceStatus
    BeginReply Get GetReply GetRange GetRangeReply Mutation Commit CommitReply
    Caller Time Attr Lookup AttrReply OfInode SetAttr SetTime Make OpenFlags Open OpenReply Renew Sync Link Unlink UnlinkReply Rename
    RenameReply ReadDir DirEntry ReadDirReply ReadLinkReply StatFsReply OfXattr XattrReply SetXattr XattrList Recall
    TargetReport Heartbeat HeartbeatReply ConfigItem GetRouting ClientSession ClientSessionReply ClientGoodbye ClientList StoreOffer
    RegisterStores CreateTable CreateTableReply PrimaryInfo CheckToken UserInfo UserAdd UserAddReply UserList ClusterConfig ReportSlow
    Empty ErrorBody FlushTarget FlushTargets FlushTargetsReply
    FetchChunk FetchChunkReply Scrub ScrubState ScrubReply Place Finding NameFact InodeFact Fsck FsckReply InlineRead InlineWrite InlineReply
    ReadLink UserChange UserChangeReply MoveAway MoveAwayReply UserRemove ListClients RegisterStoresReply
    Append AppendReply Closes ClosesReply CopyChunk ListChunks ResyncInfo Keep Lock LockHolder LockReply DirChanged RefusedStore GrowTable
    Leaver RemoveNode RemoveNodeReply ForceChain ForceChainReply TakeDisk TakeDiskReply ListData ListDataReply Orphans OrphanData OrphansReply
    InUse InUseReply Damaged DamagedChunk DamagedReply ListExtents ListExtentsReply ChunkExtents TrashId TrashEntry Trash TrashReply
    RemoveTree RemoveTreeReply Trees TreesReply Tree
    Unvouched Vouch VouchReply Reopen
}

pub fn run(input: &[u8]) {
    if let Some((which, bytes)) = input.split_first() {
        READERS[usize::from(*which) % READERS.len()](bytes);
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    // A little of every CBOR type: an array of an array, numbers, strings, null and bool. Each for every message.
    let generic = [
        0x8a, 0x01, 0x82, 0x1a, 0, 0, 1, 0, 0x02, 0x43, 1, 2, 3, 0x63, b'a', b'b', b'c', 0xf6,
        0xf5, 0x80, 0x81, 0x01, 0x1b, 255, 0, 0, 0, 0, 0, 0, 1, 0x50, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9,
        10, 11, 12, 13, 14, 15,
    ];
    let mut seeds: Vec<Vec<u8>> =
        (0..READERS.len() as u8).map(|which| [&[which][..], &generic].concat()).collect();
    let whole: [(usize, Vec<u8>); 3] = [
        (22, encode(&Hello { token: "t".into(), ..Hello::default() })),
        (37, encode(&Attr { layout: Some(super::layout::sample()), ..Attr::default() })),
        (7, encode(&RoutingInfo::default())),
    ];
    seeds.extend(whole.map(|(which, bytes)| [&[which as u8][..], &bytes].concat()));
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The public structures of a file that are read from CBOR.
    fn read_from_cbor(text: &str, found: &mut Vec<String>) {
        let mut derived = false;
        for line in text.lines() {
            if line.starts_with("#[derive(") {
                derived = line.contains("Decode");
            } else if line.starts_with("pub enum ") {
                derived = false;
            } else if let Some(rest) = line.strip_prefix("pub struct ") {
                let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
                found.extend(std::mem::take(&mut derived).then(|| rest[..end].to_owned()));
            }
        }
    }

    fn look(dir: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).expect("sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                look(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                read_from_cbor(&std::fs::read_to_string(&path).expect("a source"), found);
            }
        }
    }

    /// One that is forgotten here is fuzzed by nobody.
    #[test]
    fn every_message_is_among_them() {
        let mut found = Vec::new();
        look(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../types/src"), &mut found);
        assert!(found.len() > 100, "the sources do not look as this test expects them");
        let forgotten: Vec<_> = found.iter().filter(|n| !NAMES.contains(&n.as_str())).collect();
        assert!(forgotten.is_empty(), "append them to the list: {forgotten:?}");
        assert!(READERS.len() <= 256, "the first byte cannot choose all of them any more");
    }
}
