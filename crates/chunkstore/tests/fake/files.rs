//! The disk as the store uses it: its directory and the open files.

use super::BLOCK;
use super::content::Change;
use super::disk::{Disk, FileState};
use glowfs_rt::backend::{BoxFuture, DirIo, FileIo, OpenOptions, Part, Space};
use glowfs_rt::{Buf, BufMut, File};
use std::io;
use std::rc::Rc;

pub(super) struct FakeDir(pub(super) Rc<Disk>);
struct FakeFile {
    disk: Rc<Disk>,
    id: u64,
}

impl FileIo for FakeFile {
    fn read(&self, mut buf: BufMut, offset: u64) -> BoxFuture<(io::Result<usize>, BufMut)> {
        assert!(offset.is_multiple_of(BLOCK as u64) && buf.len().is_multiple_of(BLOCK));
        assert!((buf.as_ptr() as usize).is_multiple_of(BLOCK));
        let (disk, id) = (self.disk.clone(), self.id);
        Box::pin(async move {
            disk.pause().await;
            let first = offset / BLOCK as u64;
            let range = (id, first)..(id, first + (buf.len() / BLOCK) as u64);
            if disk.unreadable.borrow().range(range).next().is_some() {
                return (Err(io::Error::other("the block cannot be read")), buf);
            }
            let n = disk.content(id, |f| {
                let n = f.now.len.saturating_sub(offset).min(buf.len() as u64) as usize;
                for (i, b) in buf[..n].chunks_mut(BLOCK).enumerate() {
                    match f.now.blocks.get(&(offset / BLOCK as u64 + i as u64)) {
                        Some(data) => b.copy_from_slice(&data[..b.len()]),
                        None => b.fill(0),
                    }
                }
                n
            });
            let left = disk.flip_read.get();
            disk.flip_read.set(left.saturating_sub(1));
            if left == 1 && n > 0 {
                // In the first block: most reads at start-up need no more of what they read ahead.
                buf[disk.rng.below(n.min(BLOCK) as u64) as usize] ^= 1 << disk.rng.below(8);
            }
            disk.pause().await;
            (Ok(n), buf)
        })
    }
    fn write(&self, bufs: Vec<Buf>, offset: u64) -> BoxFuture<io::Result<()>> {
        assert!(offset.is_multiple_of(BLOCK as u64));
        let mut bytes = Vec::new();
        for b in &bufs {
            assert!(b.is_aligned() && b.len().is_multiple_of(BLOCK), "unaligned write");
            bytes.extend_from_slice(b);
        }
        let (disk, id) = (self.disk.clone(), self.id);
        Box::pin(async move {
            let key = disk.next.get();
            disk.next.set(key + 1);
            disk.need_room(id, offset, bytes.len() as u64)?;
            let change = Change::Write(offset, bytes.into());
            disk.content(id, |f| f.running.insert(key, change.clone()));
            disk.while_held(id).await;
            disk.pause().await;
            let result = disk.operation();
            disk.content(id, |f| {
                f.running.remove(&key);
                if result.is_ok() {
                    f.now.apply(&change);
                    f.unsynced.push(change);
                }
            });
            disk.pause().await;
            result
        })
    }
    fn sync(&self) -> BoxFuture<io::Result<()>> {
        let (disk, id) = (self.disk.clone(), self.id);
        Box::pin(async move {
            let n = disk.content(id, |f| f.unsynced.len());
            disk.while_flushes_are_held().await;
            disk.pause().await;
            disk.operation()?;
            disk.syncs.set(disk.syncs.get() + 1);
            let fails = disk.sync_fails();
            disk.content(id, |f| {
                let n = n.min(f.unsynced.len());
                for c in f.unsynced.drain(..n).collect::<Vec<_>>() {
                    if !fails {
                        f.durable.apply(&c);
                    } else if disk.rng.below(2) == 0 {
                        // It can be read as before and counts as clean; the disk has any part of it.
                        f.durable.apply_part(c, false, &disk.rng);
                    }
                }
            });
            disk.pause().await;
            if fails { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
        })
    }
    fn allocate(&self, offset: u64, len: u64) -> BoxFuture<io::Result<()>> {
        let (disk, id) = (self.disk.clone(), self.id);
        Box::pin(async move {
            disk.pause().await;
            disk.operation()?;
            disk.need_room(id, offset, len)?;
            disk.change(id, Change::Allocate(offset, len));
            Ok(())
        })
    }
    fn punch(&self, offset: u64, len: u64) -> BoxFuture<io::Result<()>> {
        let (disk, id) = (self.disk.clone(), self.id);
        Box::pin(async move {
            disk.pause().await;
            disk.operation()?;
            disk.change(id, Change::Punch(offset, len));
            Ok(())
        })
    }
    fn set_len(&self, len: u64) -> BoxFuture<io::Result<()>> {
        let (disk, id) = (self.disk.clone(), self.id);
        Box::pin(async move {
            disk.pause().await;
            disk.operation()?;
            disk.change(id, Change::SetLen(len));
            Ok(())
        })
    }
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.content(self.id, |f| f.now.len))
    }
    fn room_bytes(&self) -> io::Result<u64> {
        Ok(self.disk.content(self.id, |f| (f.now.room.len() * BLOCK) as u64))
    }
    fn rooms(&self) -> BoxFuture<io::Result<Option<Vec<Part>>>> {
        let part = |b: u64| Part { start: b * BLOCK as u64, end: (b + 1) * BLOCK as u64 };
        let mut parts: Vec<Part> = Vec::new();
        self.disk.content(self.id, |f| {
            for p in f.now.room.iter().map(|b| part(*b)) {
                match parts.last_mut() {
                    Some(last) if last.end == p.start => last.end = p.end,
                    _ => parts.push(p),
                }
            }
        });
        let told = self.disk.tells_rooms.get().then_some(parts);
        Box::pin(std::future::ready(Ok(told)))
    }
}

