//! What other clients do to the file meanwhile.

use super::Fake;
use glowfs_rt::Duration;
use glowfs_types::wire::meta::*;
use glowfs_types::wire::{Empty, method};
use glowfs_types::*;

impl Fake {
    /// Another client cuts the file to nothing, which gives it a new data id: this client is told.
    pub async fn cut(&self) {
        let epoch = self.state.epoch.get() + 1;
        self.state.epoch.set(epoch);
        self.recall(epoch).await;
    }
    /// Another client cuts the file within its first chunk, which leaves it its data id: this client is told.
    pub async fn shorten(&self, len: usize) {
        let epoch = self.state.epoch.get() + 1;
        self.state.epoch.set(epoch);
        self.state.kept_data.set(self.state.kept_data.get() + 1);
        let data = DataId(self.state.data_now());
        // Storage cuts when those who had it open have answered.
        self.recall(epoch).await;
        let mut chunks = self.state.chunks.borrow_mut();
        if let Some(content) = chunks.get_mut(&ChunkId { volume: VolumeId(1), data, index: 0 }) {
            content.truncate(len);
        }
    }
    async fn recall(&self, epoch: u64) {
        self.try_recall(epoch).await.expect("recalled");
    }
    /// Tells this client that another one has cut the file.
    pub async fn try_recall(&self, epoch: u64) -> Result<()> {
        let conn = self.state.meta_conns.borrow().last().cloned().expect("connection");
        let recall = Recall {
            volume: VolumeId(1),
            inode: InodeId(5),
            name: None,
            epoch: Some(TruncateEpoch(epoch)),
            data: true,
            append: None,
        };
        let told = conn.call_msg(method::RECALL, &recall, Duration::from_secs(2)).await;
        told.map(|_: Empty| ())
    }
    /// What another client has written to the first chunk, and told meta of.
    pub fn put(&self, bytes: &[u8]) {
        let id = ChunkId { volume: VolumeId(1), data: DataId(self.state.data_now()), index: 0 };
        self.state.chunks.borrow_mut().insert(id, bytes.to_vec());
        self.state.len.set(bytes.len() as u64);
    }
}
