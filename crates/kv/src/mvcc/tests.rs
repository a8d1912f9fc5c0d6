use super::*;

fn put(store: &mut Mvcc, key: &[u8], bytes: usize) {
    let put = Mutation::Put { key: key.to_vec(), value: vec![7; bytes] };
    store.apply(&Commit { mutations: vec![put], ..Commit::default() }, &mut ());
}

/// Everything that can be seen of a store, and what it counts.
type Shown = (Vec<(Vec<u8>, Vec<u8>)>, u64, u64, usize);
fn shown(store: &Mvcc) -> Shown {
    let all = store.get_range(store.version(), &[], &[0xff], 1000, false).expect("newest");
    (all.entries, store.bytes(), store.older_bytes(), store.backlog())
}

#[test]
fn what_is_taken_back_was_never_there() {
    let mut seed = 7;
    let mut rand = |n: u64| {
        seed += 1;
        glowfs_types::layout::splitmix64(seed) % n
    };
    for round in 0..300 {
        let mut store = Mvcc::default();
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let mut commit = |store: &mut Mvcc, rand: &mut dyn FnMut(u64) -> u64| {
            let mutations = (0..1 + rand(3)).map(|_| {
                let key = vec![b'a' + rand(6) as u8];
                match rand(4) {
                    0 => Mutation::ClearRange { end: crate::key_after(&key), begin: key },
                    1 => Mutation::ClearRange { end: vec![b'a' + rand(8) as u8], begin: key },
                    2 => Mutation::Add { key, delta: 1 },
                    _ => Mutation::Put { key, value: vec![1; rand(30) as usize] },
                }
            });
            let mutations: Vec<_> = mutations.collect();
            for m in &mutations {
                if let Mutation::Put { key, .. } | Mutation::Add { key, .. } = m {
                    keys.push(key.clone());
                }
            }
            store.apply(&Commit { mutations, ..Commit::default() }, &mut ());
        };
        for _ in 0..rand(12) {
            commit(&mut store, &mut rand);
            if rand(3) == 0 {
                store.set_oldest(store.version() - rand(3).min(store.version()));
            }
        }
        let (to, before) = (store.version(), shown(&store));
        for _ in 0..1 + rand(12) {
            commit(&mut store, &mut rand);
        }
        let last = store.version();
        assert_eq!(store.take_back(to, keys.iter().map(Vec::as_slice)), last);
        let after = shown(&store);
        assert_eq!(after.0, before.0, "round {round}");
        if store.oldest == 0 {
            assert_eq!(after, before, "round {round}");
        }
        let sum: usize = after.0.iter().map(|(k, v)| k.len() + v.len()).sum();
        assert!(after.1 >= sum as u64, "round {round}: tombstones count as well");
        for version in [to, last] {
            let e = store.get(version, b"a").expect_err("read before");
            assert_eq!(e.status, Status::TooOld, "round {round}");
        }
        store.set_oldest(store.version());
        while store.trim(1000) {}
        let end = shown(&store);
        assert_eq!((end.1, end.2, end.3), (sum as u64, 0, 0), "round {round}");
    }
}

#[test]
fn old_values_are_bounded_by_number_and_by_bytes() {
    let mut store = Mvcc::default();
    for _ in 0..10 {
        put(&mut store, b"large", 1000);
        put(&mut store, b"small", 1);
    }
    assert_eq!((store.backlog(), store.older_bytes()), (18, 9 * 1001));
    assert_eq!(store.bound_for(18, 9 * 1001), None);
    let version = store.version();
    assert_eq!(store.bound_for(17, u64::MAX), Some(3), "one too many");
    // Half of the large ones have to go.
    let oldest = store.bound_for(usize::MAX - 1, 4 * 1001).expect("too large");
    store.set_oldest(oldest);
    assert!(!store.trim(100));
    assert!(store.older_bytes() <= 4 * 1001 && store.older_bytes() > 3 * 1001);
    assert!(store.get(oldest, b"large").is_ok() && store.get(oldest - 1, b"large").is_err());
    // A removal, and all of it.
    let gone = Mutation::ClearRange { begin: b"large".to_vec(), end: b"m".to_vec() };
    store.apply(&Commit { mutations: vec![gone], ..Commit::default() }, &mut ());
    store.set_oldest(version + 1);
    assert!(!store.trim(100));
    assert_eq!((store.backlog(), store.older_bytes(), store.len()), (0, 0, 1));
}