impl DirIo for FakeDir {
    fn open(&self, name: &str, options: OpenOptions) -> BoxFuture<io::Result<File>> {
        let (disk, name) = (self.0.clone(), name.to_owned());
        Box::pin(async move {
            disk.pause().await;
            if let Some(left) = disk.scarce.get().checked_sub(1) {
                disk.scarce.set(left);
                // EMFILE.
                return Err(io::Error::from_raw_os_error(24));
            }
            let found = disk.names.borrow().get(&name).copied();
            let id = match found {
                Some(id) => id,
                None if options.create => {
                    disk.operation()?;
                    let id = disk.next.get();
                    disk.next.set(id + 1);
                    disk.files.borrow_mut().insert(id, FileState::default());
                    disk.names.borrow_mut().insert(name, id);
                    id
                }
                None => return Err(io::ErrorKind::NotFound.into()),
            };
            Ok(Rc::new(FakeFile { disk, id }) as File)
        })
    }
    fn list(&self) -> BoxFuture<io::Result<Vec<String>>> {
        let names = self.0.file_names();
        Box::pin(async move { Ok(names) })
    }
    fn remove(&self, name: &str) -> BoxFuture<io::Result<()>> {
        let (disk, name) = (self.0.clone(), name.to_owned());
        Box::pin(async move {
            disk.pause().await;
            disk.operation()?;
            disk.names.borrow_mut().remove(&name);
            Ok(())
        })
    }
    fn rename(&self, from: &str, to: &str) -> BoxFuture<io::Result<()>> {
        let (disk, from, to) = (self.0.clone(), from.to_owned(), to.to_owned());
        Box::pin(async move {
            disk.pause().await;
            disk.operation()?;
            let mut names = disk.names.borrow_mut();
            let id = names.remove(&from).ok_or(io::ErrorKind::NotFound)?;
            names.insert(to, id);
            Ok(())
        })
    }
    fn sync(&self) -> BoxFuture<io::Result<()>> {
        let disk = self.0.clone();
        Box::pin(async move {
            let names = disk.names.borrow().clone();
            disk.pause().await;
            disk.operation()?;
            if disk.sync_fails() {
                return Err(io::Error::from_raw_os_error(5));
            }
            *disk.durable_names.borrow_mut() = names;
            Ok(())
        })
    }
    fn space(&self) -> io::Result<Space> {
        let total = self.0.capacity.get();
        Ok(Space { total_bytes: total, free_bytes: total.saturating_sub(self.0.used()) })
    }
    fn lock(&self) -> io::Result<()> {
        Ok(())
    }
    fn path(&self) -> String {
        "/disk".into()
    }
}
