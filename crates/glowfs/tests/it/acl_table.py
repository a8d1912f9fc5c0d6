# Access control lists against the algorithm of acl(5): who may do what, through two mounts (A, B) of a cluster, and what programs make of the lists.
import errno, os, random, struct, subprocess, sys, traceback
A, B = sys.argv[1], sys.argv[2]
BOTH = (A, B)
NONE = 0xffffffff
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
OWNER, NAMED, GROUP_OWNING, GROUP_NAMED, GROUP_OTHER = 1001, 1002, 4000, 4001, 4002
# User, and supplementary groups.
PEOPLE = [(OWNER, ()), (OWNER, (GROUP_NAMED,)), (NAMED, ()), (NAMED, (GROUP_NAMED, GROUP_OWNING)), (1003, (GROUP_NAMED,)),
          (1004, (GROUP_OWNING,)), (1005, (GROUP_NAMED, GROUP_OWNING)), (1006, ()), (1007, (4003,)), (1008, (GROUP_OTHER, GROUP_NAMED))]
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"

def pack(entries): return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)
def unpack(value): return [struct.unpack_from("<HHI", value, at) for at in range(4, len(value), 8)]
# Who asks for a list and for nothing else before may be shown what his kernel kept (docs/semantics.md).
def acl_of(path, kind): os.stat(path); return unpack(os.getxattr(path, kind))
def entries(owner, named, owning, group, other_group, mask, other):
    return [(USER_OBJ, owner, NONE), (USER, named, NAMED), (GROUP_OBJ, owning, NONE), (GROUP, group, GROUP_NAMED), (GROUP, other_group, GROUP_OTHER), (MASK, mask, NONE), (OTHER, other, NONE)]

# acl(5), «Access check algorithm».
def may(acl, user, groups, want):
    perm = {tag: p for tag, p, _ in acl if tag not in (USER, GROUP)}
    mask = perm.get(MASK, 7)
    if user == OWNER: return perm[USER_OBJ] & want == want
    for tag, p, who in acl:
        if tag == USER and who == user: return p & mask & want == want
    matching = [p for tag, p, who in acl if tag == GROUP and who in groups] + ([perm[GROUP_OBJ]] if GROUP_OWNING in groups else [])
    if matching: return any(p & mask & want == want for p in matching)
    return perm[OTHER] & want == want

def done(act, *args):
    try: act(*args); return True
    except OSError as e: assert e.errno == errno.EACCES, e; return False

def opens(path, flags): os.close(os.open(path, flags))
def makes(path): os.mkdir(path); os.rmdir(path)

def look(user, groups, acl, name):
    for m in BOTH:
        file, dir, inside = m + "/top/f" + name, m + "/top/d" + name, m + "/top/d" + name + "/inside"
        r, w, x, rw, wx = (may(acl, user, groups, p) for p in (4, 2, 1, 6, 3))
        for what, is_so, should in (
            ("read", done(opens, file, os.O_RDONLY), r), ("write", done(opens, file, os.O_WRONLY), w), ("both", done(opens, file, os.O_RDWR), rw),
            ("run", done(runs, file), x), ("list", done(os.listdir, dir), r), ("search", done(os.stat, inside), x), ("make", done(makes, f"{dir}/new{user}"), wx)):
            # With an empty mask the kernel lets named users and groups search, in what it has of the directory, as others may (docs/semantics.md).
            if what == "search" and acl[5][1] == 0: continue
            assert is_so == should, (m, what, user, groups, [(t, oct(p), who) for t, p, who in acl], is_so)

# Whether it may be run: the file is no program, and Linux says so only to who may.
def runs(path):
    try: os.execv(path, [path])
    except OSError as e:
        if e.errno != errno.ENOEXEC: raise

# One after the other: what is open for writing cannot be run.
def everybody(acl, name):
    for user, groups in PEOPLE:
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups(list(groups)); os.setresgid(user, user, user); os.setresuid(user, user, user)
                look(user, groups, acl, name); os._exit(0)
            except BaseException: traceback.print_exc(); os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0, (user, groups)

def make(m, name):
    with open(m + "/top/f" + name, "wb") as f: f.write(b"\x7fno program")
    os.mkdir(m + "/top/d" + name); os.close(os.open(m + "/top/d" + name + "/inside", os.O_CREAT, 0o666))
    for p in ("f", "d"): os.chown(m + "/top/" + p + name, OWNER, GROUP_OWNING)

