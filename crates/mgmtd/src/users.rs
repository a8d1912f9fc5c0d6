//! Users, their tokens, and the cluster configuration.

use crate::clients;
use crate::core::Inner;
use crate::keys;
use crate::records::UserRecord;
use crate::store::Writes;
use crate::tuning::check_config;
use glowfs_types::wire::mgmtd::{
    CheckToken, ClusterConfig, UserAdd, UserAddReply, UserInfo, UserList,
};
use glowfs_types::{Error, Result, Status, UserId};
use std::fmt::Write;

/// The longest name of a user, in bytes.
const NAME_BYTES_MAX: usize = 256;
/// The most groups of a user.
const GROUPS_MAX: usize = 1024;

impl Inner {
    pub fn check_token(&self, question: CheckToken) -> Result<UserInfo> {
        let unknown = || Error::new(Status::BadToken, "the token is not known to this cluster");
        self.with(|s| {
            let id = s.tokens.get(&*question.hash).ok_or_else(unknown)?;
            let user = s.users.get(id).ok_or_else(unknown)?;
            clients::check_owner(s, question.client, user.info.user)?;
            Ok(user.info.clone())
        })?
    }

    pub async fn user_add(&self, add: UserAdd) -> Result<UserAddReply> {
        let info = add.user;
        if info.name.is_empty()
            || info.name.len() > NAME_BYTES_MAX
            || info.groups.len() > GROUPS_MAX
        {
            return Err(Error::new(
                Status::InvalidArgument,
                format!(
                    "a user has a name of 1 to {NAME_BYTES_MAX} bytes and at most {GROUPS_MAX} groups"
                ),
            ));
        }
        if info.user == UserId(0) && !info.root {
            return Err(Error::new(
                Status::InvalidArgument,
                "user 0 passes every check of permissions: add it as root, or take another uid",
            ));
        }
        let mut token = String::with_capacity(64);
        for _ in 0..4 {
            // Writing into a String cannot fail.
            let _ = write!(token, "{:016x}", self.rt.random());
        }
        let hash = *blake3::hash(token.as_bytes()).as_bytes();
        let record = UserRecord { info, hash: hash.into() };
        let id = record.info.user;
        let _held = self.lock.acquire(1).await;
        let (epoch, old) = self.with(|s| (s.epoch, s.users.get(&id).map(|u| *u.hash)))?;
        let mut writes = Writes::new();
        if let Some(old) = old {
            writes.insert(keys::token(&old), None);
        }
        writes.insert(keys::user(id), Some(keys::encode(&record)));
        writes.insert(keys::token(&hash), Some(keys::encode(&id)));
        self.write(epoch, None, &writes).await?;
        self.with(|s| {
            if let Some(old) = old {
                s.tokens.remove(&old);
            }
            s.tokens.insert(hash, id);
            s.users.insert(id, record);
        })?;
        Ok(UserAddReply { token })
    }

    pub fn user_list(&self) -> Result<UserList> {
        self.with(|s| UserList { users: s.users.values().map(|u| u.info.clone()).collect() })
    }

    pub fn get_config(&self) -> Result<ClusterConfig> {
        self.with(|s| ClusterConfig { items: s.configs.clone(), overrides: s.overrides.clone() })
    }

    /// Replaces the items and overrides that are named. An item with the version that is in force replaces it and gets the next
    /// version; any other version is refused, so that two administrators do not overwrite each other.
    pub async fn set_config(&self, new: ClusterConfig) -> Result<ClusterConfig> {
        for item in &new.items {
            check_config(item.role, &item.toml)?;
        }
        let _held = self.lock.acquire(1).await;
        let (epoch, items) = self.with(|s| (s.epoch, s.next_configs(&new)))?;
        let items = items?;
        let mut writes = Writes::new();
        for item in &items {
            writes.insert(keys::config(item.role), Some(keys::encode(item)));
        }
        for (node, text) in &new.overrides {
            let value = (!text.is_empty()).then(|| keys::encode(&(*node, text.clone())));
            writes.insert(keys::config_override(*node), value);
        }
        self.write(epoch, None, &writes).await?;
        self.with(|s| {
            for item in items {
                s.configs.retain(|c| c.role != item.role);
                s.configs.push(item);
            }
            s.configs.sort_by_key(|c| c.role);
            for (node, text) in new.overrides {
                if text.is_empty() {
                    s.overrides.remove(&node);
                } else {
                    s.overrides.insert(node, text);
                }
            }
        })?;
        self.get_config()
    }
}
