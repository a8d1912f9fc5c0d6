//! One node of the cluster, of any role: takes requests, and does with them what its faults say.

use super::State;
use glowfs_net::{Handler, Incoming, Reply};
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::flush::*;
use glowfs_types::wire::{Empty, data::Flush, method};
use glowfs_types::*;
use std::collections::VecDeque;
use std::rc::Rc;

/// What a node does with a request of a method.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Refuses it.
    Refuse(Status),
    /// Does it, but breaks the connection instead of answering.
    DoAndCut,
    /// Never answers.
    Silent,
    /// Does it after a while.
    Late(Duration),
    /// Does it, and answers after a while.
    AnswerLate(Duration),
    /// READ: flips a bit behind the checksum.
    Flip,
}

pub(super) struct Node {
    pub rt: Rt,
    pub(super) id: NodeId,
    pub state: Rc<State>,
}

impl Handler for Node {
    fn handle(self: Rc<Self>, incoming: Incoming) {
        let rt = self.rt.clone();
        rt.spawn_detached(async move { self.run(incoming).await });
    }
    fn connected(&self, conn: &Rc<glowfs_net::Conn>) {
        if (10..20).contains(&self.id.0) {
            self.state.meta_conns.borrow_mut().push(conn.clone());
        }
    }
}

impl Node {
    async fn run(self: Rc<Self>, mut incoming: Incoming) {
        let key = (self.id, incoming.method());
        *self.state.calls.borrow_mut().entry(key).or_default() += 1;
        let fault = self.state.faults.borrow_mut().get_mut(&key).and_then(VecDeque::pop_front);
        match fault {
            Some(Fault::Refuse(status)) => return incoming.reply(Err(Error::new(status, "fault"))),
            Some(Fault::Silent) => {
                self.rt.sleep(Duration::from_secs(30)).await;
                return;
            }
            Some(Fault::Late(d)) => self.rt.sleep(d).await,
            _ => {}
        }
        let result = self.serve(&mut incoming, matches!(fault, Some(Fault::Flip))).await;
        if matches!(fault, Some(Fault::DoAndCut)) {
            incoming.conn().close();
            return;
        }
        if let Some(Fault::AnswerLate(d)) = fault {
            self.rt.sleep(d).await;
        }
        incoming.reply(result);
    }

    async fn serve(&self, incoming: &mut Incoming, flip: bool) -> Result<Reply> {
        match incoming.method() {
            method::READ => self.read(incoming, flip),
            method::WRITE => self.write(incoming),
            method::COPY_CHUNK => self.copy(incoming),
            method::LIST_EXTENTS if flip => self.list_in_circles(incoming),
            method::LIST_EXTENTS => self.list(incoming),
            method::FLUSH => {
                let _: Flush = incoming.msg()?;
                Ok(Reply::msg(&Empty {}))
            }
            method::FLUSH_TARGETS => {
                let asked: FlushTargets = incoming.msg()?;
                self.state.flushed.borrow_mut().push(asked.files.clone());
                let info = self.state.routing.borrow();
                let answer = |t: &FlushTarget| {
                    let chain = info.chains.get(&t.chain).filter(|c| c.version == t.chain_version);
                    let here = chain.and_then(|c| c.serving().find(|m| m.target == t.target));
                    match here.is_some_and(|m| m.node == self.id) {
                        true => Status::Ok.code(),
                        false => Status::WrongChainVersion.code(),
                    }
                };
                let statuses = asked.targets.iter().map(answer).collect();
                Ok(Reply::msg(&FlushTargetsReply { statuses }))
            }
            method::QUERY_EXTENT => self.extent(incoming),
            method::REMOVE_DATA => self.remove(incoming),
            100..200 => self.mgmtd(incoming).await,
            300..400 => self.meta(incoming),
            m => Err(Error::new(Status::UnknownMethod, format!("{m}"))),
        }
    }
}
