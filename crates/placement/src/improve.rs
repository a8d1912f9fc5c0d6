//! Exchanges members between chains until every two disks share about equally many chains.
//!
//! An exchange of one member of a chain for one of another leaves the load of every disk as it is. It is made if it
//! lowers the sum of squares of the pair counts and breaks no rule of distinct nodes and racks. Bounded by [`TRIES_MAX`].

use crate::plan::Work;

/// The greatest number of exchanges that are looked at.
const TRIES_MAX: usize = 2_000_000;

pub(crate) fn even_out(work: &mut Work, chains: &mut [Vec<usize>]) {
    let mut tries = 0;
    loop {
        let mut better = false;
        for x in 0..chains.len() {
            for y in x + 1..chains.len() {
                for i in 0..chains[x].len() {
                    for j in 0..chains[y].len() {
                        tries += 1;
                        if tries > TRIES_MAX {
                            return;
                        }
                        better |= exchange(work, chains, (x, i), (y, j));
                    }
                }
            }
        }
        if !better {
            return;
        }
    }
}

/// Exchanges two members if that is allowed and better.
fn exchange(
    work: &mut Work,
    chains: &mut [Vec<usize>],
    (x, i): (usize, usize),
    (y, j): (usize, usize),
) -> bool {
    let (a, b) = (chains[x][i], chains[y][j]);
    if a == b || !fits(work, &chains[x], i, b) || !fits(work, &chains[y], j, a) {
        return false;
    }
    let (of_a, of_b) = ((&chains[x], i), (&chains[y], j));
    // The change of the sum of squares: (p-1)^2 - p^2 for a lost pair, (p+1)^2 - p^2 for a new one, counted in turn.
    let mut delta = 0i64;
    let steps = |from: usize, with: (&Vec<usize>, usize), by, delta: &mut i64, work: &mut Work| {
        for (_, &m) in with.0.iter().enumerate().filter(|&(k, _)| k != with.1) {
            let p = i64::from(work.pair(from, m));
            *delta += 2 * p * i64::from(by) + 1;
            work.bump(from, m, by);
        }
    };
    steps(a, of_a, -1, &mut delta, work);
    steps(b, of_b, -1, &mut delta, work);
    steps(b, of_a, 1, &mut delta, work);
    steps(a, of_b, 1, &mut delta, work);
    if delta < 0 {
        chains[x][i] = b;
        chains[y][j] = a;
        return true;
    }
    let mut undo = 0;
    steps(a, of_b, -1, &mut undo, work);
    steps(b, of_a, -1, &mut undo, work);
    steps(b, of_b, 1, &mut undo, work);
    steps(a, of_a, 1, &mut undo, work);
    false
}

/// Whether `new` may stand at `at` of `chain`: on a node of its own, and with no fewer racks than before.
fn fits(work: &Work, chain: &[usize], at: usize, new: usize) -> bool {
    let old = chain[at];
    let rest = || chain.iter().enumerate().filter(|&(k, _)| k != at).map(|(_, &m)| m);
    rest().all(|m| work.places[m].node != work.places[new].node)
        && rest().filter(|&m| !work.apart(m, new)).count()
            <= rest().filter(|&m| !work.apart(m, old)).count()
}
