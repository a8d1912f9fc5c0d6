//! MAKE: files, directories, symlinks, special files; with `open` it is open(2) with O_CREAT.

use crate::access::{self, EXEC, SETGID, WRITE};
use crate::acl::Acl;
use crate::context::{Context, err};
use crate::flags;
use crate::keys;
use crate::name;
use crate::open::{Opened, check_free, ended, open_inode, opened_before, put_session};
use crate::record::{Contents, Inode, OrphanRecord, pack};
use glowfs_types::wire::meta::{Attr, InodeKind, Make, Rename, SYMLINK_BYTES_MAX};
use glowfs_types::{Error, InodeId, Result, Status};

/// What MAKE made or opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Made {
    /// The inode.
    pub attr: Attr,
    /// With `open`: as from [`crate::open`].
    pub opened: Option<Opened>,
}

/// Makes an inode with a name.
pub async fn make(cx: &Context<'_>, req: &Make) -> Result<Made> {
    check_form(req)?;
    if req.unnamed {
        return make_unnamed(cx, req).await;
    }
    name::check(&req.name)?;
    if let Some(record) = cx.done_before(req).await? {
        return made_before(cx, req, record.inode).await;
    }
    let (dir, entry) = cx.dir_to_change(req.parent, &req.name).await?;
    access::check_named(cx.caller, &dir, EXEC)?;
    if name::is_dots(&req.name) {
        return err(Status::Exists);
    }
    if let Some(entry) = entry {
        return match req.open {
            Some(flags) if !req.exclusive => {
                let mut inode = cx.inode(entry.inode).await?;
                let opened = open_inode(cx, entry.inode, &mut inode, flags, access::check).await?;
                cx.remember(req, entry.inode)?;
                Ok(Made { attr: opened.attr.clone(), opened: Some(opened) })
            }
            _ => err(Status::Exists),
        };
    }
    flags::check_insert(&dir)?;
    access::check_named(cx.caller, &dir, WRITE | EXEC)?;
    let device = matches!(req.kind, InodeKind::CharDevice | InodeKind::BlockDevice);
    // A whiteout of an overlayfs is no device: anybody may make one (mknod(2), since Linux 5.8).
    let whiteout = req.kind == InodeKind::CharDevice && req.rdev == 0;
    if device && !whiteout && !access::may_all(cx.caller) {
        return err(Status::NotPermitted);
    }
    cx.tx.grows();
    let id = InodeId(cx.env.new_id()?);
    let mut inode = new_inode(cx, req, &dir)?;
    cx.insert(req.parent, &req.name, id, req.kind, id.0)?;
    cx.count(&inode, 1, 0)?;
    cx.remember(req, id)?;
    let mut session = None;
    if let Some(flags) = req.open {
        // Whoever makes a file may open it as it likes, whatever the mode.
        check_free(cx, id, flags.session).await?;
        session = put_session(cx, id, flags)?;
        if flags.write {
            inode.let_write(session);
        }
    }
    cx.put_inode(id, &mut inode)?;
    let attr = if inode.is_dir() {
        crate::context::dir_attr(id, &inode, Default::default(), cx.tx.life())
    } else {
        cx.attr_here(id, &inode)
    };
    let opened = req.open.map(|f| Opened { session, ..Opened::new(attr.clone(), f.read, f.write) });
    Ok(Made { attr, opened })
}

/// Leaves a whiteout at a name that was just taken away: a character device 0:0, which overlayfs takes for «removed». Anybody may make one.
pub(crate) fn whiteout(cx: &Context<'_>, gone: &Rename, dir: &Inode, cookie: u64) -> Result<()> {
    let req = Make {
        caller: gone.caller.clone(),
        request: gone.request,
        parent: gone.parent,
        name: gone.name.clone(),
        kind: InodeKind::CharDevice,
        mode: 0,
        rdev: 0,
        symlink: Vec::new(),
        open: None,
        exclusive: true,
        unnamed: false,
        umask: 0,
    };
    let id = InodeId(cx.env.new_id()?);
    let mut inode = new_inode(cx, &req, dir)?;
    cx.insert(req.parent, &req.name, id, req.kind, cookie)?;
    cx.count(&inode, 1, 0)?;
    cx.put_inode(id, &mut inode)
}

/// A file without a name: an orphan from the beginning, held by the session it is opened with.
async fn make_unnamed(cx: &Context<'_>, req: &Make) -> Result<Made> {
    let Some(flags) = req.open.filter(|_| req.name.is_empty()) else {
        return Err(Error::new(Status::InvalidArgument, "a file without a name is opened at once"));
    };
    if let Some(record) = cx.done_before(req).await? {
        return made_before(cx, req, record.inode).await;
    }
    let dir = cx.dir(req.parent).await?;
    flags::check_insert(&dir)?;
    access::check_named(cx.caller, &dir, WRITE | EXEC)?;
    cx.tx.grows();
    let id = InodeId(cx.env.new_id()?);
    let mut inode = new_inode(cx, req, &dir)?;
    inode.nlink = 0;
    check_free(cx, id, flags.session).await?;
    let Some(session) = put_session(cx, id, flags)? else {
        return Err(Error::new(Status::InvalidArgument, "a file without a name needs a session"));
    };
    if flags.write {
        inode.let_write(Some(session));
    }
    let orphan = OrphanRecord { linkable: !req.exclusive, ..OrphanRecord::since(cx.now) };
    cx.tx.put(keys::orphan(cx.volume(), id), pack(&orphan))?;
    cx.count(&inode, 1, 0)?;
    cx.remember(req, id)?;
    cx.put_inode(id, &mut inode)?;
    let attr = cx.attr_here(id, &inode);
    let (read, write) = (flags.read, flags.write);
    let opened = Opened { session: Some(session), ..Opened::new(attr.clone(), read, write) };
    Ok(Made { attr, opened: Some(opened) })
}

