//! The same question to many services at once: one that does not answer costs its time only once.

use glowfs_rt::sync::join_all;

/// Services that are asked at the same time.
const AT_ONCE: usize = 64;

/// Asks each of `whom`; the answers in their order.
pub async fn ask_all<W, T>(
    whom: impl IntoIterator<Item = W>,
    ask: impl AsyncFn(W) -> T,
) -> Vec<(W, T)>
where
    W: Copy,
{
    let whom: Vec<W> = whom.into_iter().collect();
    let mut answers = Vec::with_capacity(whom.len());
    for some in whom.chunks(AT_ONCE) {
        let got = join_all(some.iter().map(|w| ask(*w))).await;
        answers.extend(some.iter().copied().zip(got));
    }
    answers
}
