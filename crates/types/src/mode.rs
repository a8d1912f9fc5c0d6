//! Mode bits beyond permissions, and when they go.

/// Set-user-id: who runs the file acts as its owner.
pub const SETUID: u32 = 0o4000;
/// Set-group-id: who runs the file acts as its group; entries of a directory get its group.
pub const SETGID: u32 = 0o2000;

/// The mode of a file whose owner or contents were changed by someone: no set-user-id, and no set-group-id where the group can execute,
/// or where he is not in the group (root counts as in it).
pub const fn without_privileges(mode: u32, in_group: bool) -> u32 {
    let stays = if in_group && mode & 0o010 == 0 { SETGID } else { 0 };
    mode & (!(SETUID | SETGID) | stays)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges_go_as_posix_says() {
        for in_group in [false, true] {
            assert_eq!(without_privileges(0o4755, in_group), 0o755);
            assert_eq!(without_privileges(0o2755, in_group), 0o755);
            assert_eq!(without_privileges(0o1755, in_group), 0o1755, "nothing else goes");
        }
        assert_eq!(without_privileges(0o6745, true), 0o2745, "no group execute");
        assert_eq!(without_privileges(0o6745, false), 0o745);
    }
}
