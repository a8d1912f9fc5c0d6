//! Extended attributes: POSIX ACLs (kept in the inode, enforced by [`access`]), `user.*` by mode bits on files and directories, `trusted.*` for root, `security.*` set by root and read by all.

use crate::access::{self, READ, STICKY, WRITE};
use crate::acl::Acl;
use crate::context::{Context, err};
use crate::flags;
use crate::keys;
use crate::layouts::{self, LAYOUT_XATTR};
use crate::record::{Inode, XattrSum};
use crate::trash::{self, TRASH_XATTR};
use glowfs_kv::key_after;
use glowfs_types::wire::meta::{InodeKind, Name, OfInode, OfXattr, SetXattr};
use glowfs_types::{Error, InodeId, RequestId, Result, Status};

const CREATE: u32 = 1;
const REPLACE: u32 = 2;
/// The greatest value in bytes (what Linux allows).
const VALUE_MAX: usize = 64 << 10;
/// The greatest number of attributes of an inode.
const COUNT_MAX: u32 = 1024;
/// Bytes of the names of an inode as they are listed: Linux lists 64 KiB, and of more nobody could list any. Some are left for those that stand in the inode.
const NAMES_MAX: u32 = (64 << 10) - 256;
/// Bytes of the names and values of an inode.
const BYTES_MAX: u32 = 256 << 10;
/// Attributes read at once: a former release let an inode have a thousand of 64 KiB.
const PAGE: u32 = 64;

#[derive(PartialEq)]
enum Class {
    User,
    Trusted,
    Security,
}

fn class(name: &[u8]) -> Result<Class> {
    if name.len() > 255 {
        return err(Status::OutOfRange);
    }
    let class = [
        (&b"user."[..], Class::User),
        (b"trusted.", Class::Trusted),
        (b"security.", Class::Security),
    ]
    .into_iter()
    .find(|(prefix, _)| name.starts_with(prefix) && name.len() > prefix.len());
    match class {
        Some((_, class)) if !name.contains(&0) => Ok(class),
        _ => err(Status::NotSupported),
    }
}

fn check_read(cx: &Context<'_>, inode: &Inode, class: &Class) -> Result<()> {
    match class {
        Class::User if !matches!(inode.kind, InodeKind::File | InodeKind::Directory) => {
            err(Status::NoAttribute)
        }
        Class::User => access::check_named(cx.caller, inode, READ),
        Class::Trusted if !access::may_all(cx.caller) => err(Status::NoAttribute),
        Class::Trusted | Class::Security => Ok(()),
    }
}

fn check_write(cx: &Context<'_>, inode: &Inode, class: &Class) -> Result<()> {
    flags::check_attributes(inode)?;
    match class {
        Class::User => {
            let file = inode.kind == InodeKind::File;
            if !file && !inode.is_dir() {
                return err(Status::NotPermitted);
            }
            if inode.is_dir() && inode.mode & STICKY != 0 && !access::owns_named(cx.caller, inode) {
                return err(Status::NotPermitted);
            }
            access::check_named(cx.caller, inode, WRITE)
        }
        Class::Trusted | Class::Security if !access::may_all(cx.caller) => {
            err(Status::NotPermitted)
        }
        Class::Trusted | Class::Security => Ok(()),
    }
}

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// Sets or (without a value) removes one of the two ACLs of an inode.
async fn set_acl(cx: &Context<'_>, q: &SetXattr) -> Result<()> {
    if cx.done_before(q).await?.is_some() {
        return Ok(());
    }
    let mut inode = cx.inode(q.inode).await?;
    if inode.kind == InodeKind::Symlink {
        return err(Status::NotSupported);
    }
    if !access::owns_named(cx.caller, &inode) {
        return err(Status::NotPermitted);
    }
    flags::check_attributes(&inode)?;
    if q.value.len() > VALUE_MAX {
        return err(Status::OutOfRange);
    }
    let acl = if q.value.is_empty() { None } else { Some(Acl::parse(&q.value)?) };
    if acl.as_ref().is_some_and(|acl| !acl.is_mode()) {
        cx.tx.grows();
    }
    if q.name.as_slice() == DEFAULT {
        if !inode.is_dir() {
            return if acl.is_some() { err(Status::AccessDenied) } else { Ok(()) };
        }
        inode.default_acl = acl.map(|a| a.to_bytes().into());
    } else {
        if let Some(acl) = &acl {
            inode.mode = (inode.mode & !0o777) | acl.mode();
            if !access::is_root(cx.caller) && !access::in_group(cx.caller, inode.gid) {
                inode.mode &= !access::SETGID;
            }
        }
        inode.acl = acl.filter(|a| !a.is_mode()).map(|a| a.to_bytes().into());
    }
    inode.ctime = cx.now;
    cx.put_inode(q.inode, &mut inode)?;
    cx.remember(q, q.inode)
}

