"""What documents name of the code, in backticks: files, functions, modules, tests."""

import re

QUOTED = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"([\w\-/.]*[\w-]+\.(?:rs|py|md|h|c|toml))(?:: ?(.+))?")
MODULE = re.compile(r"([a-z_0-9]+(?:::\w+)+|[a-z_0-9]+)(?:: (.+))?")
TEST = re.compile(r"it (\w+?)(\.\.\.)?(?:: (.+))?")
# A name so long is a test's, wherever it stands.
LONG = re.compile(r"([a-z]+_[a-z0-9_]+?)(_?\.\.\.)?")
LONG_MIN = 25
# Files of others: a machine's, the kernel's.
OTHERS = ("/", "fs/")
# Checked by `repeated.py`.
METRIC = re.compile(r"(?:process|glowfs_(?:etcd|meta|mgmtd|mount|rpc|storage))_\w+$")
COMMAND = re.compile(r"(?:\./([a-z]\w*)|(scripts/[a-z][\w-]*))\b(?![./*{])")
# Items; fields, variants and keys, which begin their line; what a line gives a name to.
DEFINED = re.compile(
    r"\b(fn|struct|enum|const|static|type|trait|mod|macro_rules!|union) +(?:mut +)?(\w+)"
    r"|^\s*(?:pub(?:\([a-z]+\))? +)?(\w+) *[:,({=]"
    r"|\b(?:let (?:mut )?)?(\w+) = ",
    re.M,
)


class Names:
    """Which files a document may mean, and what they define."""

    def __init__(self, repository):
        self.repository = repository
        self.lints = set(re.findall(r"^(\w+) = \"", repository.text("Cargo.toml"), re.M))
        self.by_end = {}
        for path in repository.paths:
            # A crate's `src`, and the folders of its test programs, are not said.
            short = re.sub(r"/(?:src|tests/(?:suite|it))/", lambda m: "/" if "src" in m.group() else "/tests/", path)
            for name in {path, short, path.replace("/src/", "/")}:
                parts = name.split("/")
                for i in range(len(parts)):
                    self.by_end.setdefault("/".join(parts[i:]), set()).add(path)
        self.crates = {p.split("/")[1].replace("-", "_") for p in repository.paths if p.startswith("crates/")}

    def files(self, name):
        return self.by_end.get(name.removeprefix("./"), set())

    def module(self, name):
        """The files of `crate::a::b`; none if there is no such module, `None` if it is no crate of ours."""
        crate, *inner = name.split("::")
        if crate.removeprefix("glowfs_") not in self.crates:
            return None
        top = f"crates/{crate.removeprefix('glowfs_').replace('_', '-')}/"
        if not inner:
            return {p for p in self.repository.sources() if p.startswith(top)}
        own = top + "src/" + "/".join(inner)
        return {p for p in self.repository.sources() if p == own + ".rs" or p.startswith(own + "/")}

    def defined(self, path):
        """The names that a source file defines, and those of its functions."""
        index = self.repository.index
        if path not in index:
            found = DEFINED.findall(self.repository.code(path))
            index[path] = {a or b or c for _, a, b, c in found}, {a for kind, a, _, _ in found if kind == "fn"}
        return index[path]

    def defines(self, name, paths, functions_only=False):
        """Whether one of the files defines the name. An end in `...` stands for anything."""
        open_end = name.endswith("...")
        name = name.rstrip(".").strip("()").split("::")[-1]
        sets = (self.defined(p)[1 if functions_only else 0] for p in paths)
        if open_end:
            return any(n.startswith(name) for names in sets for n in names)
        return any(name in names for names in sets)


def expand(text):
    """`a::{b: x, c}` stands for `a::b: x` and `a::c`."""
    braces = re.match(r"^([^{}]*)\{([^{}]*)\}([^{}]*)$", text)
    if not braces:
        return [text]
    before, inner, after = braces.groups()
    return [before + part.strip() + after for part in inner.split(",")]


def check(repository):
    names = Names(repository)
    sources = repository.sources()
    end_to_end = [p for p in sources if p.startswith("crates/glowfs/tests/it/")]
    for path in repository.documents():
        for number, line in repository.prose(path):
            for command in COMMAND.finditer(line):
                name = command.group(1) or command.group(2)
                if name not in repository.paths and name not in repository.folders:
                    repository.complain(path, number, f"there is no command {name}")
            for quoted in QUOTED.findall(line):
                for one in expand(quoted.strip()):
                    wrong = look(names, end_to_end, sources, one)
                    if wrong:
                        repository.complain(path, number, f"`{quoted}`: {wrong}")


def look(names, end_to_end, sources, quoted):
    """What is wrong with a quoted reference; nothing if it is right, or none."""
    file = FILE.fullmatch(quoted)
    if file and not quoted.startswith(OTHERS):
        return of(names, file.group(1), names.files(file.group(1)), file.group(2), "file")
    test = TEST.fullmatch(quoted)
    if test:
        return of_test(names, end_to_end, *test.groups())
    module = MODULE.fullmatch(quoted)
    if module and ("::" in module.group(1) or module.group(2)):
        return of_module(names, module.group(1), module.group(2))
    long = LONG.fullmatch(quoted)
    if long and (long.group(2) or len(long.group(1)) >= LONG_MIN):
        if not names.defines(quoted, sources) and not METRIC.match(quoted) and quoted not in names.lints:
            return "nothing in the code has this name"
    return None


def of(names, what, paths, items, kind):
    if not paths:
        return f"there is no {kind} {what}"
    for item in re.split(r",\s*", items or ""):
        if item and not re.fullmatch(r"[\w:]+(?:\(\))?(?:\.\.\.)?", item):
            return None # Prose behind a colon.
        if item and not names.defines(item, paths):
            return f"{what} has no {item}"
    return None


def of_test(names, end_to_end, name, open_end, item):
    paths = [p for p in end_to_end if re.match(rf"crates/glowfs/tests/it/{name}{'' if open_end else '[./]'}", p)]
    if not paths and names.defines(name + (open_end or ""), end_to_end, functions_only=True):
        return None
    return of(names, f"it {name}", paths, item, "test")


def of_module(names, module, items):
    paths = names.module(module)
    if paths is None:
        return None
    if not paths and "::" in module:
        # `crate::module::item`, or `crate::Item`.
        above, _, item = module.rpartition("::")
        paths = names.module(above)
        if not paths and above.count("::"):
            paths = names.module(above.rpartition("::")[0])
        if not paths or not names.defines(item, paths):
            return f"there is no module {module}"
    return of(names, module, paths, items, "module")
