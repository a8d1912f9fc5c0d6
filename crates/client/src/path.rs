//! Files by their path, for programs that embed the client: they have no kernel that looks names up for them.

use crate::{Client, FileAccess, OpenFile};
use glowfs_types::wire::meta::{
    AtimeRule, Attr, Caller, InodeKind, Lookup, Make, OfInode, Open, OpenFlags, ROOT_INODE,
    ReadLink, Sync, Time,
};
use glowfs_types::{Error, InodeId, RequestId, Result, Status, VolumeId};
use std::rc::Rc;

/// Symbolic links followed in one path, as Linux does.
const SYMLINKS_MAX: u32 = 40;

/// As whom, and for what, a path is opened.
#[derive(Clone, Debug, Default)]
pub struct OpenHow {
    /// The user and groups whose rights count; the token must allow to act as that user.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// For reading.
    pub read: bool,
    /// For writing. Such a file must be closed with [`Client::close_file`], which makes its length known.
    pub write: bool,
    /// With `write`: make it with these permission bits if it is not there.
    pub create: Option<u32>,
}

impl OpenHow {
    fn caller(&self) -> Caller {
        let (uid, gid, groups) = (self.uid, self.gid, self.groups.clone());
        Caller { uid, gid, groups, volume: VolumeId(1), ..Caller::default() }
    }
}

fn no_such_name() -> Error {
    Error::new(Status::NotFound, "there is no such name")
}

/// The names of a path, last first.
fn names_of(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|b| *b == b'/').filter(|n| !n.is_empty() && n != b".");
    let mut names: Vec<_> = names.map(<[u8]>::to_vec).collect();
    names.reverse();
    names
}

/// Where a path leads.
struct Place {
    parent: InodeId,
    /// Empty: it leads to `parent` itself.
    name: Vec<u8>,
    /// None: there is no such name there.
    found: Option<Attr>,
}

impl Client {
    /// Opens a file by its path from the root of the file system; symbolic links are followed within it.
    pub async fn open_path(self: &Rc<Self>, path: &str, how: &OpenHow) -> Result<Rc<OpenFile>> {
        let told = |e: Error| e.context(format_args!("opening {path}"));
        self.open_names(path, how).await.map_err(told)
    }

    async fn open_names(self: &Rc<Self>, path: &str, how: &OpenHow) -> Result<Rc<OpenFile>> {
        let caller = how.caller();
        let access =
            FileAccess { caller: caller.clone(), read: how.read, write: how.write, exec: false };
        let session = if how.write { self.new_session() } else { Default::default() };
        let flags = OpenFlags { read: how.read, write: how.write, session, ..OpenFlags::default() };
        let Place { parent, name, found } = self.walk(&caller, path, true).await?;
        if let Some(mode) = how.create.filter(|_| how.write) {
            let (open, name) = (Some(flags), name.into());
            let make = Make { caller, parent, name, mode, open, ..Make::default() };
            let opened = self.make(make).await?.open.ok_or(Status::Internal)?;
            return self.open_file(&opened, access);
        }
        let inode = found.ok_or_else(no_such_name)?.inode;
        let open = Open { caller, request: RequestId(0), inode, flags };
        let opened = self.open(open).await?;
        self.open_file(&opened, access)
    }

    /// The attributes of what a path leads to, from the root of the file system. Symbolic links on the way are followed within it, a last one
    /// only if `follow`.
    pub async fn resolve(&self, caller: &Caller, path: &str, follow: bool) -> Result<Attr> {
        let found = self.walk(caller, path, follow).await.map(|place| place.found);
        found.and_then(|f| f.ok_or_else(no_such_name)).map_err(|e| e.context(path))
    }

    async fn walk(&self, caller: &Caller, path: &str, follow: bool) -> Result<Place> {
        let mut names = names_of(path.as_bytes());
        let (mut parent, mut links) = (ROOT_INODE, 0);
        while let Some(name) = names.pop() {
            let ask = Lookup { caller: caller.clone(), parent, name: name.clone().into() };
            let found = match self.lookup(ask).await {
                Ok(found) => found.attr,
                // The last one may be made.
                Err(e) if e.status == Status::NotFound && names.is_empty() => {
                    return Ok(Place { parent, name, found: None });
                }
                Err(e) => {
                    return Err(e.context(format_args!("«{}»", String::from_utf8_lossy(&name))));
                }
            };
            if found.kind == InodeKind::Symlink && (follow || !names.is_empty()) {
                links += 1;
                if links > SYMLINKS_MAX {
                    let e = format!("more than {SYMLINKS_MAX} symbolic links");
                    return Err(Error::new(Status::Loop, e));
                }
                let (caller, atime) = (caller.clone(), AtimeRule::default());
                let link = ReadLink { caller, inode: found.inode, atime };
                let to = self.readlink(link).await?.target;
                parent = if to.starts_with(b"/") { ROOT_INODE } else { parent };
                names.extend(names_of(&to));
            } else if names.is_empty() {
                return Ok(Place { parent, name, found: Some(found) });
            } else {
                parent = found.inode;
            }
        }
        let of = OfInode { caller: caller.clone(), inode: parent };
        let found = Some(self.getattr(of).await?.attr);
        Ok(Place { parent, name: Vec::new(), found })
    }

    /// Closes a file that was opened for writing: others see its length, and its session ends. (One that was open for reading needs no
    /// more than to be dropped.)
    pub async fn close_file(&self, file: &OpenFile) -> Result<()> {
        if file.session().is_none() {
            return Ok(());
        }
        let ns = self.rt().unix_ns();
        let now = Time { secs: (ns / 1_000_000_000) as i64, nanos: (ns % 1_000_000_000) as u32 };
        let len = file.len_written();
        let close = Sync {
            caller: file.access().caller.clone(),
            inode: file.inode(),
            session: file.session(),
            len_at_least: len,
            epoch: file.epoch(),
            mtime: len.map(|_| now),
            ..Sync::default()
        };
        self.close_session(close).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::names_of;

    #[test]
    fn paths_are_split_last_first() {
        assert!(names_of(b"//").is_empty());
        assert_eq!(names_of(b"/a/./b//"), [b"b".to_vec(), b"a".to_vec()]);
    }
}