/// What the attributes of an inode come to, counted.
async fn counted(cx: &Context<'_>, id: InodeId) -> Result<XattrSum> {
    let (mut begin, end) = keys::xattrs(cx.volume(), id);
    let mut sum = XattrSum::default();
    loop {
        let page = cx.tx.get_range(&begin, &end, PAGE, false).await?;
        for (key, value) in &page.entries {
            sum = sum.and(keys::xattr_name(key), value.len());
        }
        match page.entries.last() {
            Some((last, _)) if page.more => begin = key_after(last),
            _ => return Ok(sum),
        }
    }
}

/// Accounts for a change of one attribute, given the bytes of its values; one that makes an inode too large is refused.
async fn account(
    cx: &Context<'_>,
    (id, inode): (InodeId, &mut Inode),
    name: &[u8],
    (old, new): (Option<usize>, Option<usize>),
) -> Result<()> {
    let before = match inode.xattrs {
        Some(sum) => sum,
        None => counted(cx, id).await?,
    };
    let rest = old.map_or(before, |value| before.without(name, value));
    let after = new.map_or(rest, |value| rest.and(name, value));
    let bounds = [
        (before.count, after.count, COUNT_MAX, "attributes"),
        (before.names, after.names, NAMES_MAX, "bytes of names of attributes"),
        (before.bytes, after.bytes, BYTES_MAX, "bytes of attributes"),
    ];
    // What is too large already may become smaller.
    if let Some((.., most, what)) = bounds.into_iter().find(|(b, a, most, _)| a > most && a > b) {
        return Err(Error::new(Status::NoSpace, format!("an inode has at most {most} {what}")));
    }
    if after.bytes > before.bytes {
        cx.tx.grows();
        if !cx.env.room_for_xattrs() {
            let what = "there is no room for more extended attributes in the metadata";
            return Err(Error::new(Status::NoSpace, what));
        }
    }
    let known = inode.xattrs.map_or(0, |x| i64::from(x.bytes));
    cx.count_xattrs(inode, i64::from(after.bytes) - known)?;
    inode.xattrs = Some(after);
    Ok(())
}

/// The value of an attribute.
pub async fn getxattr(cx: &Context<'_>, req: &OfXattr) -> Result<Vec<u8>> {
    if req.name.as_slice() == LAYOUT_XATTR {
        return layouts::show(&cx.inode(req.inode).await?);
    }
    if req.name.as_slice() == TRASH_XATTR {
        return trash::show(&cx.inode(req.inode).await?);
    }
    if is_acl(&req.name) {
        let inode = cx.inode(req.inode).await?;
        let acl = if req.name.as_slice() == ACCESS { inode.acl } else { inode.default_acl };
        return acl.map(Vec::from).ok_or_else(|| Status::NoAttribute.into());
    }
    let class = class(&req.name)?;
    let inode = cx.inode(req.inode).await?;
    check_read(cx, &inode, &class)?;
    match cx.tx.get(&keys::xattr(cx.volume(), req.inode, &req.name)).await? {
        Some(value) => Ok(value),
        None => err(Status::NoAttribute),
    }
}

