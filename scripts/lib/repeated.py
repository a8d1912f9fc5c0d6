"""What documents repeat of the code by hand, and must not have otherwise."""

import re

from repository import table

VARIABLE = re.compile(r"\b((?:GLOWFS|CRAQ|TORTURE|POWERCUT|FUZZ|RESYNC)_[A-Z_]*[A-Z]|SAVE_SEEDS)\b")
# How the environment is read: in Rust, by clap, in a shell, in Python.
READ = re.compile(
    r"env::var(?:_os)?\(\s*\"([A-Z_]+)\"|\benv\(\"([A-Z_]+)\"|\benv = \"([A-Z_]+)\"|\$\{([A-Z_]+):?[-+=]|environ(?:\.get\(|\[)\"([A-Z_]+)\""
    r"|const [A-Z_]+: &str = \"((?:GLOWFS)_[A-Z_]+)\"|number\(\"([A-Z_]+)\"\)"
)
METRIC = re.compile(r"\b(?:process|glowfs_(?:build|meta|mgmtd|mount|rpc|storage))_[a-z_]*[a-z]\b(?!\*)")
# Its options stand before the command.
ADMIN = re.compile(r"\bglowfs admin(?: --(?:mgmtd|token-file|dev|timeout) [^ ]+| --json)* ([a-z][a-z-]*)\b(?!:)")
GAP = re.compile(r"\bG(\d+)\b")
# Parts of commands.
PARTS = ("scripts/bounded", "scripts/prepare")
STATUS = "docs/status.md"


def check(repository):
    budgets(repository)
    mutants(repository)
    variables(repository)
    commands(repository)
    metrics(repository)
    operators(repository)
    gaps(repository)


def budgets(repository):
    block = re.search(r'BUDGETS="\n(.*?)"', repository.text("scripts/budgets"), re.S).group(1)
    own = {layer: int(most) for layer, _, most in (line.split() for line in block.splitlines())}
    path, said = "docs/performance.md", {}
    for number, row in table(repository, path, "layer", "Budgets"):
        layer = row[0].split("`")[1]
        said[layer] = int(row[-1].replace(",", ""))
        if said[layer] != own.get(layer):
            repository.complain(path, number, f"the budget of {layer} is {own.get(layer)} in scripts/budgets")
    for layer in own.keys() - said.keys():
        repository.complain(path, 1, f"the budget of {layer} is missing")


def mutants(repository):
    code = repository.text("crates/types/src/mutant.rs")
    own = set(re.findall(r"^    \w+ = \"([a-z-]+)\";", code, re.M))
    path = "docs/simulator.md"
    said = {row[0]: number for number, row in table(repository, path, "bug", "Planted bugs")}
    for name in own - said.keys():
        repository.complain(path, 1, f"the planted bug {name} is missing")
    for name in said.keys() - own:
        repository.complain(path, said[name], f"there is no planted bug {name}")


def variables(repository):
    path = "CONTRIBUTING.md"
    text = repository.text(path)
    said = set(VARIABLE.findall(text[text.index("## Environment variables"):text.index("## Rules")]))
    read = {}
    for source in sorted(repository.paths):
        if source.endswith((".rs", ".py")) or source.startswith("scripts/") or "/" not in source and "." not in source:
            for groups in READ.findall(repository.text(source)):
                name = next(g for g in groups if g)
                if VARIABLE.fullmatch(name):
                    read.setdefault(name, source)
    for name in sorted(read.keys() - said):
        repository.complain(read[name], 1, f"{name} is missing in the table of {path}")
    for name in sorted(said - read.keys()):
        repository.complain(path, 1, f"nothing reads {name}")


def commands(repository):
    path = "CONTRIBUTING.md"
    text = repository.text(path)
    text = text[text.index("## Commands"):text.index("## Environment variables")]
    for name in sorted(repository.paths):
        top = "/" not in name and "." not in name and name != "LICENSE"
        if (top or re.fullmatch(r"scripts/[\w-]+", name)) and not re.search(rf"`(?:\./)?{name}\b", text):
            repository.complain(path, 1, f"the command {name} is missing in the table")
        if (top or name.startswith("scripts/")) and name not in PARTS and "/lib/" not in name:
            text_of = repository.text(name)
            if text_of.startswith("#!/usr/bin/env bash") and '\nhelp "$@"\n' not in text_of:
                repository.complain(name, 1, 'begins without «help "$@"» (scripts/prepare)')


def metrics(repository):
    own = set()
    for source in repository.sources():
        if "/src/" in source:
            own.update(re.findall(r"\"((?:glowfs|process)_[a-z_]+)\"", repository.text(source)))
            own.update(re.findall(r"\b(glowfs_build_info)\b", repository.text(source)))
    for path in [*repository.documents(), "docs/alerts.yml"]:
        for number, line in repository.prose(path):
            for name in METRIC.findall(line):
                if not own & {name, re.sub(r"_(?:count|sum|bucket)$", "", name)}:
                    repository.complain(path, number, f"there is no metric {name}")


def operators(repository):
    """Commands of `glowfs admin`: those that are named exist, in documents and in messages; and operating.md names them all."""
    arguments = "crates/admin/src/args.rs"
    top, every = set(), set()
    for enum, body in re.findall(r"\n(?:pub )?enum (\w+) \{\n(.*?)\n\}", repository.text(arguments), re.S):
        names = {kebab(n) for n in re.findall(r"^    ([A-Z]\w+)(?: \{|\(|,)", body, re.M)}
        every |= names
        if enum == "Command":
            top = names
    for path in [*repository.documents(), "docs/alerts.yml", *repository.sources()]:
        for number, line in enumerate(repository.text(path).split("\n"), 1):
            for name in ADMIN.findall(line):
                if name not in top:
                    repository.complain(path, number, f"there is no command glowfs admin {name}")
    said = repository.text("docs/operating.md")
    for name in sorted(every):
        if not re.search(rf"(?<![\w-]){name}(?![\w-])", said):
            repository.complain("docs/operating.md", 1, f"the command {name} of glowfs admin is missing")


def kebab(name):
    return re.sub(r"(?<!^)([A-Z])", r"-\1", name).lower()


def gaps(repository):
    """Known gaps have ids that stay; whoever names one means one that is there."""
    known = set()
    for number, line in repository.prose(STATUS):
        own = re.match(r"#+ G(\d+)\b", line)
        if own:
            gap = own.group(1)
            if gap in known:
                repository.complain(STATUS, number, f"there are two gaps G{gap}")
            known.add(gap)
    following = re.search(r"the next one is G(\d+)", repository.text(STATUS))
    if not following or any(int(gap) >= int(following.group(1)) for gap in known):
        repository.complain(STATUS, 1, "«the next one is G...» must name an id behind all")
    known.update(following.groups() if following else ())
    for path in sorted(repository.paths):
        if path.endswith((".md", ".rs")):
            for number, line in enumerate(repository.text(path).split("\n"), 1):
                for gap in GAP.findall(line) if path.endswith(".md") or "gap" in line or "status.md" in line else ():
                    if gap not in known:
                        repository.complain(path, number, f"{STATUS} has no gap G{gap}")
