//! SQLite on the mount: rollback journal and WAL (whose index is a shared memory map).

use crate::harness::{Cluster, sh};
use std::path::Path;

fn workload(mode: &str) -> String {
    format!(
        "rm -f t.db*; sqlite3 t.db 'PRAGMA journal_mode={mode}; PRAGMA synchronous=FULL; CREATE TABLE t(i INTEGER PRIMARY KEY, v BLOB);' \
         && for n in 1 2 3 4 5; do (echo '.timeout 20000'; echo 'BEGIN IMMEDIATE;'; for k in $(seq 200); do \
            echo \"INSERT INTO t(v) VALUES(randomblob($((k*7))));\"; done; echo 'COMMIT;') | sqlite3 t.db & done; wait; \
         sqlite3 t.db 'DELETE FROM t WHERE i%3=0; VACUUM; PRAGMA integrity_check; SELECT count(*) FROM t;'"
    )
}

/// Five writers at once, in a directory, with this journal.
pub fn five_writers(on: &Path, mode: &str) {
    let out = sh(on, &workload(mode));
    let mut lines = out.lines().rev();
    assert_eq!(lines.next(), Some("667"), "{mode}: {out}");
    assert_eq!(lines.next(), Some("ok"), "{mode}: {out}");
}

#[test]
fn rollback_journal_and_wal() {
    let c = Cluster::up("sqlite");
    for mode in ["DELETE", "TRUNCATE", "PERSIST", "WAL"] {
        five_writers(&c.mnt, mode);
    }
}
