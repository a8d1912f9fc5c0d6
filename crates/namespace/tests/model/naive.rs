//! The naive file system: what every operation has to come to.

use glowfs_types::Status;
use std::collections::BTreeMap;

/// The naive file system.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub dirs: BTreeMap<u64, BTreeMap<String, u64>>,
    pub parents: BTreeMap<u64, u64>,
    pub links: BTreeMap<u64, u32>,
}

impl Model {
    fn is_dir(&self, i: u64) -> bool {
        self.dirs.contains_key(&i)
    }
    fn inside(&self, mut dir: u64, ancestor: u64) -> bool {
        loop {
            if dir == ancestor {
                return true;
            }
            if dir == 1 {
                return false;
            }
            dir = self.parents[&dir];
        }
    }
    pub fn dir(&mut self, i: u64) -> Result<&mut BTreeMap<String, u64>, Status> {
        if self.is_dir(i) {
            return Ok(self.dirs.get_mut(&i).expect("there"));
        }
        Err(if self.links.contains_key(&i) { Status::NotDirectory } else { Status::NotFound })
    }
    fn drop(&mut self, i: u64) {
        if self.is_dir(i) {
            self.dirs.remove(&i);
            self.parents.remove(&i);
            return;
        }
        let n = self.links.get_mut(&i).expect("linked");
        *n -= 1;
        if *n == 0 {
            self.links.remove(&i);
        }
    }
    pub fn unlink(&mut self, parent: u64, n: &str, rmdir: bool) -> Result<(), Status> {
        let i = *self.dir(parent)?.get(n).ok_or(Status::NotFound)?;
        match (rmdir, self.is_dir(i)) {
            (true, false) => return Err(Status::NotDirectory),
            (false, true) => return Err(Status::IsDirectory),
            (true, true) if !self.dirs[&i].is_empty() => return Err(Status::NotEmpty),
            _ => {}
        }
        self.dir(parent)?.remove(n);
        self.drop(i);
        Ok(())
    }
    pub fn remove_tree(&mut self, parent: u64, n: &str) -> Result<(), Status> {
        let i = *self.dir(parent)?.get(n).ok_or(Status::NotFound)?;
        if !self.is_dir(i) {
            return Err(Status::NotDirectory);
        }
        self.dir(parent)?.remove(n);
        let mut open = vec![i];
        while let Some(i) = open.pop() {
            open.extend(self.dirs.get(&i).into_iter().flatten().map(|(_, inode)| *inode));
            self.drop(i);
        }
        Ok(())
    }
    pub fn link(&mut self, i: u64, parent: u64, n: &str) -> Result<(), Status> {
        if !self.links.contains_key(&i) && !self.is_dir(i) {
            return Err(Status::Stale);
        }
        let is_dir = self.is_dir(i);
        let dir = self.dir(parent)?;
        if dir.contains_key(n) {
            return Err(Status::Exists);
        }
        if is_dir {
            return Err(Status::NotPermitted);
        }
        dir.insert(n.into(), i);
        *self.links.get_mut(&i).expect("file") += 1;
        Ok(())
    }
    pub fn rename(&mut self, p: u64, n: &str, p2: u64, n2: &str, flags: u32) -> Result<(), Status> {
        let source = self.dir(p)?.get(n).copied();
        let target = self.dir(p2)?.get(n2).copied();
        let source = source.ok_or(Status::NotFound)?;
        if flags == 1 && target.is_some() {
            return Err(Status::Exists);
        }
        if self.is_dir(source) && p != p2 && self.inside(p2, source) {
            return Err(Status::InvalidArgument);
        }
        if flags == 2 {
            let target = target.ok_or(Status::NotFound)?;
            if source == target {
                return Ok(());
            }
            if self.is_dir(target) && p != p2 && self.inside(p, target) {
                return Err(Status::InvalidArgument);
            }
            self.dir(p)?.insert(n.into(), target);
            self.dir(p2)?.insert(n2.into(), source);
            for (i, parent) in [(source, p2), (target, p)] {
                if self.is_dir(i) {
                    self.parents.insert(i, parent);
                }
            }
            return Ok(());
        }
        if let Some(t) = target {
            if t == source {
                return Ok(());
            }
            match (self.is_dir(source), self.is_dir(t)) {
                (true, false) => return Err(Status::NotDirectory),
                (false, true) => return Err(Status::IsDirectory),
                (_, true) if !self.dirs[&t].is_empty() => return Err(Status::NotEmpty),
                _ => {}
            }
            self.drop(t);
        }
        self.dir(p)?.remove(n);
        self.dir(p2)?.insert(n2.into(), source);
        if self.is_dir(source) {
            self.parents.insert(source, p2);
        }
        Ok(())
    }
}
