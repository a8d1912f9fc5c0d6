//! Whose turn it is: each kind of fault comes until it had effect, and only then does chance decide alone.

use super::Kind;
use crate::random::Random;

/// A kind that has no effect comes so often before the others go on without it (and the run fails for it).
pub const TRIES_MAX: usize = 10;

/// The order.
pub struct Turns {
    kinds: Vec<Kind>,
    /// Those that have not had effect yet, and how often they came.
    unproven: Vec<(Kind, usize)>,
}

impl Turns {
    /// Of these kinds.
    pub fn new(kinds: &[Kind]) -> Self {
        Self { kinds: kinds.to_vec(), unproven: kinds.iter().map(|k| (*k, 0)).collect() }
    }
    /// Whether some kind has to come still, also when the time is up.
    pub fn due(&self) -> bool {
        !self.unproven.is_empty()
    }
    /// Whether this kind had effect already, or is not tried any more.
    pub fn settled(&self, kind: Kind) -> bool {
        self.unproven.iter().all(|(k, _)| *k != kind)
    }
    /// The next one: of those that have to come, the ones that came least.
    pub fn next(&self, random: &mut Random) -> Option<Kind> {
        let least = self.unproven.iter().map(|(_, n)| *n).min();
        let Some(least) = least else { return random.pick(&self.kinds).copied() };
        let due: Vec<_> = self.unproven.iter().filter(|(_, n)| *n == least).collect();
        random.pick(&due).map(|(k, _)| *k)
    }
    /// It came, with or without effect.
    pub fn came(&mut self, kind: Kind, effect: bool) {
        for (_, n) in self.unproven.iter_mut().filter(|(k, _)| *k == kind) {
            *n += 1;
        }
        self.unproven.retain(|(k, n)| *k != kind || (!effect && *n < TRIES_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_had_no_effect_comes_again_but_not_for_ever() {
        let mut random = Random::new(1, 1);
        let kinds = [Kind::Kill, Kind::Cut, Kind::Corrupt];
        let mut turns = Turns::new(&kinds);
        let mut order = vec![];
        while turns.due() {
            let kind = turns.next(&mut random).expect("one");
            order.push(kind);
            let times = order.iter().filter(|k| **k == kind).count();
            turns.came(kind, kind == Kind::Kill || (kind == Kind::Cut && times == 3));
        }
        let count = |kind| order.iter().filter(|k| **k == kind).count();
        assert_eq!(kinds.map(count), [1, 3, TRIES_MAX]);
        assert!(kinds.iter().all(|k| order[..3].contains(k)), "each once first: {order:?}");
        assert!(turns.settled(Kind::Corrupt) && turns.next(&mut random).is_some());
    }
}
