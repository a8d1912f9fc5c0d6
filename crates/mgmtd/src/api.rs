//! Which method does what, and who may call it.

use crate::clients;
use crate::core::Inner;
use glowfs_net::{Handler, Identity, Incoming, Reply};
use glowfs_types::routing::Role;
use glowfs_types::wire::hello::ServiceStatus;
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::PrimaryInfo;
use glowfs_types::{Error, Result, Status};
use std::rc::Rc;

/// The serving side of an instance.
pub struct Api(pub Rc<Inner>);

impl Handler for Api {
    fn handle(self: Rc<Self>, incoming: Incoming) {
        let inner = self.0.clone();
        let rt = inner.rt.clone();
        let place = match incoming.method() {
            // Before it is begun: what waits for its turn costs memory.
            method::GET_ROUTING => inner.turns.place(&incoming.conn().peer().identity),
            _ => Ok(None),
        };
        let place = match place {
            Ok(place) => place,
            Err(e) => return incoming.reply(Err(e)),
        };
        rt.spawn_detached(async move {
            let _place = place;
            let answer = inner.dispatch(&incoming).await;
            incoming.reply(answer);
        });
    }
}

fn reply<R: minicbor::Encode<()>>(message: R) -> Result<Reply> {
    Ok(Reply::msg(&message))
}

/// Who may call a method.
fn require(ok: bool, who: &str, method: u16) -> Result<()> {
    if ok {
        return Ok(());
    }
    Err(Error::new(
        Status::AccessDenied,
        format!("{} is for {who} only; use a token of one", method::name(method)),
    ))
}

impl Inner {
    async fn dispatch(self: &Rc<Self>, incoming: &Incoming) -> Result<Reply> {
        let who: Identity = incoming.conn().peer().identity;
        let m = incoming.method();
        let service = || require(who.service, "services of the cluster", m);
        let admin = || require(who.admin || who.root, "administrators", m);
        match m {
            method::ECHO => Ok(Reply::body(incoming.body().to_vec())),
            method::SERVICE_STATUS => reply(self.status()),
            method::GET_PRIMARY => reply(self.primary_info()),
            method::HEARTBEAT => {
                service()?;
                reply(self.heartbeat(incoming.msg()?).await?)
            }
            method::GET_ROUTING => self.get_routing(incoming).await,
            method::CLIENT_SESSION => reply(self.client_session(who, incoming.msg()?).await?),
            method::CLIENT_GOODBYE => reply(self.client_goodbye(who, incoming.msg()?).await?),
            method::LIST_CLIENTS => {
                require(who.service || who.admin || who.root, "services and administrators", m)?;
                let question = incoming.msg()?;
                reply(self.with(|s| clients::list(s, &question))?)
            }
            method::REGISTER_STORES => {
                service()?;
                let peer = incoming.conn().peer();
                let from = (peer.role, peer.host);
                reply(self.register_stores(from, incoming.msg()?).await?)
            }
            method::REPORT_SLOW => {
                service()?;
                reply(self.report_slow(incoming.msg()?)?)
            }
            method::CREATE_TABLE => {
                admin()?;
                reply(self.create_table(incoming.msg()?).await?)
            }
            method::GROW_TABLE => {
                admin()?;
                reply(self.grow_table(incoming.msg()?).await?)
            }
            method::MOVE_AWAY => {
                admin()?;
                reply(self.move_away(incoming.msg()?).await?)
            }
            method::REMOVE_NODE => {
                admin()?;
                reply(self.remove_node(incoming.msg()?).await?)
            }
            method::FORCE_CHAIN => {
                admin()?;
                reply(self.force_chain(incoming.msg()?).await?)
            }
            method::CHECK_TOKEN => {
                service()?;
                reply(self.check_token(incoming.msg()?)?)
            }
            method::USER_ADD => {
                admin()?;
                reply(self.user_add(incoming.msg()?).await?)
            }
            method::USER_CHANGE => {
                admin()?;
                reply(self.user_change(incoming.msg()?).await?)
            }
            method::USER_REMOVE => {
                admin()?;
                reply(self.user_remove(incoming.msg()?).await?)
            }
            method::USER_LIST => {
                admin()?;
                reply(self.user_list()?)
            }
            method::GET_CONFIG => {
                require(who.service || who.admin || who.root, "services and administrators", m)?;
                reply(self.get_config()?)
            }
            method::SET_CONFIG => {
                admin()?;
                reply(self.set_config(incoming.msg()?).await?)
            }
            _ => Err(Error::new(
                Status::UnknownMethod,
                format!("mgmtd does not serve method {m} ({})", method::name(m)),
            )),
        }
    }

    fn primary_info(&self) -> PrimaryInfo {
        if self.primary().is_ok() {
            return PrimaryInfo {
                cluster: self.cluster,
                node: Some(self.config.node()),
                addresses: self.addresses.clone(),
                silent_ms: 0,
            };
        }
        let election = self.election.borrow();
        let other = election.elsewhere();
        PrimaryInfo {
            cluster: self.cluster,
            node: other.map(|r| r.holder),
            addresses: other.map(|r| r.addresses.clone()).unwrap_or_default(),
            silent_ms: election.silent_ms(self.now_ms()),
        }
    }

    /// What this process is and how it is.
    pub fn status(&self) -> ServiceStatus {
        let primary = self.primary().is_ok();
        let twin = self.twin();
        let detail = match (&*self.fatal.borrow(), primary, self.engine_ok.get()) {
            (Some(e), _, _) => e.message.clone(),
            (None, true, _) => "primary".into(),
            (None, false, true) => twin.clone().unwrap_or_else(|| "standby".into()),
            (None, false, false) => match &*self.engine_problem.borrow() {
                Some(e) => format!("waits for the metadata engine: {e}"),
                None => "waits for the metadata engine".into(),
            },
        };
        let stands = primary || (self.engine_ok.get() && twin.is_none());
        ServiceStatus {
            role: Some(Role::Mgmtd),
            node: self.config.node(),
            pid: glowfs_rt::process::pid(),
            release: glowfs_telemetry::RELEASE.to_owned(),
            healthy: self.fatal.borrow().is_none() && stands,
            detail,
            uptime_ns: u64::try_from(self.rt.now().since(self.started).as_nanos())
                .unwrap_or(u64::MAX),
        }
    }
}