fn check_form(req: &Make) -> Result<()> {
    if req.kind == InodeKind::Symlink {
        if req.symlink.is_empty() {
            return err(Status::NotFound);
        }
        if req.symlink.len() > SYMLINK_BYTES_MAX {
            return err(Status::NameTooLong);
        }
        if req.symlink.contains(&0) {
            return err(Status::InvalidArgument);
        }
    }
    if req.open.is_some() && req.kind != InodeKind::File {
        return Err(Error::new(Status::InvalidArgument, "only a file can be opened as it is made"));
    }
    Ok(())
}

/// The answer to a retry.
async fn made_before(cx: &Context<'_>, req: &Make, id: InodeId) -> Result<Made> {
    let Some(inode) = cx.find_inode(id).await? else { return made_and_gone(cx, req, id).await };
    let attr = cx.attr_of(id, &inode).await?;
    let opened = match req.open {
        Some(f) => Some(opened_before(cx, attr.clone(), f).await?),
        None => None,
    };
    Ok(Made { attr, opened })
}

/// The answer to a retry when somebody has removed meanwhile what was made: it was made. It shows the attributes that it had at first, as far as its directory tells
/// them still. What was opened as well nobody could go on with.
async fn made_and_gone(cx: &Context<'_>, req: &Make, id: InodeId) -> Result<Made> {
    if req.open.is_some() {
        return Err(ended());
    }
    let dir = cx.find_inode(req.parent).await?.filter(Inode::is_dir).unwrap_or_default();
    let inode = without_data(cx, req, &dir)?;
    Ok(Made { attr: cx.attr_of_gone(id, &inode), opened: None })
}

/// The default ACL of the directory, or else the umask.
fn inherit(req: &Make, dir: &Inode, inode: &mut Inode) -> Result<()> {
    let Some(default) = &dir.default_acl else {
        inode.mode &= !(req.umask & 0o777);
        return Ok(());
    };
    let acl = Acl::parse(default)?.inherited(inode.mode);
    inode.mode = (inode.mode & !0o777) | acl.mode();
    inode.acl = (!acl.is_mode()).then(|| acl.to_bytes().into());
    if inode.is_dir() {
        inode.default_acl = Some(default.clone());
    }
    Ok(())
}

fn new_inode(cx: &Context<'_>, req: &Make, dir: &Inode) -> Result<Inode> {
    let mut inode = without_data(cx, req, dir)?;
    if req.kind == InodeKind::File {
        let inherited = dir.layout.ok_or_else(|| {
            Error::new(Status::Corrupt, format!("directory {} has no layout", req.parent))
        })?;
        inode.data = cx.env.new_data()?;
        inode.layout = Some(cx.env.place(&inherited, inode.data)?);
        let knows = req.open.is_some_and(|f| f.inline);
        if inherited.inline_bytes > 0 && knows && cx.env.room_for_contents() {
            inode.contents = Contents::Inline;
        }
    }
    Ok(inode)
}

/// A new inode, but for where the contents of a file are.
fn without_data(cx: &Context<'_>, req: &Make, dir: &Inode) -> Result<Inode> {
    let mut mode = req.mode & 0o7777;
    let mut gid = cx.caller.gid;
    if dir.mode & SETGID != 0 {
        gid = dir.gid;
        if req.kind == InodeKind::Directory {
            mode |= SETGID;
        } else if mode & 0o010 != 0
            && !access::is_root(cx.caller)
            && !access::in_group(cx.caller, gid)
        {
            mode &= !SETGID;
        }
    }
    let mut inode = Inode {
        kind: req.kind,
        mode,
        uid: cx.caller.uid,
        gid,
        nlink: 1,
        atime: cx.now,
        mtime: cx.now,
        ctime: cx.now,
        btime: cx.now,
        project: dir.project,
        ..Inode::default()
    };
    if req.kind != InodeKind::Symlink {
        inherit(req, dir, &mut inode)?;
    }
    match req.kind {
        InodeKind::Directory => {
            inode.layout = dir.layout;
            inode.parent = req.parent;
            inode.name = Some(req.name.clone());
            inode.trash_secs = dir.trash_secs;
        }
        InodeKind::Symlink => {
            inode.mode = 0o777;
            inode.len = req.symlink.len() as u64;
            inode.symlink = Some(req.symlink.clone().into());
        }
        InodeKind::CharDevice | InodeKind::BlockDevice => inode.rdev = req.rdev,
        InodeKind::File | InodeKind::Fifo | InodeKind::Socket => {}
    }
    Ok(inode)
}
