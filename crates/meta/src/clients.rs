//! The clients that mgmtd takes for alive.

use crate::state::Service;
use glowfs_rt::Duration;
use glowfs_types::wire::method;
use glowfs_types::wire::mgmtd::{ClientList, ListClients};
use glowfs_types::{ClientId, Result, UserId};
use std::collections::BTreeMap;

/// How long mgmtd may take to list a page of clients.
const LIST_DEADLINE: Duration = Duration::from_secs(5);

/// All clients that were alive when it was called and still are, with their users. It may be that one which came meanwhile is not
/// there, as if all had been asked for at once.
pub async fn live(s: &Service) -> Result<BTreeMap<ClientId, UserId>> {
    let mut all = BTreeMap::new();
    let mut ask = Some(ListClients { pages: true, ..ListClients::default() });
    while let Some(question) = ask {
        let page: ClientList =
            s.agent.link().call(method::LIST_CLIENTS, &question, LIST_DEADLINE).await?;
        ask = page.next(question)?;
        all.extend(page.clients.into_iter().map(|c| (c.client, c.user)));
    }
    Ok(all)
}
