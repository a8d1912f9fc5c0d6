"""Parts of documents that are made from the code: `scripts/docs --write` makes them, `scripts/docs` compares.

Such a part stands between `<!-- made by scripts/docs: NAME -->` and `<!-- end -->`.
"""

import re

import configuration

PART = re.compile(r"(<!-- made by scripts/docs: ([\w -]+) -->\n).*?(<!-- end -->)", re.S)


def rows(head, lines):
    first, *others = (f"| {' | '.join(row)} |\n" for row in [head, *lines])
    return first + "|" + "---|" * len(head) + "\n" + "".join(others)


def plain(comment):
    """A doc comment as one line, without the links that only rustdoc follows."""
    text = " ".join(line.strip().removeprefix("///").strip() for line in comment.strip().splitlines())
    text = re.sub(r" \(\[`[^\]]*`\]\)", "", text)
    text = re.sub(r"\[(`[^\]]*`)\](?:\([^)]*\))?", r"\1", text)
    return text.replace("|", "\\|")


def methods(repository):
    code = repository.text("crates/types/src/wire/method.rs")
    found = re.findall(r"((?:^    ///.*\n)+)    (\w+) = (\d+);", code[code.index("\nmethods! {"):], re.M)
    return rows(["number", "method", "what"], [[number, f"`{name}`", plain(doc)] for doc, name, number in found])


def statuses(repository):
    code = repository.text("crates/types/src/status.rs")
    found = re.findall(r"((?:^    ///.*\n)+)    (\w+) = (\d+), (\d+);", code[code.index("\nstatuses! {"):], re.M)
    head = ["number", "status", "errno", "what"]
    return rows(head, [[number, f"`{name}`", errno, plain(doc)] for doc, name, number, errno in found])


METRIC = re.compile(r"(\w*)\(\s*\"(glowfs_\w+)\",\s*\"([^\"]*)\"", re.S)


def metrics(repository, role):
    """Name and help of what a crate registers, in the order of the code."""
    found = []
    for path in repository.sources():
        if path.startswith(f"crates/{role}/src/"):
            found += [(name, help) for _, name, help in METRIC.findall(repository.text(path))]
    return rows(["metric", "what it counts"], [[f"`{name}`", help.rstrip(".")] for name, help in found])


def part(repository, name):
    if name == "methods":
        return methods(repository)
    if name == "statuses":
        return statuses(repository)
    kind, _, of = name.partition(" ")
    if kind == "metrics":
        return metrics(repository, of)
    if kind == "keys":
        return configuration.keys(repository, of)
    return None


def made(repository, path):
    """What the document should be."""
    def make(found):
        new = part(repository, found.group(2))
        return found.group(0) if new is None else found.group(1) + new + found.group(3)

    return PART.sub(make, repository.text(path))


def check(repository):
    names = set()
    for path in repository.documents():
        text = repository.text(path)
        names.update(found.group(2) for found in PART.finditer(text))
        should = made(repository, path)
        if should != text:
            pairs = zip(text.split("\n"), should.split("\n"))
            number, line = next(((n, b) for n, (a, b) in enumerate(pairs, 1) if a != b), (1, ""))
            repository.complain(path, number, f"is not what the code says: «{line}» (scripts/docs --write)")
    for name in {"methods", "statuses"} | {f"keys {of}" for of in configuration.TABLES} - names:
        if name not in names:
            repository.complain("docs", 1, f"no document holds the part «{name}»")
