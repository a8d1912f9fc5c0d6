//! Which call goes where.

use crate::node::Node;
use glowfs_net::{Handler, Incoming, Reply};
use glowfs_types::wire::method;
use glowfs_types::{Error, Status};
use std::rc::Rc;

/// The handler of a node.
pub(crate) struct Service(pub Rc<Node>);

/// Spawns an async call and answers with its message.
macro_rules! answer {
    ($node:expr, $incoming:expr, $call:ident) => {{
        let (node, incoming) = ($node, $incoming);
        node.clone().rt.spawn_detached(async move {
            let result = node.$call(&incoming).await;
            incoming.reply_msg(result);
        });
    }};
}

impl Handler for Service {
    fn handle(self: Rc<Self>, mut incoming: Incoming) {
        let node = self.0.clone();
        match incoming.method() {
            method::READ => node.read(incoming),
            method::WRITE | method::TRIM => node.update(incoming, false),
            method::FORWARD => node.update(incoming, true),
            method::COPY_CHUNK => node.copy(incoming),
            method::FLUSH => answer!(node, incoming, flush),
            method::FLUSH_TARGETS => answer!(node, incoming, flush_targets),
            method::REMOVE_DATA => answer!(node, incoming, remove_data),
            method::SYNC_DONE => answer!(node, incoming, sync_done),
            method::SYNC_LIST => answer!(node, incoming, sync_list),
            method::QUERY_EXTENT => answer!(node, incoming, query_extent),
            method::QUERY_CHUNK => {
                let result = node.query_chunk(&incoming);
                incoming.reply_msg(result);
            }
            method::LIST_CHUNKS => answer!(node, incoming, list_chunks),
            method::LIST_DATA => answer!(node, incoming, list_data),
            method::TAKE_DISK => answer!(node, incoming, take_disk),
            method::DAMAGED => answer!(node, incoming, damaged),
            method::LIST_EXTENTS => answer!(node, incoming, list_extents),
            method::FETCH_CHUNK => {
                node.clone().rt.spawn_detached(async move {
                    let result = node.fetch_chunk(&mut incoming).await;
                    incoming.reply(result);
                });
            }
            method::VOUCH => answer!(node, incoming, vouch),
            method::SCRUB => {
                let result = node.scrub(&incoming);
                incoming.reply_msg(result);
            }
            method::STORAGE_INFO => {
                let result = node.storage_info(&incoming);
                incoming.reply_msg(result);
            }
            method::SERVICE_STATUS => incoming.reply_msg(Ok(node.status())),
            method::ECHO => {
                let reply = echo(&mut incoming);
                incoming.reply(reply);
            }
            other => incoming.reply(Err(Error::new(
                Status::UnknownMethod,
                format!("storage does not serve {} ({other})", method::name(other)),
            ))),
        }
    }
}

fn echo(incoming: &mut Incoming) -> glowfs_types::Result<Reply> {
    let body = incoming.body().to_vec();
    let sent = incoming.take_bulk()?;
    let mut bulk = None;
    if incoming.reply_room() > 0 && !sent.is_empty() {
        let mut room = incoming.reply_buffer()?;
        let n = room.len().min(sent.len());
        room[..n].copy_from_slice(&sent[..n]);
        room.truncate(n);
        bulk = Some(room);
    }
    Ok(Reply { body, bulk })
}
