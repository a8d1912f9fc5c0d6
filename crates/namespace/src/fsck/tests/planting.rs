//! Records of a world looked at and changed directly, checks and repairs.

use super::*;
use crate::record::pack;
use glowfs_kv::{Key, Transaction};
use glowfs_types::wire::fsck::Finding;

impl World {
    pub(super) async fn change(&self, work: impl AsyncFn(&Transaction) -> Result<()>) {
        run_transaction(&self.rt, &self.engine, work).await.expect("planted");
    }
    pub(super) async fn put(&self, key: Key, value: Vec<u8>) {
        self.change(async |tx| tx.put(key.clone(), value.clone())).await;
    }
    pub(super) async fn clear(&self, key: Key) {
        self.change(async |tx| tx.clear(key.clone())).await;
    }
    pub(super) async fn get(&self, key: &Key) -> Option<Vec<u8>> {
        run_transaction(&self.rt, &self.engine, async |tx| tx.get(key).await).await.expect("read")
    }
    pub(super) async fn inode(&self, id: InodeId) -> Inode {
        unpack("inode", &self.get(&keys::inode(V, id)).await.expect("there")).expect("an inode")
    }
    pub(super) async fn edit(&self, id: InodeId, edit: impl FnOnce(&mut Inode)) {
        let mut inode = self.inode(id).await;
        edit(&mut inode);
        self.put(keys::inode(V, id), pack(&inode)).await;
    }
    pub(super) async fn entry(&self, parent: InodeId, n: &str) -> Option<Dentry> {
        let value = self.get(&keys::dentry(V, parent, n.as_bytes())).await?;
        Some(unpack("dentry", &value).expect("a dentry"))
    }
    pub(super) async fn ask(&self, q: Fsck) -> Result<FsckReply> {
        run_transaction(&self.rt, &self.engine, async |tx| {
            answer(&Context::new(tx, &who(), self), &q).await
        })
        .await
    }
    pub(super) async fn check(&self) -> Report {
        check(&self.rt, &async |q| self.ask(q).await, &mut |_| ()).await.expect("checked")
    }
    pub(super) async fn mend(&self, findings: &[Finding]) -> Mended {
        let done = mend(&async |q| self.ask(q).await, findings, &mut |_| ()).await.expect("asked");
        assert!(done.failed.is_empty(), "{:?}", done.failed);
        done
    }
}
