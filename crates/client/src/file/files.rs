//! The open files of a client, by inode: who is told of a recall or a truncate.

use super::OpenFile;
use crate::routes;
use crate::unflushed::Unflushed;
use glowfs_rt::sync::join_all;
use glowfs_types::routing::RoutingInfo;
use glowfs_types::{Durability, InodeId, SessionId, TruncateEpoch};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

/// The open files of a client, for recalls.
#[derive(Default)]
pub(crate) struct Files(RefCell<BTreeMap<InodeId, Vec<Weak<OpenFile>>>>);

impl Files {
    /// A file was opened.
    pub(super) fn add(&self, inode: InodeId, file: &Weak<OpenFile>) {
        self.0.borrow_mut().entry(inode).or_default().push(file.clone());
    }
    /// It is not any more.
    pub(super) fn remove(&self, inode: InodeId, file: &Weak<OpenFile>) {
        let mut files = self.0.borrow_mut();
        if let Some(list) = files.get_mut(&inode) {
            list.retain(|f| !Weak::ptr_eq(f, file));
            if list.is_empty() {
                files.remove(&inode);
            }
        }
    }
    /// Whether the file is open.
    pub fn has(&self, inode: InodeId) -> bool {
        self.0.borrow().contains_key(&inode)
    }
    /// What is not flushed of an open file.
    pub fn unflushed(&self, inode: InodeId) -> Option<Rc<Unflushed>> {
        self.any(inode).map(|f| f.unflushed.clone())
    }
    /// A truncate of an open file is going to be asked for: where its chunks are, it will have been acknowledged under the present chain versions or later ones.
    pub fn cutting(&self, inode: InodeId, info: &RoutingInfo) {
        let Some(file) = self.any(inode).filter(|f| !f.is_inline()) else { return };
        let (layout, place) = {
            let s = file.state.borrow();
            (s.layout, (s.data, s.epoch))
        };
        if layout.durability == Durability::Disk {
            return;
        }
        for chain in routes::chains_of(info, &layout).unwrap_or_default() {
            if let Some(chain) = info.chains.get(&chain) {
                file.unflushed.note(place, chain.id, chain.version);
            }
        }
    }
    /// A truncate to nothing is going to be asked for; call what this returns when it is done.
    pub fn cutting_to_nothing(&self, inode: InodeId) -> impl FnOnce() + use<> {
        let unflushed = self.unflushed(inode);
        let asked = unflushed.as_ref().map(|u| u.begin());
        move || {
            if let (Some(unflushed), Some(asked)) = (unflushed, asked) {
                unflushed.cut_to_nothing(asked);
            }
        }
    }
    fn any(&self, inode: InodeId) -> Option<Rc<OpenFile>> {
        self.0.borrow().get(&inode).into_iter().flatten().find_map(Weak::upgrade)
    }
    pub(super) fn of(&self, inode: InodeId) -> Vec<Rc<OpenFile>> {
        self.0.borrow().get(&inode).into_iter().flatten().filter_map(Weak::upgrade).collect()
    }
    /// The open file with this session.
    pub(super) fn with_session(&self, inode: InodeId, session: SessionId) -> Option<Rc<OpenFile>> {
        let files = self.0.borrow();
        let mut of = files.get(&inode).into_iter().flatten().filter_map(Weak::upgrade);
        of.find(|f| f.session == Some(session))
    }
    pub(super) fn all(&self) -> Vec<Rc<OpenFile>> {
        self.0.borrow().values().flatten().filter_map(Weak::upgrade).collect()
    }
    /// The open files through which writes were sent that nobody knows the outcome of.
    pub fn in_doubt(&self, inode: InodeId) -> Vec<Rc<OpenFile>> {
        let mut files = self.of(inode);
        files.retain(|f| f.doubts.any());
        files
    }
    /// Stops the use of capabilities older than `epoch` and waits until attempts under them have ended.
    pub async fn recalled(&self, inode: InodeId, epoch: TruncateEpoch) {
        let files = self.of(inode);
        join_all(files.iter().map(|f| f.recalled(epoch))).await;
    }
}
