//! etcd's v3 requests and answers in JSON, as its gateway speaks them (package `etcdserverpb`; numbers of 64 bits are strings).

use super::base64;
use crate::{Key, Value, Version};
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};
use std::fmt::{self, Write as _};

/// The path of a range read.
pub const RANGE: &str = "/v3/kv/range";
/// The path of a transaction.
pub const TXN: &str = "/v3/kv/txn";

/// The path by which old versions go.
pub const COMPACTION: &str = "/v3/kv/compaction";
/// The path to what a member says of itself.
pub const STATUS: &str = "/v3/maintenance/status";

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Compare {
    /// Every key that is there in `[key, end)` (without `end`: that key, if it is there) was last changed before `bound`.
    ChangedBefore {
        /// First key.
        key: Key,
        /// The key after the last.
        end: Option<Key>,
        /// The version.
        bound: Version,
    },
    /// The key is there.
    Exists(Key),
    /// The key was last changed at exactly this version; 0: it is not there.
    ChangedAt(Key, Version),
}

/// A step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a key.
    Put(Key, Value),
    /// Removes a key, or a range.
    Delete(Key, Option<Key>),
    /// Reads.
    Range(Range),
    /// A transaction inside.
    Txn(Txn),
}

/// A read.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Range {
    /// The key, or the first of a range.
    pub key: Key,
    /// The key after the last; empty: one key.
    pub end: Key,
    /// As of this version; 0: the newest.
    pub version: Version,
    /// At most so many; 0: all.
    pub limit: u32,
    /// From the end.
    pub reverse: bool,
    /// Whatever the asked member has, without asking the others.
    pub local: bool,
    /// Without values.
    pub keys_only: bool,
}

/// A transaction.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Txn {
    /// All must hold.
    pub compares: Vec<Compare>,
    /// Then this is done,
    pub then: Vec<Op>,
    /// else this.
    pub or_else: Vec<Op>,
}

fn bytes(out: &mut String, name: &str, value: &[u8]) {
    // Writing to a string does not fail.
    let _ = write!(out, "\"{name}\":\"");
    base64::encode(value, out);
    out.push('"');
}

fn list<T>(out: &mut String, items: &[T], each: impl Fn(&T, &mut String)) {
    out.push('[');
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        each(item, out);
    }
    out.push(']');
}

impl Compare {
    /// What it looks at: compares of one place are one, when commits go together.
    pub fn place(&self) -> (&Key, Option<&Key>, bool) {
        match self {
            Self::ChangedBefore { key, end, .. } => (key, end.as_ref(), false),
            Self::ChangedAt(key, _) => (key, None, false),
            Self::Exists(key) => (key, None, true),
        }
    }
    fn json(&self, out: &mut String) {
        out.push('{');
        let _ = match self {
            Self::ChangedBefore { key, end, bound } => {
                bytes(out, "key", key);
                if let Some(end) = end {
                    out.push(',');
                    bytes(out, "range_end", end);
                }
                write!(
                    out,
                    ",\"target\":\"MOD\",\"result\":\"LESS\",\"mod_revision\":\"{bound}\"}}"
                )
            }
            Self::Exists(key) => {
                bytes(out, "key", key);
                write!(
                    out,
                    ",\"target\":\"CREATE\",\"result\":\"GREATER\",\"create_revision\":\"0\"}}"
                )
            }
            Self::ChangedAt(key, version) => {
                bytes(out, "key", key);
                write!(
                    out,
                    ",\"target\":\"MOD\",\"result\":\"EQUAL\",\"mod_revision\":\"{version}\"}}"
                )
            }
        };
    }
}

impl Range {
    /// The request's text.
    pub fn json(&self, out: &mut String) {
        out.push('{');
        bytes(out, "key", &self.key);
        if !self.end.is_empty() {
            out.push(',');
            bytes(out, "range_end", &self.end);
        }
        if self.version > 0 {
            let _ = write!(out, ",\"revision\":\"{}\"", self.version);
        }
        if self.limit > 0 {
            let _ = write!(out, ",\"limit\":\"{}\"", self.limit);
        }
        if self.reverse {
            out.push_str(",\"sort_order\":\"DESCEND\",\"sort_target\":\"KEY\"");
        }
        if self.local {
            out.push_str(",\"serializable\":true");
        }
        if self.keys_only {
            out.push_str(",\"keys_only\":true");
        }
        out.push('}');
    }
}

