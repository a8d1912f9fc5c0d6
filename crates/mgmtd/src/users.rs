//! Users, their tokens, and the cluster configuration.

use crate::clients;
use crate::core::Inner;
use crate::keys;
use crate::records::UserRecord;
use crate::store::Writes;
use crate::tuning::check_config;
use glowfs_net::unknown_token;
use glowfs_types::wire::Empty;
use glowfs_types::wire::mgmtd::{
    CheckToken, ClusterConfig, ConfigItem, UserAdd, UserAddReply, UserChange, UserChangeReply,
    UserInfo, UserList, UserRemove,
};
use glowfs_types::{Error, Result, Status, UserId};
use std::fmt::Write;

/// The longest name of a user, in bytes.
const NAME_BYTES_MAX: usize = 256;
/// The most groups of a user.
const GROUPS_MAX: usize = 1024;
/// Digits of a token.
const TOKEN_DIGITS: usize = 64;

/// Refuses a user that cannot be.
fn check_user(info: &UserInfo) -> Result<()> {
    let bad = |what: String| Err(Error::new(Status::InvalidArgument, what));
    if info.name.is_empty() || info.name.len() > NAME_BYTES_MAX || info.groups.len() > GROUPS_MAX {
        return bad(format!(
            "a user has a name of 1 to {NAME_BYTES_MAX} bytes and at most {GROUPS_MAX} groups"
        ));
    }
    if info.name.contains(char::is_control) {
        return bad("a user's name has no control characters".into());
    }
    if info.user.0 >= u64::from(u32::MAX) {
        return bad(format!("uid {}: Linux knows none above {}", info.user, u32::MAX - 1));
    }
    if info.user == UserId(0) && !info.root {
        return bad(
            "user 0 passes every check of permissions: it is root, or take another uid".into()
        );
    }
    Ok(())
}

/// Refuses a token that could be guessed, or is not as mgmtd makes them.
fn check_token_form(token: &str) -> Result<()> {
    let digit = |b: &u8| b.is_ascii_digit() || (b'a'..=b'f').contains(b);
    if token.len() == TOKEN_DIGITS && token.as_bytes().iter().all(digit) {
        return Ok(());
    }
    let e = format!("a token has {TOKEN_DIGITS} lower-case hexadecimal digits, of 256 random bits");
    Err(Error::new(Status::InvalidArgument, e))
}

fn no_user(id: UserId) -> Error {
    Error::new(Status::NotFound, format!("there is no user {id}; see `glowfs admin user-list`"))
}

impl Inner {
    pub fn check_token(&self, question: CheckToken) -> Result<UserInfo> {
        self.with(|s| {
            let id = s.tokens.get(&*question.hash).ok_or_else(unknown_token)?;
            let user = s.users.get(id).ok_or_else(unknown_token)?;
            clients::check_owner(s, question.client, user.info.user)?;
            Ok(user.info.clone())
        })?
    }

    pub async fn user_add(&self, add: UserAdd) -> Result<UserAddReply> {
        let info = add.user;
        check_user(&info)?;
        let given = add.token.is_some();
        let (token, hash) = self.token_of(add.token)?;
        let _held = self.lock.acquire(1).await;
        let old = self.with(|s| s.users.get(&info.user).map(|u| (u.info.clone(), *u.hash)))?;
        self.check_owner(info.user, &hash)?;
        // A repetition: the answer was lost.
        if given && old.as_ref().is_some_and(|(o, h)| *h == hash && *o == info) {
            return Ok(UserAddReply { token });
        }
        if let Some((UserInfo { name, .. }, _)) = old.filter(|_| add.only_new) {
            return Err(Error::new(
                Status::Exists,
                format!("user {} is there already, as «{name}»", info.user),
            ));
        }
        self.put_user(UserRecord { info, hash: hash.into() }).await?;
        Ok(UserAddReply { token })
    }

