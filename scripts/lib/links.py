"""Links between documents, the headings that they lead to, and tables."""

import os
import re

from repository import TEXT, cells

LINK = re.compile(r"\]\(([^)\s]+)\)")
IN_CODE = re.compile(r"\bdocs/[\w/-]+\.(?:md|svg)(#[\w-]+)?")


def slug(heading):
    """The anchor of a heading, as GitHub makes it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(repository, path):
    found, count = set(), {}
    for _, line in repository.prose(path):
        heading = re.match(r"#+ (.*)", line)
        if heading:
            name = slug(heading.group(1))
            again = count.get(name, 0)
            count[name] = again + 1
            found.add(f"{name}-{again}" if again else name)
        found.update(re.findall(r'<a (?:id|name)="([\w-]+)"', line))
    return found


def check(repository):
    known = {p: anchors(repository, p) for p in repository.documents()}

    def lead(path, number, link, target, anchor):
        if target not in repository.paths and target not in repository.folders and target != ".":
            repository.complain(path, number, f"the link {link} leads nowhere")
        elif anchor and target in known and anchor not in known[target]:
            repository.complain(path, number, f"{target} has no heading for {link}")

    for path in repository.documents():
        for number, line in enumerate(repository.text(path).split("\n"), 1):
            for link in LINK.findall(line):
                if re.match(r"\w+:", link):
                    continue
                file, _, anchor = link.partition("#")
                target = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
                lead(path, number, link, target, anchor)
    for path in sorted(repository.paths):
        if path.endswith(".md") or path == "scripts/lib/selftest.py" or not (path.endswith(TEXT) or "/" not in path or path.startswith("scripts/")):
            continue
        for number, line in enumerate(repository.text(path).split("\n"), 1):
            for link in IN_CODE.finditer(line):
                target, _, anchor = link.group(0).partition("#")
                lead(path, number, link.group(0), target, anchor)


def check_tables(repository):
    for path in repository.documents():
        width, above = None, ""
        for number, line in repository.prose(path):
            if line.startswith("|"):
                row = cells(line)
                rule = bool(row) and all(re.fullmatch(r":?-+:?", c) for c in row)
                if width is None:
                    width, state = len(row), "head"
                elif state == "head":
                    if not rule:
                        repository.complain(path, number - 1, "a row that belongs to no table (an empty line ends one)")
                    state = "rows"
                if not row or len(row) != width:
                    repository.complain(path, number, f"a row of {len(row)} cells in a table of {width}")
            else:
                if width is not None and state == "head":
                    repository.complain(path, number - 1, "a row that belongs to no table (an empty line ends one)")
                width = None
            above = line
