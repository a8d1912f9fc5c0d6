//! A node as a metadata service: one file that is cut, and another one that is not.

use super::State;
use super::files::{OTHER, OTHER_DATA, layout};
use super::node::Node;
use glowfs_net::{Incoming, Reply};
use glowfs_types::wire::meta::*;
use glowfs_types::wire::method;
use glowfs_types::*;
use zerocopy::IntoBytes;

impl Node {
    /// One file: inode 5, data id 7 + the times that it was cut to nothing.
    pub fn open_reply(state: &State) -> OpenReply {
        let epoch = TruncateEpoch(state.epoch.get());
        Self::reply_of(state, InodeId(5), DataId(state.data_now()), epoch)
    }
    fn reply_of(state: &State, inode: InodeId, data: DataId, epoch: TruncateEpoch) -> OpenReply {
        state.capabilities.set(state.capabilities.get() + 1);
        let capability = Capability::new(
            VolumeId(1),
            inode,
            data,
            SessionId(1),
            epoch,
            // A serial number, so that a renewed one differs.
            state.capabilities.get(),
            capability::rights::READ | capability::rights::WRITE,
        );
        OpenReply {
            attr: Attr {
                inode,
                data,
                layout: Some(layout(data)),
                epoch,
                len: state.len.get(),
                life: state.life.get(),
                ..Attr::default()
            },
            session: Some(SessionId(1)),
            capability: capability.as_bytes().to_vec(),
            capability_ms: state.capability_ms.get(),
            lease_ms: 0,
            content: None,
        }
    }

    pub(super) fn meta(&self, incoming: &Incoming) -> Result<Reply> {
        let open = || Self::open_reply(&self.state);
        let open_one = |inode: InodeId| match inode {
            OTHER => Self::reply_of(&self.state, OTHER, OTHER_DATA, TruncateEpoch(0)),
            _ => open(),
        };
        let attr = || AttrReply {
            attr: open().attr,
            lease_ms: self.state.lease_ms.get(),
            open: None,
            dir: None,
            name_lease_ms: None,
        };
        if matches!(incoming.method(), method::OPEN | method::MAKE)
            && !self.state.sessions.borrow().contains(&incoming.conn().peer().client)
        {
            self.state.opened_unknown.set(self.state.opened_unknown.get() + 1);
        }
        match incoming.method() {
            method::MAKE => Ok(Reply::msg(&AttrReply { open: Some(open()), ..attr() })),
            method::OPEN => {
                let q: Open = incoming.msg()?;
                self.state.requests.borrow_mut().push(q.request);
                Ok(Reply::msg(&open_one(q.inode)))
            }
            method::RENEW => Ok(Reply::msg(&open_one(incoming.msg::<Renew>()?.inode))),
            method::GETATTR => Ok(Reply::msg(&attr())),
            method::SETATTR => {
                assert_eq!(incoming.msg::<SetAttr>()?.len, Some(0), "the only one there is");
                self.state.epoch.set(self.state.epoch.get() + 1);
                Ok(Reply::msg(&attr()))
            }
            method::UNLINK => {
                let q: Unlink = incoming.msg()?;
                assert_ne!(q.caller.client, ClientId(0));
                self.state.requests.borrow_mut().push(q.request);
                Ok(Reply::msg(&UnlinkReply::default()))
            }
            method::LOOKUP => Err(Error::new(Status::NotFound, "no such entry")),
            m => Err(Error::new(Status::UnknownMethod, format!("{m}"))),
        }
    }
}
