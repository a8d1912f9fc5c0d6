use super::*;
use glowfs_rt::real;

fn chunk() -> ChunkId {
    ChunkId { index: 1, ..ChunkId::default() }
}

/// Whether that is unvouched if all from `first` on is.
fn from(first: u64) -> impl Fn(ChunkVersion) -> bool {
    move |version| version >= ChunkVersion(first)
}

/// It was taken for asked for, since an earlier one had been, of which the word had come.
#[test]
fn a_later_version_is_asked_for_once_an_earlier_one_is_told() {
    let v = Vouches::default();
    let want = |version: u64, first| v.want((chunk(), ChunkVersion(version)), from(first));
    assert!(want(5, 5));
    assert!(!want(5, 5), "it is asked for");
    assert!(!want(6, 5), "when the word on 5 comes is soon enough");
    v.news.set(false);
    assert!(want(6, 6), "5 is vouched for, and nobody has asked for 6");
    assert!(v.news.get());
    assert_eq!(v.wanted.borrow().get(&chunk()), Some(&ChunkVersion(6)));
    assert!(want(4, 4), "an earlier one is true earlier");
}

#[test]
fn the_next_question_waits_only_while_one_is_under_way() {
    real::run(|rt| async move {
        let v = Vouches::default();
        let pause = async || {
            let began = rt.now();
            v.pause(&rt).await;
            rt.now().since(began) >= SOON_PAUSE
        };
        v.want((chunk(), ChunkVersion(1)), from(1));
        assert!(!pause().await, "nothing is under way, and there is more to ask");
        v.under_way.set(1);
        assert!(pause().await, "a question is under way");
        v.under_way.set(0);
        v.news.set(false);
        assert!(pause().await, "there is nothing new to ask");
    });
}

/// A pause that is begun ends as soon as the question is answered.
#[test]
fn an_answer_ends_the_pause_before_the_next_question() {
    real::run(|rt| async move {
        let v = Vouches::default();
        v.under_way.set(1);
        v.want((chunk(), ChunkVersion(1)), from(1));
        let mut pause = std::pin::pin!(v.pause(&rt));
        let now = rt.timeout(Duration::ZERO, pause.as_mut()).await;
        assert!(now.is_err(), "the question is under way");
        v.under_way.set(0);
        v.woken.notify_all();
        let now = rt.timeout(Duration::ZERO, pause).await;
        assert!(now.is_ok(), "it is answered");
    });
}

/// That a chain version is active is no other chain version.
#[test]
fn who_had_nobody_to_ask_looks_again_when_its_chain_version_is_active() {
    real::run(|rt| async move {
        let (v, turned) = (Vouches::default(), Notify::default());
        let mut waits = std::pin::pin!(v.nobody_to_ask(&rt, &turned));
        assert!(rt.timeout(Duration::ZERO, waits.as_mut()).await.is_err());
        v.after(Happened::Other);
        assert!(rt.timeout(Duration::ZERO, waits.as_mut()).await.is_err());
        v.after(Happened::of(&Event::Chain(None)));
        assert!(rt.timeout(Duration::ZERO, waits).await.is_ok());
    });
}
