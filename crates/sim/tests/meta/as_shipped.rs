//! What the machine of the metadata engine may take along when it loses its power, as the engine is shipped: changes are answered before they are flushed, and only what
//! was asked for with a flush, or has cut chunks already, must be there. (All other clusters of the simulator but a third of the seeds flush every change.)

use glowfs_sim::cluster::scenes::as_shipped::{ROUNDS, flushed_lengths, undone_truncates};

#[test]
fn a_flushed_length_outlives_a_loss_of_power_whoever_it_was_told_together_with() {
    // With three services two have the engine elsewhere.
    let answered = flushed_lengths(61, 1) + flushed_lengths(62, 3);
    assert!(answered > ROUNDS, "{answered} were answered before the power went");
}

#[test]
fn a_truncate_that_never_was_has_cut_nothing() {
    let undone = undone_truncates(63);
    assert!(undone > 1, "{undone} truncates were undone, of {ROUNDS}");
}
