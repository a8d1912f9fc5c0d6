//! Users, and what their tokens stand for.
//!
//! Guarantees: as [`super`]. Must never: carry a user's token but to who has just been given it; services ask by its hash.

use crate::wire::meta::is_false;
use crate::{ClientId, UserId};
use minicbor::{Decode, Encode};

/// CHECK_TOKEN: what a service asks when a client says hello.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CheckToken {
    /// BLAKE3 of the token; the token itself is not passed on.
    #[n(0)]
    pub hash: minicbor::bytes::ByteArray<32>,
    /// The client that the caller says it is; 0 for none. Refused if it is another user's, or if its session has ended.
    #[cbor(n(1), default)]
    pub client: ClientId,
}

/// A user of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct UserInfo {
    /// The uid.
    #[n(0)]
    pub user: UserId,
    /// The name.
    #[n(1)]
    pub name: String,
    /// The groups; the first is the primary one.
    #[n(2)]
    pub groups: Vec<u32>,
    /// May act as any user.
    #[n(3)]
    pub root: bool,
    /// May administer the cluster.
    #[n(4)]
    pub admin: bool,
    /// Is a service of the cluster (may heartbeat and forward).
    #[n(5)]
    pub service: bool,
}

/// USER_ADD: adds a user; the answer carries the token, shown once.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct UserAdd {
    /// The user.
    #[n(0)]
    pub user: UserInfo,
    /// Who is there already is left as he is, and the request refused. (Older builds replace him, whether he should be or not.)
    #[cbor(n(1), default, skip_if = "is_false")]
    pub only_new: bool,
    /// The token that he is to have, so that a repetition is known as one: 64 lower-case hexadecimal digits. Without it mgmtd makes one, as older builds always do.
    #[n(2)]
    pub token: Option<String>,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct UserAddReply {
    /// The token.
    #[n(0)]
    pub token: String,
}

/// USER_CHANGE: changes of a user what is named, and nothing else.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct UserChange {
    /// The uid.
    #[n(0)]
    pub user: UserId,
    /// The name.
    #[n(1)]
    pub name: Option<String>,
    /// The groups, all of them; the first is the primary one.
    #[n(2)]
    pub groups: Option<Vec<u32>>,
    /// May act as any user.
    #[n(3)]
    pub root: Option<bool>,
    /// May administer the cluster.
    #[n(4)]
    pub admin: Option<bool>,
    /// A new token in the place of the one that is good until now.
    #[n(5)]
    pub new_token: bool,
    /// The new one, if one is wanted, so that whoever made it has it though the answer is lost: 64 lower-case hexadecimal digits. Without it mgmtd makes
    /// one, as older builds always do.
    #[n(6)]
    pub token: Option<String>,
}

/// Its answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct UserChangeReply {
    /// The user as he is now.
    #[n(0)]
    pub user: UserInfo,
    /// The new token, if one was wanted; shown once.
    #[n(1)]
    pub token: Option<String>,
}

/// USER_REMOVE: the user and his token are no more.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct UserRemove {
    /// The uid.
    #[n(0)]
    pub user: UserId,
}

/// USER_LIST's answer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct UserList {
    /// The users.
    #[n(0)]
    pub users: Vec<UserInfo>,
}