impl Op {
    fn json(&self, out: &mut String) {
        match self {
            Self::Put(key, value) => {
                out.push_str("{\"request_put\":");
                put(key, value, out);
            }
            Self::Delete(key, end) => {
                out.push_str("{\"request_delete_range\":{");
                bytes(out, "key", key);
                if let Some(end) = end {
                    out.push(',');
                    bytes(out, "range_end", end);
                }
                out.push('}');
            }
            Self::Range(range) => {
                out.push_str("{\"request_range\":");
                range.json(out);
            }
            Self::Txn(txn) => {
                out.push_str("{\"request_txn\":");
                txn.json(out);
            }
        }
        out.push('}');
    }
}

fn put(key: &[u8], value: &[u8], out: &mut String) {
    out.push('{');
    bytes(out, "key", key);
    out.push(',');
    bytes(out, "value", value);
    out.push('}');
}

impl Txn {
    /// The request's text.
    pub fn json(&self, out: &mut String) {
        out.push_str("{\"compare\":");
        list(out, &self.compares, Compare::json);
        out.push_str(",\"success\":");
        list(out, &self.then, Op::json);
        out.push_str(",\"failure\":");
        list(out, &self.or_else, Op::json);
        out.push('}');
    }
}

/// A number of 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Num(pub u64);

impl<'de> Deserialize<'de> for Num {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = Num;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }
            fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<Num, E> {
                v.parse().map(Num).map_err(|_| E::custom("not a number"))
            }
            fn visit_u64<E>(self, v: u64) -> Result<Num, E> {
                Ok(Num(v))
            }
        }
        d.deserialize_any(V)
    }
}

/// Bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("base 64")
            }
            fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<Bytes, E> {
                base64::decode(v).map(Bytes).ok_or_else(|| E::custom("not base 64"))
            }
        }
        d.deserialize_str(V)
    }
}

/// Beside every answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Header {
    /// The newest version.
    pub revision: Num,
}

/// A key with its value.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Kv {
    /// The key.
    pub key: Bytes,
    /// Its value.
    pub value: Bytes,
    /// The version that changed it last.
    pub mod_revision: Num,
}

/// The answer to a read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RangeAnswer {
    /// See [`Header`].
    pub header: Header,
    /// What was found.
    pub kvs: Vec<Kv>,
    /// Whether there is more.
    pub more: bool,
}

/// The answer to a step of a transaction.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct OpAnswer {
    /// Of a read.
    pub response_range: Option<RangeAnswer>,
    /// Of a transaction inside.
    pub response_txn: Option<TxnAnswer>,
}

/// The answer to a transaction.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TxnAnswer {
    /// See [`Header`].
    pub header: Header,
    /// Whether all compares held.
    pub succeeded: bool,
    /// The answers to the steps that were done.
    pub responses: Vec<OpAnswer>,
}

/// What a member says of itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StatusAnswer {
    /// Bytes of the database's file.
    #[serde(rename = "dbSize")]
    pub size: Num,
    /// Bytes of it that are in use.
    #[serde(rename = "dbSizeInUse")]
    pub used: Num,
}

/// An error.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Refusal {
    /// What went wrong, as members up to 3.5 say it.
    error: String,
    /// The same, as all say it.
    message: String,
    /// A code of gRPC.
    pub code: u32,
}

/// Reads an answer.
pub fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|e| format!("an answer that is not etcd's: {e}"))
}

impl Refusal {
    /// What went wrong.
    pub fn said(&self) -> &str {
        if self.error.is_empty() { &self.message } else { &self.error }
    }
    /// With a code of gRPC.
    #[cfg(test)]
    pub fn new(code: u32, said: &str) -> Self {
        Self { error: String::new(), message: said.to_owned(), code }
    }
}

