//! A storage that comes back after so long that nobody remembers the requests of before, in the shipped services: nothing old comes back with it.

use crate::replicas::{Step, change, check, check_near, restart_one_by_one, wait_serving};
use glowfs_rt::Duration;
use glowfs_sim::cluster::harness::{Cluster, Shape};
use glowfs_types::limits::UPDATE_LIFE_MAX_MS;

const SHAPE: Shape = Shape { storages: 3, replicas: 3, chains: 3, stripe: 3, ..Shape::SINGLE };
/// Rounds of what the others do meanwhile, and how long each lasts.
const ROUNDS: u8 = 4;
const ROUND: Duration = Duration::from_secs(10 * 60);

#[test]
fn nothing_old_comes_back_with_a_storage_that_was_away_for_long() {
    assert!(ROUND * u32::from(ROUNDS) > Duration::from_millis(UPDATE_LIFE_MAX_MS));
    for (seed, power) in [(51, false), (52, true)] {
        let cluster = Cluster::start(seed, SHAPE);
        cluster.bootstrap().expect("a cluster");
        let (away, others) = cluster.storages.split_first().expect("three");
        for name in ["kept", "cut", "gone", "removed"] {
            change(&cluster, name, vec![Step::Fill(0..12, 1)]);
        }
        cluster.crash(away, power);
        for round in 2..2 + ROUNDS {
            change(&cluster, "kept", vec![Step::Fill(0..6, round)]);
            change(&cluster, "cut", vec![Step::Cut(1), Step::Fill(6..12, round)]);
            change(&cluster, "gone", vec![Step::Remove, Step::Fill(0..3, round)]);
            if round == 3 {
                change(&cluster, "removed", vec![Step::Remove]);
                // Those that stay forget the removals: chunks that are made anew have old versions again.
                for other in others {
                    cluster.crash(other, power);
                    cluster.run_for(Duration::from_secs(5));
                    cluster.restart(other);
                    cluster.run_for(Duration::from_secs(30));
                }
            }
            cluster.world.run_for(ROUND);
        }
        cluster.restart(away);
        cluster.run_for(Duration::from_secs(1));
        wait_serving(&cluster);
        let last = 1 + ROUNDS;
        let kept = [[last; 6], [1; 6]].concat();
        let cut = [&[1, 0, 0, 0, 0, 0][..], &[last; 6]].concat();
        let all = [("kept", kept.as_slice()), ("cut", &cut[..]), ("gone", &kept[..3])];
        let checked = || {
            for (name, want) in all {
                check(&cluster, name, want);
            }
        };
        checked();
        // It is the only one, and then the source of the others.
        others.iter().for_each(|s| cluster.crash(s, false));
        cluster.run_for(Duration::from_secs(5));
        for (name, want) in all {
            check_near(&cluster, away, name, want);
        }
        others.iter().for_each(|s| cluster.restart(s));
        wait_serving(&cluster);
        checked();
        restart_one_by_one(&cluster, &cluster.storages);
        checked();
        assert_eq!(*cluster.failures.borrow(), Vec::<String>::new());
    }
}
