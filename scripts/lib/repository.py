"""The files of the repository, read once, and what is complained about."""

import os
import re
import subprocess

# What the fuzzer has kept is neither text nor meant by anybody.
CORPUS = "crates/fuzzing/corpus/"
TEXT = (".md", ".rs", ".py", ".h", ".c", ".toml", ".sh", ".yml", ".service")


class Repository:
    """Paths, and texts by path. A check reads files through it only, so that a self-test can change one in memory."""

    def __init__(self, root):
        self.root = root
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root, check=True, capture_output=True, text=True,
        ).stdout.split("\0")
        self.paths = {p for p in listed if p and not p.startswith(CORPUS) and os.path.isfile(os.path.join(root, p))}
        self.folders = {p[:i] for p in self.paths for i, c in enumerate(p) if c == "/"}
        self._texts = {}
        # What `references.py` has found in a source file.
        self.index = {}
        self.complaints = []

    def complain(self, path, line, what):
        self.complaints.append((path, line, what))

    def text(self, path):
        if path not in self._texts:
            with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as file:
                self._texts[path] = file.read()
        return self._texts[path]

    def code(self, path):
        """The text of a source file without its comment lines: a name that only a comment mentions is not there."""
        return re.sub(r"(?m)^[ \t]*//.*$", "", self.text(path))

    def replace(self, path, text):
        """For self-tests: as if the file held this."""
        self._texts[path] = text
        self.index.pop(path, None)
        self.paths.add(path)

    def documents(self):
        return sorted(p for p in self.paths if p.endswith(".md"))

    def sources(self):
        return sorted(p for p in self.paths if p.endswith(".rs"))

    def prose(self, path):
        """The lines of a document outside of code blocks, numbered from 1."""
        fenced = False
        for number, line in enumerate(self.text(path).split("\n"), 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            elif not fenced:
                yield number, line


def cells(row):
    """The cells of a row of a table, without the empty ones outside of its outer bars."""
    parts = re.split(r"(?<!\\)\|", row.strip())
    return [c.strip() for c in parts[1:-1]] if len(parts) > 2 else []


def table(repository, path, first, heading=None):
    """The rows of the first table of a document whose head begins with the cell `first` (below a heading, if one is named)."""
    seen = heading is None
    rows, inside = [], False
    for number, line in repository.prose(path):
        seen = seen or line.lstrip("#").strip() == heading
        if line.startswith("|"):
            row = cells(line)
            if inside and not set("".join(row)) <= set("-: "):
                rows.append((number, row))
            elif seen and not rows and row and row[0] == first:
                inside = True
        elif rows:
            break
        else:
            inside = False
    if not rows:
        repository.complain(path, 1, f"there is no table that begins with «{first}»")
    return rows