os.umask(0)
os.mkdir(A + "/top")
r = random.Random(7)
# Each entry alone in the way, each masked, then by chance.
table = [(7, 7, 7, 7, 7, 7, 7), (0, 7, 7, 7, 7, 7, 7), (7, 0, 7, 7, 7, 7, 7), (7, 7, 0, 0, 7, 7, 7), (7, 7, 7, 7, 7, 0, 7), (7, 7, 7, 7, 7, 7, 0), (0, 0, 0, 4, 2, 7, 0), (0, 0, 4, 2, 1, 7, 0), (0, 6, 5, 3, 7, 5, 1), (4, 2, 1, 2, 4, 6, 3)]
table += [tuple(r.randrange(8) for _ in range(7)) for _ in range(6)]
for n, row in enumerate(table):
    sets, other = (A, B) if n % 2 == 0 else (B, A)
    acl, name = entries(*row), str(n)
    make(other, name)
    for p in ("f", "d"):
        os.setxattr(f"{sets}/top/{p}{name}", ACCESS, pack(acl))
        # What its maker has leased he is told of, also if he asks for nothing else.
        if n == 0: assert unpack(os.getxattr(f"{other}/top/{p}{name}", ACCESS)) == acl
        assert acl_of(f"{other}/top/{p}{name}", ACCESS) == acl
        # The group's bits of the mode are the mask.
        assert os.stat(f"{other}/top/{p}{name}").st_mode & 0o777 == row[0] << 6 | row[5] << 3 | row[6], row
    everybody(acl, name)
    if n % 5 == 0:
        # chmod changes owner, mask and others, and leaves the named and the owning group's entries.
        new = (r.randrange(8), *row[1:5], r.randrange(8), r.randrange(8))
        for p in ("f", "d"):
            os.chmod(f"{other}/top/{p}{name}", new[0] << 6 | new[5] << 3 | new[6])
            assert acl_of(f"{sets}/top/{p}{name}", ACCESS) == entries(*new), (row, new)
        everybody(entries(*new), name)
# Without named entries it is a mode, and no list is kept.
os.setxattr(A + "/top/f0", ACCESS, pack([(USER_OBJ, 6, NONE), (GROUP_OBJ, 4, NONE), (OTHER, 2, NONE)]))
assert os.stat(B + "/top/f0").st_mode & 0o777 == 0o642 and ACCESS not in os.listxattr(B + "/top/f0")

# What is made in a directory with a default list gets it, cut by the mode that was asked for; the umask counts for nothing.
row = (7, 5, 6, 7, 3, 7, 4)
default = entries(*row)
os.mkdir(A + "/top/h"); os.setxattr(A + "/top/h", DEFAULT, pack(default))
assert ACCESS not in os.listxattr(B + "/top/h"), "a default list gives no right to the directory itself"
os.umask(0o077)
for depth, (m, other) in enumerate(((B, A), (A, B))):
    at = "/top/h" + "/sub" * depth
    os.mkdir(m + at + "/sub", 0o777)
    assert acl_of(other + at + "/sub", DEFAULT) == default and acl_of(other + at + "/sub", ACCESS) == default
    for mode in (0o666, 0o640, 0o707, 0):
        p = f"{at}/file{mode:o}"; os.close(os.open(m + p, os.O_CREAT | os.O_WRONLY, mode))
        want = (row[0] & mode >> 6, *row[1:5], row[5] & mode >> 3 & 7, row[6] & mode & 7)
        assert acl_of(other + p, ACCESS) == entries(*want), (mode, want)
        assert DEFAULT not in os.listxattr(other + p) and os.stat(other + p).st_mode & 0o777 == want[0] << 6 | want[5] << 3 | want[6]
    os.mkfifo(m + at + "/pipe", 0o600); assert os.stat(other + at + "/pipe").st_mode & 0o777 == 0o600
    os.symlink("x", m + at + "/link")
# The rights that are inherited count, for all clients.

os.setxattr(A + "/top", DEFAULT, pack(default)); make(B, "i")
assert acl_of(A + "/top/di", ACCESS) == default
os.chmod(A + "/top/di", 0o774); os.chmod(A + "/top/fi", 0o774)
everybody(default, "i")
os.removexattr(A + "/top", DEFAULT); assert DEFAULT not in os.listxattr(B + "/top")
os.mkdir(B + "/top/plain", 0o777); assert os.stat(A + "/top/plain").st_mode & 0o777 == 0o700

# Programs: shown, taken away, put back, copied and packed they are the same.
def sh(script): return subprocess.run(["bash", "-euo", "pipefail", "-c", script], check=True, stdout=subprocess.PIPE, text=True).stdout
shown = lambda dir: "\n\n".join(sorted(sh(f"cd {dir}; getfacl -R -n -p .").split("\n\n")))
before = shown(A + "/top")
assert before == shown(B + "/top") and before.count("user:1002:") > 30 and "default:group:4001:rwx" in before and "default:mask::rwx" in before
sh(f"cd {A}/top; getfacl -R -n -p . > ../kept; setfacl -R -b .")
bare = shown(B + "/top")
assert "1002" not in bare and "default" not in bare
sh(f"cd {B}/top; setfacl --restore=../kept"); assert shown(A + "/top") == before
sh(f"setfacl -m u:1002:r,g:4001:rw,m::r {A}/top/plain"); one = sh(f"getfacl -n -p {B}/top/plain")
assert {"user:1002:r--", "group:4001:rw-#effective:r--", "mask::r--"} <= {"".join(line.split()) for line in one.splitlines()}, one
sh(f"setfacl -x u:1002,g:4001,m {B}/top/plain"); assert ACCESS not in os.listxattr(A + "/top/plain")
before = shown(A + "/top")
sh(f"cp -a {A}/top {B}/copied; tar --acls --numeric-owner -C {B} -cf {A}/packed.tar top; mkdir {A}/out; tar --acls --numeric-owner -C {A}/out -xpf {B}/packed.tar")
assert shown(A + "/copied") == before and shown(B + "/out/top") == before