/// Reads an error.
pub fn refusal(body: &[u8]) -> Option<Refusal> {
    serde_json::from_slice::<Refusal>(body).ok().filter(|r| !r.said().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_as_etcd_reads_them() {
        let read = Range {
            key: b"x".to_vec(),
            end: b"z".to_vec(),
            version: 5,
            limit: 7,
            reverse: true,
            local: true,
            keys_only: true,
        };
        let compares = vec![
            Compare::ChangedBefore { key: b"a".to_vec(), end: Some(b"b".to_vec()), bound: 9 },
            Compare::Exists(b"a".to_vec()),
            Compare::ChangedAt(b"a".to_vec(), 3),
        ];
        let then = vec![
            Op::Put(b"k".to_vec(), b"v".to_vec()),
            Op::Delete(b"k".to_vec(), None),
            Op::Delete(b"k".to_vec(), Some(b"l".to_vec())),
        ];
        let or_else = vec![Op::Range(read), Op::Txn(Txn::default())];
        let mut text = String::new();
        Txn { compares, then, or_else }.json(&mut text);
        let want = concat!(
            r#"{"compare":[{"key":"YQ==","range_end":"Yg==","target":"MOD","result":"LESS","mod_revision":"9"},"#,
            r#"{"key":"YQ==","target":"CREATE","result":"GREATER","create_revision":"0"},"#,
            r#"{"key":"YQ==","target":"MOD","result":"EQUAL","mod_revision":"3"}],"#,
            r#""success":[{"request_put":{"key":"aw==","value":"dg=="}},"#,
            r#"{"request_delete_range":{"key":"aw=="}},"#,
            r#"{"request_delete_range":{"key":"aw==","range_end":"bA=="}}],"#,
            r#""failure":[{"request_range":{"key":"eA==","range_end":"eg==","revision":"5","limit":"7","#,
            r#""sort_order":"DESCEND","sort_target":"KEY","serializable":true,"keys_only":true}},"#,
            r#"{"request_txn":{"compare":[],"success":[],"failure":[]}}]}"#
        );
        assert_eq!(text, want);
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON");
    }

    #[test]
    fn answers_as_etcd_writes_them() {
        let text = br#"{"header":{"cluster_id":"1","revision":"12"},"succeeded":true,"responses":[
            {"response_put":{"header":{"revision":"12"}}},
            {"response_range":{"header":{},"kvs":[{"key":"eA==","mod_revision":"4","version":"1"}],"more":true}},
            {"response_txn":{"header":{},"responses":[]}}]}"#;
        let a: TxnAnswer = parse(text).expect("valid");
        assert!(a.succeeded && a.header.revision == Num(12));
        let range = a.responses[1].response_range.as_ref().expect("range");
        assert_eq!(range.kvs[0].key, Bytes(b"x".to_vec()));
        assert_eq!(range.kvs[0].mod_revision, Num(4));
        assert!(range.more && range.kvs[0].value.0.is_empty());
        assert!(!a.responses[2].response_txn.as_ref().expect("txn").succeeded);
        let text = br#"{"error":"etcdserver: no leader","message":"x","code":14}"#;
        assert_eq!(refusal(text).expect("refusal").code, 14);
        // 3.6 and newer.
        let text = br#"{"code":3,"message":"etcdserver: too many operations in txn request"}"#;
        let r = refusal(text).expect("refusal");
        assert_eq!((r.code, r.said()), (3, "etcdserver: too many operations in txn request"));
        assert!(refusal(br#"{"code":3}"#).is_none() && refusal(b"<html>").is_none());
    }

    proptest! {
        #[test]
        fn damaged_answers_are_survived(at in 0usize..500, byte: u8) {
            let mut text =
                br#"{"header":{"revision":"12"},"succeeded":true,"responses":[{"response_range":{"kvs":[{"key":"eA=="}]}}]}"#.to_vec();
            let at = at % text.len();
            text[at] = byte;
            // Damage within a word may make another answer of it.
            let answer = parse::<TxnAnswer>(&text);
            let undamaged = byte == b'{';
            prop_assert!(answer.is_err() || at > 0 || undamaged);
        }
    }
}