    pub async fn user_change(&self, change: UserChange) -> Result<UserChangeReply> {
        let _held = self.lock.acquire(1).await;
        let old = self.with(|s| s.users.get(&change.user).cloned())?;
        let UserRecord { info: old, hash } = old.ok_or_else(|| no_user(change.user))?;
        let info = UserInfo {
            name: change.name.unwrap_or(old.name),
            groups: change.groups.unwrap_or(old.groups),
            root: change.root.unwrap_or(old.root),
            admin: change.admin.unwrap_or(old.admin),
            ..old
        };
        check_user(&info)?;
        // One that was given and is in force already is a repetition: the answer was lost.
        let new = match change.new_token {
            true => Some(self.token_of(change.token)?),
            false => None,
        };
        if let Some((_, hash)) = &new {
            self.check_owner(change.user, hash)?;
        }
        let hash = new.as_ref().map_or(hash, |(_, hash)| (*hash).into());
        self.put_user(UserRecord { info: info.clone(), hash }).await?;
        Ok(UserChangeReply { user: info, token: new.map(|(token, _)| token) })
    }

    pub async fn user_remove(&self, remove: UserRemove) -> Result<Empty> {
        let id = remove.user;
        if id == UserId(0) {
            return Err(Error::new(
                Status::InvalidArgument,
                "user 0 is who administers the cluster when nobody else does; give it a new token instead",
            ));
        }
        let _held = self.lock.acquire(1).await;
        let (epoch, hash) = self.with(|s| (s.epoch, s.users.get(&id).map(|u| u.hash)))?;
        let hash = hash.ok_or_else(|| no_user(id))?;
        let mut writes = Writes::new();
        writes.insert(keys::user(id), None);
        writes.insert(keys::token(&hash), None);
        self.write(epoch, None, &writes).await?;
        self.stored(epoch, |s| {
            s.tokens.remove(&*hash);
            s.users.remove(&id);
        })?;
        tracing::info!(user = %id, "user removed");
        Ok(Empty {})
    }

    /// The token that the caller made, or a new one, with its hash.
    fn token_of(&self, given: Option<String>) -> Result<(String, [u8; 32])> {
        let Some(token) = given else { return Ok(self.new_token()) };
        check_token_form(&token)?;
        let hash = *blake3::hash(token.as_bytes()).as_bytes();
        Ok((token, hash))
    }

    /// Refuses a token that stands for another user or for the services.
    fn check_owner(&self, user: UserId, hash: &[u8; 32]) -> Result<()> {
        let owner = self.with(|s| s.tokens.get(hash).copied())?;
        if owner.is_some_and(|o| o != user) || *hash == self.service_hash {
            let e = "this token is somebody else's already";
            return Err(Error::new(Status::InvalidArgument, e));
        }
        Ok(())
    }

    /// A token and its hash.
    fn new_token(&self) -> (String, [u8; 32]) {
        let mut token = String::with_capacity(TOKEN_DIGITS);
        for _ in 0..4 {
            // Writing into a String cannot fail.
            let _ = write!(token, "{:016x}", self.rt.random());
        }
        let hash = *blake3::hash(token.as_bytes()).as_bytes();
        (token, hash)
    }

    /// Stores a user; a token that he had before, and has not any more, is void. The lock is held.
    async fn put_user(&self, record: UserRecord) -> Result<()> {
        let id = record.info.user;
        let (epoch, old) = self.with(|s| (s.epoch, s.users.get(&id).map(|u| u.hash)))?;
        let void = old.filter(|old| *old != record.hash);
        let mut writes = Writes::new();
        if let Some(void) = void {
            writes.insert(keys::token(&void), None);
        }
        writes.insert(keys::user(id), Some(keys::encode(&record)));
        writes.insert(keys::token(&record.hash), Some(keys::encode(&id)));
        self.write(epoch, None, &writes).await?;
        self.stored(epoch, |s| {
            if let Some(void) = void {
                s.tokens.remove(&*void);
            }
            s.tokens.insert(*record.hash, id);
            s.users.insert(id, record);
        })
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
            // What stays as it is may be of a newer release: it is nobody's fault who changes something else.
            let stays = |c: &ConfigItem| c.role == item.role && c.toml == item.toml;
            if !self.with(|s| s.configs.iter().any(stays))? {
                check_config(item.role, &item.toml)?;
            }
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
        self.stored(epoch, |s| {
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
