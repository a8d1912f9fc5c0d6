//! Who is head, and which chain follows which on the table.

use crate::Place;

/// How many chains are looked at for the next place on the table.
const LOOK_AHEAD: usize = 512;

/// Orders the members of every chain so that each disk is head of about equally many: first greedily, then along paths that
/// hand a headship from a disk with more to one with fewer. What follows the head is rotated, not sorted, so that tails
/// are spread as well.
pub(crate) fn heads(chains: &mut [Vec<usize>], disks: usize) {
    let mut heads = vec![0u32; disks];
    let mut tails = vec![0u32; disks];
    for chain in chains.iter_mut() {
        chain.sort_by_key(|&i| (heads[i], i));
        if let Some(&h) = chain.first() {
            heads[h] += 1;
        }
    }
    while hand_on(chains, &mut heads) {}
    for chain in chains.iter_mut() {
        if let [_, rest @ ..] = chain.as_mut_slice() {
            rest.sort_by_key(|&i| (std::cmp::Reverse(tails[i]), i));
        }
        if let Some(&t) = chain.last() {
            tails[t] += 1;
        }
    }
}

/// One path from a disk to one that is head of at least two fewer. Each makes the sum of squares smaller, so this ends.
fn hand_on(chains: &mut [Vec<usize>], heads: &mut [u32]) -> bool {
    let mut headed: Vec<Vec<usize>> = vec![Vec::new(); heads.len()];
    for (c, chain) in chains.iter().enumerate() {
        if let Some(&h) = chain.first() {
            headed[h].push(c);
        }
    }
    for from in 0..heads.len() {
        // Breadth first: `via[d]` is the chain whose head can go from `prev[d]` to `d`.
        let mut via: Vec<Option<(usize, usize)>> = vec![None; heads.len()];
        let mut queue = std::collections::VecDeque::from([from]);
        while let Some(d) = queue.pop_front() {
            if heads[d] + 2 <= heads[from] {
                let mut at = d;
                while at != from {
                    let Some((chain, prev)) = via[at] else { return false };
                    let place = chains[chain].iter().position(|&i| i == at).unwrap_or(0);
                    chains[chain].swap(0, place);
                    at = prev;
                }
                heads[from] -= 1;
                heads[d] += 1;
                return true;
            }
            for &c in &headed[d] {
                for &next in &chains[c][1..] {
                    if next != from && via[next].is_none() {
                        via[next] = Some((c, d));
                        queue.push_back(next);
                    }
                }
            }
        }
    }
    false
}

/// Orders the chains so that each shares as few disks, then nodes, with the few before it as possible.
pub(crate) fn neighbours(chains: Vec<Vec<usize>>, places: &[Place]) -> Vec<Vec<usize>> {
    let mut out: Vec<Vec<usize>> = Vec::with_capacity(chains.len());
    let replicas = chains.first().map_or(1, Vec::len).max(1);
    // As many chains as fit side by side on distinct disks.
    let reach = (places.len() / replicas).saturating_sub(1).clamp(1, 16);
    let mut recent = vec![0usize; places.len()];
    let mut rest = chains.into_iter();
    let mut near: Vec<Vec<usize>> = rest.by_ref().take(LOOK_AHEAD).collect();
    while !near.is_empty() {
        let cost = |chain: &Vec<usize>| {
            let at = out.len();
            let again = |last: usize| if last == 0 { 0 } else { reach.saturating_sub(at - last) };
            let disks: usize = chain.iter().map(|&i| again(recent[i])).sum();
            let head = chain.first().map_or(0, |&i| again(recent[i]));
            (disks, head)
        };
        let best = (0..near.len()).min_by_key(|&k| (cost(&near[k]), k)).unwrap_or(0);
        let chain = near.remove(best);
        near.extend(rest.next());
        out.push(chain.clone());
        for i in chain {
            recent[i] = out.len();
        }
    }
    out
}
