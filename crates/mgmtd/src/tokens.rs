//! What a caller's token stands for, from this instance's own knowledge.

use crate::core::Inner;
use glowfs_net::{Authenticator, Identity, unknown_token};
use glowfs_rt::BoxFuture;
use glowfs_types::wire::hello::Hello;
use glowfs_types::wire::mgmtd::UserInfo;
use glowfs_types::{ClusterId, Error, Result, Status};
use std::cell::OnceCell;
use std::rc::Rc;

/// Answers hellos. The instance behind it exists only after the server started, so it is filled in then.
#[derive(Default)]
pub struct Tokens(pub OnceCell<Rc<Inner>>);

fn identity(u: &UserInfo) -> Identity {
    Identity { user: u.user, root: u.root, admin: u.admin, service: u.service }
}

impl Authenticator for Tokens {
    fn check(&self, hello: &Hello) -> BoxFuture<Result<Identity>> {
        let inner = self.0.get().cloned();
        let (cluster, hash) = (hello.cluster, blake3::hash(hello.token.as_bytes()));
        Box::pin(async move {
            let inner = inner.ok_or_else(|| Error::from(Status::ShuttingDown))?;
            if cluster != ClusterId(0) && cluster != inner.cluster {
                return Err(Error::new(
                    Status::WrongCluster,
                    format!("this is cluster {}, the caller wants {cluster}", inner.cluster),
                ));
            }
            // Comparing blake3::Hash takes the same time wherever they differ.
            if hash == inner.service_hash {
                return Ok(Identity::SERVICE);
            }
            let known = inner.with(|s| {
                let id = s.tokens.get(hash.as_bytes())?;
                s.users.get(id).map(|u| identity(&u.info))
            });
            let found = match known {
                Ok(found) => found,
                // A standby looks it up in the engine.
                Err(_) => {
                    inner.store.user_of_token(hash.as_bytes()).await?.map(|u| identity(&u.info))
                }
            };
            found.ok_or_else(unknown_token)
        })
    }
}
