//! Records of the log, and the entries that checkpoints share with them. See `docs/formats/chunk-store.md`.

use crate::api::StageKind;
use crate::codec::{Reader, Writer};
use crate::extents::{Extent, Loc};
use glowfs_types::wire::data::ChannelRecord;
use glowfs_types::{
    ChannelId, ChunkId, ChunkVersion, ClientId, DataId, Error, Result, Seq, Status, TargetId,
    VolumeId,
};

/// What one update changes: blocks with their places and checksums, and the length after it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Delta {
    pub version: ChunkVersion,
    pub kind: StageKind,
    pub len: u32,
    pub chunk_bytes: u32,
    pub channel: Option<ChannelRecord>,
    /// Sorted. In a record, [`Loc::Log`]'s block counts from the batch's first payload block and its segment is 0.
    pub extents: Vec<Extent>,
    /// One for each block of the extents, in order.
    pub crcs: Vec<u32>,
    /// Blocks that do not match their checksums came so ([`crate::StageRequest::damaged`]): that is no torn write.
    pub damaged: bool,
}

/// Flags of a delta.
const COMMITTED: u8 = 1;
const DAMAGED: u8 = 2;

impl Delta {
    /// Forgets whatever was there before.
    pub fn resets(&self) -> bool {
        matches!(self.kind, StageKind::Remove | StageKind::Replace)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Record {
    Stage { chunk: ChunkId, commit: bool, delta: Delta },
    Commit { chunk: ChunkId, version: ChunkVersion },
    Discard { chunk: ChunkId, version: ChunkVersion },
    CreateTarget,
    RemoveTarget,
    TargetMeta(Vec<u8>),
    Channels(Vec<ChannelRecord>),
    ForgetClient(ClientId),
    PurgeTombstones,
    ForgetChannels(ClientId, Vec<ChannelId>),
}

const STAGE: u8 = 1;
const COMMIT: u8 = 2;
const DISCARD: u8 = 3;
const CREATE_TARGET: u8 = 4;
const REMOVE_TARGET: u8 = 5;
const TARGET_META: u8 = 6;
const CHANNELS: u8 = 7;
const FORGET_CLIENT: u8 = 8;
const PURGE_TOMBSTONES: u8 = 9;
const FORGET_CHANNELS: u8 = 10;

fn bad(what: &str) -> Error {
    Error::new(Status::Corrupt, format!("record: {what}"))
}

pub(crate) fn put_chunk_id(w: &mut Writer, c: ChunkId) {
    w.u64(c.volume.0);
    w.u64(c.data.0);
    w.u64(c.index);
}
pub(crate) fn get_chunk_id(r: &mut Reader<'_>) -> Result<ChunkId> {
    Ok(ChunkId { volume: VolumeId(r.u64()?), data: DataId(r.u64()?), index: r.u64()? })
}

pub(crate) fn put_channel(w: &mut Writer, c: &ChannelRecord) {
    w.u128(c.client.0);
    w.u64(c.channel.0);
    w.u64(c.seq.0);
    put_chunk_id(w, c.chunk);
    w.u64(c.version.0);
}
pub(crate) fn get_channel(r: &mut Reader<'_>) -> Result<ChannelRecord> {
    Ok(ChannelRecord {
        client: ClientId(r.u128()?),
        channel: ChannelId(r.u64()?),
        seq: Seq(r.u64()?),
        chunk: get_chunk_id(r)?,
        version: ChunkVersion(r.u64()?),
    })
}

pub(crate) fn put_extents(w: &mut Writer, extents: &[Extent], crcs: &[u32]) {
    w.u32(extents.len() as u32);
    w.u32(crcs.len() as u32);
    for e in extents {
        w.u32(e.block);
        w.u32(e.count);
        match e.loc {
            Loc::Log { segment, block } => {
                w.u32(0);
                w.u32(block);
                w.u64(segment);
            }
            Loc::Slot { class, index, block } => {
                w.u32(u32::from(class));
                w.u32(block);
                w.u64(u64::from(index));
            }
        }
    }
    for c in crcs {
        w.u32(*c);
    }
}

/// Bytes of an extent in a record.
const EXTENT_BYTES: usize = 24;

/// Checks that the extents are sorted, inside `chunk_bytes`, in possible places.
pub(crate) fn get_extents(r: &mut Reader<'_>, chunk_bytes: u32) -> Result<(Vec<Extent>, Vec<u32>)> {
    let n = r.u32()? as usize;
    let m = r.u32()? as usize;
    if n > r.0.len() / EXTENT_BYTES || m > r.0.len() / 4 {
        return Err(bad("more extents than bytes"));
    }
    let blocks_max = chunk_bytes.div_ceil(crate::format::BLOCK as u32);
    let mut extents = Vec::with_capacity(n);
    let mut end = 0;
    for _ in 0..n {
        let block = r.u32()?;
        let count = r.u32()?;
        let class = r.u32()?;
        let at = r.u32()?;
        let place = r.u64()?;
        if block < end || count == 0 || block.checked_add(count).is_none_or(|e| e > blocks_max) {
            return Err(bad("extents out of order or past the chunk"));
        }
        end = block + count;
        if at.checked_add(count).is_none() {
            return Err(bad("extent past the end of its place"));
        }
        let loc = if class == 0 {
            Loc::Log { segment: place, block: at }
        } else {
            let class = u8::try_from(class).map_err(|_| bad("size class"))?;
            let index = u32::try_from(place).map_err(|_| bad("slot number"))?;
            if !crate::slots::is_class(class) || at + count > crate::slots::blocks_of(class) {
                return Err(bad("extent past the end of its slot"));
            }
            Loc::Slot { class, index, block: at }
        };
        extents.push(Extent { block, count, loc });
    }
    let mut crcs = Vec::with_capacity(m);
    for _ in 0..m {
        crcs.push(r.u32()?);
    }
    Ok((extents, crcs))
}

pub(crate) fn put_delta(w: &mut Writer, d: &Delta, commit: bool) {
    w.u64(d.version.0);
    w.u8(d.kind.to_wire());
    w.u8(if commit { COMMITTED } else { 0 } | if d.damaged { DAMAGED } else { 0 });
    w.u8(u8::from(d.channel.is_some()));
    w.u8(0);
    w.u32(d.len);
    w.u32(d.chunk_bytes);
    if let Some(c) = &d.channel {
        put_channel(w, c);
    }
    put_extents(w, &d.extents, &d.crcs);
}

/// The delta, and whether it is committed at once.
pub(crate) fn get_delta(r: &mut Reader<'_>) -> Result<(Delta, bool)> {
    let version = ChunkVersion(r.u64()?);
    let kind = StageKind::from_wire(r.u8()?).ok_or_else(|| bad("unknown kind of update"))?;
    let flags = r.u8()?;
    let has_channel = r.u8()? != 0;
    r.u8()?;
    let len = r.u32()?;
    let chunk_bytes = r.u32()?;
    if !crate::slots::is_chunk_size(chunk_bytes) || len > chunk_bytes {
        return Err(bad("length or chunk size"));
    }
    let channel = if has_channel { Some(get_channel(r)?) } else { None };
    let (extents, crcs) = get_extents(r, chunk_bytes)?;
    if crcs.len() as u64 != extents.iter().map(|e| u64::from(e.count)).sum::<u64>() {
        return Err(bad("number of checksums"));
    }
    if extents.last().is_some_and(|e| e.end() > crate::chunk::blocks_for(len)) {
        return Err(bad("blocks past the length"));
    }
    let damaged = flags & DAMAGED != 0;
    let delta = Delta { version, kind, len, chunk_bytes, channel, extents, crcs, damaged };
    Ok((delta, flags & COMMITTED != 0))
}

impl Record {
    /// Appends the record: length, kind, target, body, padded to 8 bytes.
    pub fn encode(&self, target: TargetId, w: &mut Writer) {
        let start = w.0.len();
        w.u32(0);
        w.u8(self.kind());
        w.u8(0);
        w.u16(0);
        w.u64(target.0);
        match self {
            Record::Stage { chunk, commit, delta } => {
                put_chunk_id(w, *chunk);
                put_delta(w, delta, *commit);
            }
            Record::Commit { chunk, version } | Record::Discard { chunk, version } => {
                put_chunk_id(w, *chunk);
                w.u64(version.0);
            }
            Record::CreateTarget | Record::RemoveTarget | Record::PurgeTombstones => {}
            Record::TargetMeta(bytes) => {
                w.u32(bytes.len() as u32);
                w.bytes(bytes);
            }
            Record::Channels(list) => {
                w.u32(list.len() as u32);
                list.iter().for_each(|c| put_channel(w, c));
            }
            Record::ForgetClient(client) => w.u128(client.0),
            Record::ForgetChannels(client, list) => {
                w.u128(client.0);
                w.u32(list.len() as u32);
                list.iter().for_each(|channel| w.u64(channel.0));
            }
        }
        w.0.resize(w.0.len().next_multiple_of(8), 0);
        w.patch_u32(start, (w.0.len() - start) as u32);
    }

    /// Whether a recovery takes it back as it is: a log with one record that it refuses is refused as a whole.
    pub fn is_readable(&self) -> bool {
        let mut w = Writer::default();
        self.encode(TargetId(0), &mut w);
        Record::decode(&mut Reader(&w.0)).is_ok_and(|(_, read)| read == *self)
    }

    fn kind(&self) -> u8 {
        match self {
            Record::Stage { .. } => STAGE,
            Record::Commit { .. } => COMMIT,
            Record::Discard { .. } => DISCARD,
            Record::CreateTarget => CREATE_TARGET,
            Record::RemoveTarget => REMOVE_TARGET,
            Record::TargetMeta(_) => TARGET_META,
            Record::Channels(_) => CHANNELS,
            Record::ForgetClient(_) => FORGET_CLIENT,
            Record::PurgeTombstones => PURGE_TOMBSTONES,
            Record::ForgetChannels(..) => FORGET_CHANNELS,
        }
    }

    /// Takes the next record off.
    pub fn decode(r: &mut Reader<'_>) -> Result<(TargetId, Record)> {
        let len = Reader(r.0).u32()? as usize;
        if len < 16 || !len.is_multiple_of(8) {
            return Err(bad("length"));
        }
        let mut r = Reader(r.bytes(len)?);
        r.u32()?;
        let kind = r.u8()?;
        r.u8()?;
        r.u16()?;
        let target = TargetId(r.u64()?);
        let r = &mut r;
        let record = match kind {
            STAGE => {
                let chunk = get_chunk_id(r)?;
                let (delta, commit) = get_delta(r)?;
                Record::Stage { chunk, commit, delta }
            }
            COMMIT => Record::Commit { chunk: get_chunk_id(r)?, version: ChunkVersion(r.u64()?) },
            DISCARD => Record::Discard { chunk: get_chunk_id(r)?, version: ChunkVersion(r.u64()?) },
            CREATE_TARGET => Record::CreateTarget,
            REMOVE_TARGET => Record::RemoveTarget,
            TARGET_META => {
                let n = r.u32()? as usize;
                Record::TargetMeta(r.bytes(n)?.to_vec())
            }
            CHANNELS => {
                let n = r.u32()?;
                Record::Channels((0..n).map(|_| get_channel(r)).collect::<Result<_>>()?)
            }
            FORGET_CLIENT => Record::ForgetClient(ClientId(r.u128()?)),
            PURGE_TOMBSTONES => Record::PurgeTombstones,
            FORGET_CHANNELS => {
                let client = ClientId(r.u128()?);
                let n = r.u32()?;
                let list = (0..n).map(|_| r.u64().map(ChannelId)).collect::<Result<_>>()?;
                Record::ForgetChannels(client, list)
            }
            // Its checksum is right, so a build that knows it has written it.
            k => {
                let what = format!("record: unknown kind {k}; start a newer glowfs");
                return Err(Error::new(Status::NewerFormat, what));
            }
        };
        Ok((target, record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chunk() -> ChunkId {
        ChunkId { volume: VolumeId(1), data: DataId(2), index: 3 }
    }

    fn stage() -> Record {
        let channel = ChannelRecord {
            client: ClientId(10),
            channel: ChannelId(11),
            seq: Seq(12),
            chunk: chunk(),
            version: ChunkVersion(4),
        };
        let log = Extent { block: 0, count: 1, loc: Loc::Log { segment: 0, block: 5 } };
        let slot = Extent { block: 2, count: 1, loc: Loc::Slot { class: 16, index: 8, block: 1 } };
        let delta = Delta {
            version: ChunkVersion(4),
            kind: StageKind::Write,
            len: 12288,
            chunk_bytes: 65536,
            channel: Some(channel),
            extents: vec![log, slot],
            crcs: vec![0xaabb_ccdd, 0x1122_3344],
            damaged: false,
        };
        Record::Stage { chunk: chunk(), commit: true, delta }
    }

    fn encoded(r: &Record) -> Vec<u8> {
        let mut w = Writer::default();
        r.encode(TargetId(9), &mut w);
        w.0
    }

    #[test]
    fn golden_records() {
        let hex: String = encoded(&stage()).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "c0000000010000000900000000000000\
             010000000000000002000000000000000300000000000000\
             04000000000000000101010000300000\
             00000100\
             0a0000000000000000000000000000000b000000000000000c00000000000000\
             0100000000000000020000000000000003000000000000000400000000000000\
             0200000002000000\
             000000000100000000000000050000000000000000000000\
             020000000100000010000000010000000800000000000000\
             ddccbbaa44332211\
             00000000"
        );
        let commit = encoded(&Record::Commit { chunk: chunk(), version: ChunkVersion(4) });
        assert_eq!((commit.len(), commit[4]), (48, 2));
        let forgets = Record::ForgetChannels(ClientId(4), vec![ChannelId(7), ChannelId(9)]);
        let words = [56u64 | 10 << 32, 9, 4, 0, 2 | 7 << 32, 9 << 32, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(encoded(&forgets), bytes);
    }

    #[test]
    fn round_trips() {
        let version = ChunkVersion(7);
        let all = [
            stage(),
            Record::Commit { chunk: chunk(), version },
            Record::Discard { chunk: chunk(), version },
            Record::CreateTarget,
            Record::RemoveTarget,
            Record::TargetMeta(vec![1, 2, 3]),
            Record::Channels(Vec::new()),
            Record::ForgetClient(ClientId(4)),
            Record::ForgetChannels(ClientId(4), vec![ChannelId(7), ChannelId(9)]),
            Record::PurgeTombstones,
        ];
        for r in all {
            let bytes = encoded(&r);
            assert_eq!(Record::decode(&mut Reader(&bytes)).expect("valid"), (TargetId(9), r));
        }
    }

    #[test]
    fn what_no_recovery_could_read_is_known_before_it_is_written() {
        let Record::Stage { chunk, commit, delta } = stage() else { panic!("an update") };
        assert!(Record::Stage { chunk, commit, delta: delta.clone() }.is_readable());
        let longer = Delta { len: delta.chunk_bytes + 1, ..delta.clone() };
        let shorter = Delta { len: 4096, ..delta };
        for delta in [longer, shorter] {
            assert!(!Record::Stage { chunk, commit, delta }.is_readable());
        }
    }

    proptest! {
        #[test]
        fn decoding_never_panics(mut bytes in proptest::collection::vec(0u8.., 0..300), at: usize, value: u8) {
            let _ = Record::decode(&mut Reader(&bytes));
            if bytes.len() >= 16 {
                let len = bytes.len() / 8 * 8;
                bytes.truncate(len);
                bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
                bytes[4] %= 10;
                let _ = Record::decode(&mut Reader(&bytes));
            }
            let mut good = encoded(&stage());
            let at = at % good.len();
            good[at] = value;
            let _ = Record::decode(&mut Reader(&good));
        }
    }
}
