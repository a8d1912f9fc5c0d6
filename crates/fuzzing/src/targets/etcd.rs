//! Answers of etcd, for [`super::net_client`]: a gateway that says what it likes. A byte of flags: bit 0 of a file system that is new to it (nothing is asked before the commit). Then answers,
//! each with two bytes before it, little-endian: bit 15 an error, bit 14 the bytes are as they are, without a head of HTTP; the others the length of the body.

use crate::stream::Script;
use crate::world;
use glowfs_kv::etcd::TXN_OPS_DEFAULT;
use glowfs_kv::{Engine, Etcd, EtcdConfig, VERSIONS_KEPT};
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::kv::{Commit, Mutation};
use glowfs_types::{ClusterId, Result};
use std::rc::Rc;

const ERROR: u16 = 1 << 15;
const RAW: u16 = 1 << 14;

fn answers(mut rest: &[u8]) -> Rc<Script> {
    let mut parts = Vec::new();
    while let Some((head, behind)) = rest.split_first_chunk::<2>() {
        let head = u16::from_le_bytes(*head);
        let len = usize::from(head & !(ERROR | RAW)).min(behind.len());
        let (body, behind) = behind.split_at(len);
        let line = if head & ERROR != 0 { "400 Bad Request" } else { "200 OK" };
        let made = format!("HTTP/1.1 {line}\r\nContent-Length: {len}\r\n\r\n");
        parts.push(if head & RAW != 0 { body.to_vec() } else { [made.as_bytes(), body].concat() });
        rest = behind;
    }
    Script::of_messages(parts)
}

/// Everything that an engine is asked, until the first error.
async fn ask(rt: &Rt, new: bool) -> Result<()> {
    let config = EtcdConfig {
        endpoints: vec!["http://127.0.0.1:1".to_owned()],
        cluster: ClusterId(7),
        name: "fuzz".to_owned(),
        txn_ops_max: TXN_OPS_DEFAULT,
        versions_kept: VERSIONS_KEPT,
    };
    let etcd = Etcd::new(rt, &config)?;
    let mut read_version = 1;
    if !new {
        read_version = etcd.begin().await?;
        etcd.get(read_version, vec![b"a".to_vec(), b"b".to_vec()]).await?;
        etcd.get_range(read_version, b"a".to_vec(), b"c".to_vec(), 10, false).await?;
    }
    let key = |k: &[u8]| k.to_vec().into();
    let commit = Commit {
        read_version,
        read_conflicts: vec![(key(b"a"), key(b"c"))],
        write_conflicts: vec![(key(b"d"), key(b"e"))],
        mutations: vec![
            Mutation::Put { key: b"a".to_vec(), value: b"1".to_vec() },
            Mutation::Add { key: b"b".to_vec(), delta: 1 },
            Mutation::PutVersionstamped { prefix: b"c".to_vec(), suffix: vec![], value: vec![] },
        ],
        durable: true,
        present: None,
        grows: true,
    };
    etcd.commit(commit).await?;
    etcd.raise_stamps(etcd.stamps_given().await?.saturating_add(1)).await?;
    // Old versions are looked after in the background.
    rt.sleep(VERSIONS_KEPT + Duration::from_secs(200)).await;
    Ok(())
}

pub fn run(input: &[u8]) {
    let Some((flags, rest)) = input.split_first() else { return };
    let new = flags & 1 != 0;
    world::run(Some(answers(rest)), |rt| async move {
        let _ = ask(&rt, new).await;
    });
}

