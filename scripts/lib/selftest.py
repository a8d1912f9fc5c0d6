"""Plants one error of each kind, in memory, and wants it to be found: a check that finds nothing proves nothing."""

import re
import sys

import generated
import links
import references
import repeated

# The check, what is planted, where, and what takes its place; the complaint that must follow.
PLANTED = [
    (links.check, "a link to no file", "README.md", "](docs/security.md)", "](docs/secrets.md)", "leads nowhere"),
    (links.check, "a link to no heading", "docs/operating.md", "(semantics.md#small-files)", "(semantics.md#smallest-files)", "no heading"),
    (links.check, "a link in code", "crates/types/src/layout.rs", "docs/formats/layout.md", "docs/formats/layouts.md", "leads nowhere"),
    (links.check_tables, "a row without a table", "docs/replication.md", "\n| 18 | ", "\n\n| 18 | ", "belongs to no table"),
    (links.check_tables, "a row with a cell less", "docs/simulator.md", "| primary-outlives-lease | 1 | ", "| primary-outlives-lease | ", "cells in a table"),
    (references.check, "a file that is gone", "docs/architecture.md", "`mount/known.rs`", "`mount/unknown.rs`", "no file"),
    (references.check, "a function that has moved", "docs/replication.md", "`progress.rs: decide`", "`arrive.rs: decide`", "has no decide"),
    (references.check, "an item of a module", "docs/reliability.md", "`kv::embedded: begin_life`", "`kv::embedded: begin_live`", "has no begin_live"),
    (references.check, "one of several items", "docs/reliability.md", "{write: attempt, read: still_there}", "{write: attempt, read: not_there}", "has no not_there"),
    (references.check, "a module that is gone", "docs/reliability.md", "`chunkstore::compact`", "`chunkstore::compaction`", "no module"),
    (references.check, "a test that has moved", "docs/reliability.md", "client/tests/truncates.rs: a_copy", "client/tests/cluster.rs: a_copy", "has no a_copy"),
    (references.check, "a file of `it`", "docs/reliability.md", "`it netns`", "`it nets`", "no test"),
    (references.check, "a test of `it`", "docs/reliability.md", "`it a_disk_of_another_node_...`", "`it a_disk_of_no_node_...`", "no test"),
    (references.check, "a test by its name alone", "docs/replication.md", "`a_restored_chain_...`", "`a_restored_chair_...`", "has this name"),
    (references.check, "a command that is gone", "README.md", "    ./quickstart\n", "    ./quickstop\n", "no command"),
    (repeated.budgets, "a budget", "scripts/budgets", "492000", "493000", "budget of fsync"),
    (repeated.budgets, "a layer without a budget", "scripts/budgets", "\nring ", "\nthing 1 2\nring ", "budget of thing"),
    (repeated.mutants, "a planted bug without a row", "crates/types/src/mutant.rs", '"loss-untold"', '"loss-told"', "loss-told is missing"),
    (repeated.variables, "an environment variable", "crates/rt/src/real/mod.rs", '"GLOWFS_IO"', '"GLOWFS_OI"', "GLOWFS_OI is missing"),
    (repeated.variables, "a variable that nothing reads", "CONTRIBUTING.md", "`GLOWFS_IO`", "`GLOWFS_IO`, `GLOWFS_OI`", "nothing reads GLOWFS_OI"),
    (repeated.commands, "a command without a row", "CONTRIBUTING.md", "| `scripts/fsx` |", "| `scripts/xsf` |", "scripts/fsx is missing"),
    (repeated.metrics, "a metric", "docs/replication.md", "`glowfs_storage_diverged_total`", "`glowfs_storage_averted_total`", "no metric"),
    (generated.check, "a method", "crates/types/src/wire/method.rs", "KV_KEEP = 404", "KV_KEEP = 405", "not what the code says"),
    (generated.check, "a status", "crates/types/src/status.rs", "WritesLost = 137, 5", "WritesLost = 137, 28", "not what the code says"),
    (generated.check, "a key's default", "crates/mount/src/config.rs", "stop_ms: 5000", "stop_ms: 6000", "not what the code says"),
    (generated.check, "a new key", "crates/types/src/tuning.rs", "    pub balance:", "    pub unbalance:", "not what the code says"),
    (generated.check, "the help of a metric", "crates/mgmtd/src/metrics.rs", '"Nodes declared dead"', '"Nodes declared alive"', "not what the code says"),
    (repeated.operators, "a command of `glowfs admin`", "README.md", "glowfs admin --dev …/cluster list-chains", "glowfs admin --dev …/cluster list-chainz", "no command glowfs admin"),
    (repeated.operators, "a command in a message", "crates/admin/src/status.rs", "`glowfs admin remove-node", "`glowfs admin forget-node", "no command glowfs admin"),
    (repeated.operators, "a command that no document names", "crates/admin/src/args.rs", "\n    ListClients,", "\n    ListClients,\n    ListGhosts,", "list-ghosts"),
    (repeated.commands, "a command that does not know --help", "soak", 'help "$@"', 'true', "begins without"),
    (repeated.gaps, "an id that is given twice", "docs/status.md", "#### G94", "#### G97", "two gaps G97"),
    (repeated.gaps, "the next id", "docs/status.md", "the next one is G", "the next one is G1 or G", "behind all"),
    (repeated.gaps, "a known gap", "docs/semantics.md", "[G123]", "[G999]", "no gap G999"),
]


def run(repository, checks):
    for check in checks:
        check(repository)
    if repository.complaints:
        print("docs: --self-test wants a tree without complaints (scripts/docs)", file=sys.stderr)
        return 1
    missed = 0
    for check, name, path, old, new, complaint in PLANTED:
        text = repository.text(path)
        if old not in text:
            print(f"{name}: {path} does not hold «{old.strip()}» any more")
            missed += 1
            continue
        repository.replace(path, text.replace(old, new, 1))
        repository.complaints.clear()
        check(repository)
        found = [what for _, _, what in repository.complaints if re.search(re.escape(complaint), what)]
        if not found:
            print(f"{name}: NOT found; complaints: {repository.complaints}")
            missed += 1
        repository.replace(path, text)
    print(f"{len(PLANTED) - missed} of {len(PLANTED)} planted errors are found")
    return 1 if missed else 0
