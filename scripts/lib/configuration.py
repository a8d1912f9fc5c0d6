"""Tables of all keys of the configuration files, from the structures that read them and their doc comments."""

import re

# What a part of docs/configuration.md shows: the folder of the code, the structure, and what stands before its keys.
TABLES = {
    "mgmtd": ("crates/mgmtd/src/", "Config", ""),
    "mgmtd timing": ("crates/mgmtd/src/", "Timing", "timing."),
    "meta": ("crates/meta/src/", "MetaConfig", ""),
    "engine": ("crates/kv/src/", "EngineConfig", "engine."),
    "meta root": ("crates/meta/src/", "RootConfig", "root."),
    "meta tuning": ("crates/meta/src/", "Tuning", "tuning."),
    "storage": ("crates/storage/src/", "StorageConfig", ""),
    "mount": ("crates/mount/src/", "MountConfig", ""),
    "live mgmtd": ("crates/types/src/", "MgmtdTuning", ""),
    "live storage": ("crates/types/src/", "StorageTuning", ""),
}
FIELD = re.compile(r"((?:[ ]*///.*\n)*)((?:[ ]*#\[.*\]\n)*)[ ]*(?:pub )?(\w+): ([^\n]+),\n")
# A variant of an enum of structures, and what it holds.
VARIANT = re.compile(r"((?:^    ///.*\n)*)((?:^    #\[.*\]\n)*)^    (\w+)(?: \{\n((?:^        .*\n)*)    \})?,\n", re.M)
KINDS = {"bool": "`true`, `false`", "String": "text", "PathBuf": "path", "Vec<String>": "list of texts",
         "Vec<PathBuf>": "list of paths", "BTreeMap<String, String>": "table of texts"}
EMPTY = {"bool": "`false`", "String": "empty", "PathBuf": "empty", "BTreeMap<String, String>": "empty"}
UNITS = [("bytes_per_s", "bytes a second"), ("_per_s", "number a second"), ("_bytes", "bytes"), ("bytes_max", "bytes"), ("_ms", "ms"),
         ("_s", "s"), ("_percent", "%")]


class Code:
    """What is looked up in the sources: structures, defaults, constants."""

    def __init__(self, repository, folder):
        self.own = "\n".join(repository.text(p) for p in repository.sources() if p.startswith(folder))
        self.repository = repository

    def body(self, name):
        """The attributes above a type, whether it is a `struct` or an `enum`, and what is in its braces."""
        found = re.search(rf"pub (struct|enum) {name} \{{\n(.*?)\n\}}", self.own, re.S)
        if not found:
            return None
        above = self.own[max(0, found.start() - 1000):found.start()]
        return re.search(r"(?:^#\[.*\]\n)*\Z", above, re.M).group(), found.group(1), found.group(2) + "\n"

    def constant(self, name):
        for path in self.repository.sources():
            if "/src/" in path:
                found = re.search(rf"const {name}: \w+ = ([^;]+);", self.repository.text(path))
                if found:
                    return found.group(1)
        return name

    def function(self, name):
        found = re.search(rf"fn {name}\(\) -> [^{{]+\{{\s*(.*?)\s*\}}", self.own, re.S)
        return found and found.group(1)

    def default(self, name):
        """The values of `impl Default`, by field."""
        found = re.search(rf"impl Default for {name} \{{.*?Self \{{\n(.*?)\n        \}}", self.own, re.S)
        return dict(re.findall(r"(?m)^            (\w+): (.+),$", found.group(1))) if found else {}


def lower(name, style):
    return name.lower() if style == "lowercase" else re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def choices(code, kind):
    """The words of a plain enum; nothing if it is none."""
    found = code.body(kind)
    if not found or found[1] != "enum" or "{" in found[2]:
        return None
    style = re.search(r'rename_all = "(\w+)"', found[0])
    names = re.findall(r"(?m)^    ([A-Z]\w+),", found[2])
    return [lower(n, style.group(1) if style else "") for n in names]


def kind_of(code, key, kind):
    kind = re.sub(r"^Option<(.*)>$", r"\1", kind)
    if kind in KINDS:
        return KINDS[kind]
    if re.fullmatch(r"[ui](?:8|16|32|64|size)", kind):
        return next((unit for end, unit in UNITS if key.endswith(end)), "number")
    words = choices(code, kind)
    return ", ".join(f"`\"{w}\"`" for w in words) if words else "table, below"


def number(value):
    """A number as people read it."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= unit and value % unit == 0:
            return f"`{value}` ({value // unit} {name})"
    return f"`{value}`"


def value_of(code, key, expression):
    expression = expression.strip()
    word = re.fullmatch(r"(?:\w+::)*([A-Z][A-Z0-9_]+)", expression)
    if word:
        return value_of(code, key, code.constant(word.group(1)))
    if re.fullmatch(r"0o[0-7]+", expression):
        return f"`{expression}`"
    if re.fullmatch(r"[\d_ <*+()]+", expression):
        value = eval(expression.replace("_", ""))
        return number(value) if "bytes" in key else f"`{value}`"
    text = re.fullmatch(r'"([^"]*)"(?:\.into\(\)|\.to_owned\(\))?', expression)
    if text:
        return f'`"{text.group(1)}"`'
    many = re.fullmatch(r'vec!\["([^"]*)"\.into\(\)\]', expression)
    if many:
        return f'`["{many.group(1)}"]`'
    if expression in ("String::new()", "PathBuf::new()", "Vec::new()", "BTreeMap::new()"):
        return "empty"
    if expression in ("true", "false"):
        return f"`{expression}`"
    chosen = re.fullmatch(r"(\w+)::([A-Z]\w*)", expression)
    if chosen and choices(code, chosen.group(1)):
        return f'`"{lower(chosen.group(2), "")}"`'
    return {"None": "none"}.get(expression, f"`{expression}`")


def default_of(code, key, kind, attributes, defaults, all_have):
    if key in defaults:
        return value_of(code, key, defaults[key])
    by = re.search(r'default = "(\w+)"', attributes)
    if by:
        return value_of(code, key, code.function(by.group(1)))
    if all_have or "default" in attributes:
        if kind.startswith("Option<"):
            return "none"
        if kind.startswith("Vec<"):
            return "empty"
        return EMPTY.get(kind, "`0`" if re.fullmatch(r"u\d+", kind) else "as below")
    return "none" if kind.startswith("Option<") else "**must be given**"


def keys(repository, which):
    """The table of a structure."""
    from generated import plain, rows

    folder, name, prefix = TABLES[which]
    code = Code(repository, folder)
    found = code.body(name)
    if not found:
        repository.complain("scripts/lib/configuration.py", 1, f"there is no structure {name} in {folder}")
        return None
    attributes, form, body = found
    lines = []
    if form == "enum":
        for doc, own, variant, fields in VARIANT.findall(body):
            renamed = re.search(r'rename = "(\w+)"', own)
            word = renamed.group(1) if renamed else lower(variant, "")
            lines.append([f"`{prefix}kind = \"{word}\"`", "", "", plain(doc)])
            lines += fields_of(code, fields, prefix, {}, False, plain)
    else:
        lines = fields_of(code, body, prefix, code.default(name), "default" in attributes.split("serde")[-1], plain)
    return rows(["key", "type, unit", "default", "meaning"], lines)


def fields_of(code, body, prefix, defaults, all_have, plain):
    lines = []
    for doc, own, key, kind in FIELD.findall(body):
        if "serde(skip)" not in own:
            default = default_of(code, key, kind, own, defaults, all_have)
            lines.append([f"`{prefix}{key}`", kind_of(code, key, kind), default, plain(doc)])
    return lines