/// What etcd says if all is well, if a sum has changed meanwhile, and if it is full.
pub fn seeds() -> Vec<Vec<u8>> {
    let found = r#"{"header":{"revision":"5"},"kvs":[{"key":"Z2xvd2ZzLzAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDA3L2Rh","value":"MQ==","mod_revision":"4"}],"count":"1"}"#;
    let nothing = r#"{"header":{"revision":"5"}}"#;
    let two = r#"{"header":{"revision":"5"},"succeeded":true,"responses":[{"response_range":{"kvs":[{"key":"YQ==","value":"MQ==","mod_revision":"4"}]}},{"response_range":{}}]}"#;
    let done = r#"{"header":{"revision":"6"},"succeeded":true,"responses":[{"response_txn":{"succeeded":true}}]}"#;
    let again = r#"{"header":{"revision":"6"},"succeeded":true,"responses":[{"response_txn":{"responses":[{"response_range":{"kvs":[{"key":"Yg==","value":"AQAAAAAAAAA=","mod_revision":"5"}]}},{"response_range":{}}]}}]}"#;
    let conflict = r#"{"header":{"revision":"6"},"responses":[{"response_range":{"kvs":[{"key":"bw==","value":"MQ==","mod_revision":"6"}]}},{"response_txn":{}}]}"#;
    let endless = r#"{"header":{"revision":"5"},"more":true}"#;
    let full = r#"{"error":"etcdserver: mvcc: database space exceeded","code":8}"#;
    let compacted =
        r#"{"error":"etcdserver: mvcc: required revision has been compacted","code":11}"#;
    let size = r#"{"header":{"revision":"8"},"dbSize":"2000000000","dbSizeInUse":"1900000000"}"#;
    let good = |text: &'static str| (text, 0);
    let bad = |text: &'static str| (text, ERROR);
    // To be known by its own key: what is under it, and the taking of it.
    let (own, taken) = (good(nothing), good(done));
    let before = [good(nothing), good(two), good(found), good(found), own, taken, good(two)];
    // The counter of stamps is read, read again, and set.
    let after = [good(nothing), good(nothing), good(done)];
    let looked: Vec<_> = (0..6).map(|_| good(found)).chain([good("{}"), good(size)]).collect();
    let fresh = [good(found), own, taken, good(two)];
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1b;x=y\r\n{\"header\":{\"revision\":\"5\"}}\r\n0\r\nX: y\r\n\r\n";
    let all: [(u8, Vec<(&str, u16)>); 9] = [
        (0, [&before[..], &[good(done)], &after, &looked].concat()),
        (0, [&before[..], &[good(again), good(done)], &after].concat()),
        (1, [&fresh[..], &[good(conflict)]].concat()),
        (1, [&fresh[..], &[bad(full), good(found)]].concat()),
        // An answer that is lost, and what settles it.
        (1, [&fresh[..], &[good("["), good(conflict)]].concat()),
        (0, vec![good(nothing), bad(compacted)]),
        (0, vec![(chunked, RAW), good(two)]),
        // It says nothing, which is no empty file system; there is more, and never what comes first.
        (0, vec![good("{}")]),
        (0, vec![good(nothing), good(two), good(endless)]),
    ];
    let part = |(text, flags): &(&str, u16)| {
        [&(text.len() as u16 | flags).to_le_bytes()[..], text.as_bytes()].concat()
    };
    let whole = |(flags, parts): &(u8, Vec<(&str, u16)>)| {
        [&[*flags][..], &parts.iter().flat_map(part).collect::<Vec<u8>>()].concat()
    };
    all.iter().map(whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use glowfs_types::Status;

    /// A target whose first answer is never understood would test nothing.
    #[test]
    fn each_seed_comes_as_far_as_it_says() {
        let outcome = |seed: &Vec<u8>| {
            let (new, rest) = (seed[0] & 1 != 0, &seed[1..]);
            let asked = |rt: Rt| async move { ask(&rt, new).await.map_err(|e| e.status) };
            world::run(Some(answers(rest)), asked).expect("it ends")
        };
        let outcomes: Vec<_> = seeds().iter().map(outcome).collect();
        let expected = [
            Ok(()),
            Ok(()),
            Err(Status::Conflict),
            Err(Status::NoSpace),
            Err(Status::CommitUnknown),
            Err(Status::TooOld),
            Err(Status::Disconnected),
            Err(Status::BadMessage),
            Err(Status::BadMessage),
        ];
        assert_eq!(outcomes, expected);
    }
}