/// Sets an attribute.
pub async fn setxattr(cx: &Context<'_>, req: &SetXattr) -> Result<()> {
    if is_acl(&req.name) {
        return set_acl(cx, req).await;
    }
    let own = [(LAYOUT_XATTR, true), (TRASH_XATTR, false)];
    if let Some((_, layout)) = own.iter().find(|(name, _)| req.name.as_slice() == *name) {
        return match (req.value.is_empty(), layout) {
            (true, _) => err(Status::InvalidArgument),
            (false, true) => layouts::set(cx, req).await,
            (false, false) => trash::set(cx, req).await,
        };
    }
    let class = class(&req.name)?;
    if cx.done_before(req).await?.is_some() {
        return Ok(());
    }
    let mut inode = cx.inode(req.inode).await?;
    check_write(cx, &inode, &class)?;
    if req.value.len() > VALUE_MAX {
        return err(Status::OutOfRange);
    }
    if req.flags & !(CREATE | REPLACE) != 0 {
        return err(Status::InvalidArgument);
    }
    let key = keys::xattr(cx.volume(), req.inode, &req.name);
    let old = cx.tx.get(&key).await?.map(|value| value.len());
    if req.flags & CREATE != 0 && old.is_some() {
        return err(Status::Exists);
    }
    if req.flags & REPLACE != 0 && old.is_none() {
        return err(Status::NoAttribute);
    }
    let new = Some(req.value.len());
    account(cx, (req.inode, &mut inode), &req.name, (old, new)).await?;
    cx.tx.put(key, req.value.clone())?;
    inode.ctime = cx.now;
    cx.put_inode(req.inode, &mut inode)?;
    cx.remember(req, req.inode)
}

/// The names that the caller may see. Not those of layout and trash: what is listed is copied by who copies files with all that they have, and taken away where the
/// source has none of that name (`rsync -X`); these are settings of this place, which nobody means then.
pub async fn listxattr(cx: &Context<'_>, req: &OfInode) -> Result<Vec<Name>> {
    let inode = cx.inode(req.inode).await?;
    let (mut begin, end) = keys::xattrs(cx.volume(), req.inode);
    let mut names: Vec<Vec<u8>> = Vec::new();
    loop {
        let page = cx.tx.get_range_snapshot(&begin, &end, PAGE, false).await?;
        names.extend(page.entries.iter().map(|(k, _)| keys::xattr_name(k).to_vec()));
        match page.entries.last() {
            Some((last, _)) if page.more => begin = key_after(last),
            _ => break,
        }
    }
    let shown = |name: &&[u8]| access::is_root(cx.caller) || !name.starts_with(b"trusted.");
    let names = names.iter().map(Vec::as_slice);
    let acls = [(ACCESS, inode.acl.is_some()), (DEFAULT, inode.default_acl.is_some())];
    let acls = acls.iter().filter(|(_, there)| *there).map(|(name, _)| *name);
    Ok(acls.chain(names.filter(shown)).map(|n| n.to_vec().into()).collect())
}

/// Removes an attribute.
pub async fn removexattr(cx: &Context<'_>, req: &OfXattr) -> Result<()> {
    if is_acl(&req.name) || [LAYOUT_XATTR, TRASH_XATTR].contains(&req.name.as_slice()) {
        let OfXattr { caller, request, inode, name } = req.clone();
        let set = SetXattr { caller, request, inode, name, value: Vec::new(), flags: 0 };
        let done = match cx.done_before(req).await {
            // Former releases remembered it as if the attribute had been set.
            Err(e) if e.status == Status::NotPermitted => cx.done_before(&set).await?,
            done => done?,
        };
        if done.is_some() {
            return Ok(());
        }
        // Remembered below, as the request that a retry is compared with.
        let set = SetXattr { request: RequestId(0), ..set };
        match req.name.as_slice() {
            LAYOUT_XATTR => layouts::set(cx, &set).await?,
            TRASH_XATTR => trash::set(cx, &set).await?,
            _ => set_acl(cx, &set).await?,
        }
        return cx.remember(req, req.inode);
    }
    let class = class(&req.name)?;
    if cx.done_before(req).await?.is_some() {
        return Ok(());
    }
    let mut inode = cx.inode(req.inode).await?;
    check_write(cx, &inode, &class)?;
    let key = keys::xattr(cx.volume(), req.inode, &req.name);
    let Some(old) = cx.tx.get(&key).await? else { return err(Status::NoAttribute) };
    account(cx, (req.inode, &mut inode), &req.name, (Some(old.len()), None)).await?;
    cx.tx.clear(key)?;
    inode.ctime = cx.now;
    cx.put_inode(req.inode, &mut inode)?;
    cx.remember(req, req.inode)
}
