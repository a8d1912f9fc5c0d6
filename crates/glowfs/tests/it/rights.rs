//! Who may do something by a privilege that the kernel knows of and meta does not.

use crate::harness::{Cluster, Mount, sh};

/// `as PRIVILEGES COMMAND`: as user 1000, with these and no others.
const AS: &str = r#"
    as() { local caps=$1; shift; setpriv --reuid=1000 --regid=1000 --clear-groups --inh-caps="$caps" --ambient-caps="$caps" -- "$@"; }
    none() { setpriv --reuid=1000 --regid=1000 --clear-groups -- "$@"; }
    no() { if "$@" 2>/dev/null; then echo "«$*» was let through" >&2; exit 1; fi; }
    chmod 755 .. .
"#;

#[test]
fn owners_and_modes_are_changed_by_who_has_the_privilege() {
    let c = Cluster::up("rights1");
    let script = r#"
        echo mine > own; chown 1000:1000 own; echo root > roots; chmod 600 roots
        no none chown 1001 own
        as +chown chown 1001:1002 own; test "$(stat -c %u:%g own)" = 1001:1002
        # What has just been given away: its kernel was told of that by the answer only.
        no as +chown chmod 666 own
        as +fowner chmod 666 own; test "$(stat -c %a own)" = 666
        as +chown,+fowner sh -c 'chown 1003 own && chmod 640 own && chown 1004 own'; test "$(stat -c %u:%a own)" = 1004:640
        as +fowner touch -d 2001-01-01 own; test "$(stat -c %Y own)" = "$(date -d 2001-01-01 +%s)"
        as +fowner setfacl -m u:1009:r own; getfacl -n own | grep -q user:1009:r
        as +sys_admin setfattr -n trusted.x -v 1 roots; as +sys_admin getfattr -n trusted.x roots | grep -q 1; no none getfattr -n trusted.x roots
        no as +fowner setfattr -n trusted.y -v 1 roots
    "#;
    sh(&c.mnt, &format!("{AS}{script}"));
}

#[test]
fn what_modes_forbid_is_done_by_who_has_the_privilege() {
    let c = Cluster::up("rights2");
    c.retune("meta-1", "[tuning]\ncapability_ms = 1000\n");
    let script = r#"
        echo secret > secret; chmod 600 secret; mkdir -m 700 closed; echo x > closed/x
        for act in 'cat secret' 'ls closed' 'cat closed/x' 'touch closed/new' 'mkdir closed/d' 'ln -s x closed/s' 'rm -f closed/x' 'mv closed/x closed/y' 'sh -c "echo more >> secret"'; do
            no none bash -c "$act"; no as +chown bash -c "$act"
        done
        test "$(as +dac_read_search cat secret)" = secret
        test "$(as +dac_read_search ls closed)" = x
        # Longer than what he was given to read it by counts.
        head -c 8M /dev/urandom > large; chmod 600 large
        as +dac_read_search python3 -c 'import os, time; f = os.open("large", os.O_RDONLY); os.pread(f, 4096, 0); time.sleep(2.5); assert len(os.pread(f, 4096, 6 << 20)) == 4096'
        no as +dac_read_search touch closed/new
        as +dac_override bash -euc 'echo more >> secret; touch closed/new; mkdir closed/d; ln -s x closed/s; ln closed/x closed/hard; mv closed/x closed/y; rm closed/hard
            mv closed/y y; mkdir closed/d/e; rmdir closed/d/e; setfattr -n user.a -v 1 secret; truncate -s 3 secret; python3 -c "import os; os.open(\"closed\", os.O_TMPFILE | os.O_RDWR)"'
        test "$(cat secret)" = sec; test "$(ls closed | tr '\n' ' ')" = "d new s "; test "$(stat -c %u closed/new closed/d | tr '\n' ' ')" = "1000 1000 "
        as +dac_override bash -euc 'cd closed; flock new true; exec 3<../secret; flock -s 3'
        as +mknod mknod own c 1 3 2>/dev/null && exit 1
        mkdir -m 777 open; as +mknod mknod open/null c 1 3; test -c open/null; no as +dac_override mknod open/zero c 1 5
    "#;
    sh(&c.mnt, &format!("{AS}{script}"));
}

/// The kernel checks the like of it for no attribute of ours, and of what a name leads to it does not tell.
#[test]
fn what_only_meta_checks_no_privilege_helps() {
    let c = Cluster::up("rights3");
    let script = r#"
        mkdir -m 777 d; mkdir -m 1777 sticky; echo x > sticky/x; mkdir -m 777 tree; mkdir -m 700 tree/closed; touch tree/closed/x
        no as +dac_override,+fowner setfattr -n glowfs.layout -v chunk_size=65536 d
        no as +dac_override,+fowner setfattr -n glowfs.remove_tree -v tree tree
        no none rm -f sticky/x; test -e sticky/x
        chattr +i sticky/x 2>/dev/null || exit 0
        no as +fowner,+dac_override chmod 600 sticky/x; no as +dac_override bash -c 'echo y >> sticky/x'
        chattr -i sticky/x
    "#;
    sh(&c.mnt, &format!("{AS}{script}"));
}

/// As in a container whose root is not user 0.
#[test]
fn the_root_of_a_user_namespace_gives_files_to_its_users() {
    let c = Cluster::up("rights4");
    let script = r#"
        mkdir home; chown 1000:1000 home
        # User 1000 is root there, and has the users from 100000 on.
        setpriv --reuid=1000 --regid=1000 --clear-groups -- unshare -U sleep 60 & inside=$!
        for i in 1 2 3 4 5 6 7 8 9; do [ "$(readlink /proc/$inside/ns/user)" != "$(readlink /proc/self/ns/user)" ] && break; sleep 0.2; done
        for ids in uid gid; do /usr/bin/printf '0 1000 1\n1 100000 1000\n' > /proc/$inside/${ids}_map; done
        within() { nsenter -U -t $inside -S 0 -G 0 --wd="$PWD/home" "$@"; }
        within bash -euxc '
            echo a > f; chown 33:33 f; chmod 600 f; test "$(cat f)" = a; mkdir -m 700 d; chown 5:5 d; touch d/x; rm d/x; rmdir d'
        test "$(stat -c %u:%g:%a home/f)" = 100032:100032:600
        # What is of nobody there it has no privilege over.
        echo roots > home/roots; chmod 600 home/roots
        no within cat roots; no within chown 33 roots
        grep -q overlay /proc/filesystems || exit 0
        # An overlay that the root of that namespace has mounted.
        mkdir upper work; chown 1000:1000 upper work
        mkdir -p "$LOCAL/low/home/d" "$LOCAL/merged"; echo below > "$LOCAL/low/home/f"; chown -R 1000:1000 "$LOCAL/low" "$LOCAL/merged"; chmod 755 "$LOCAL" "$LOCAL/.."
        within unshare -m bash -euxc '
            mount -t overlay overlay -o "userxattr,lowerdir=$LOCAL/low,upperdir=$MNT/upper,workdir=$MNT/work" "$LOCAL/merged"; cd "$LOCAL/merged/home"
            rm f; echo new > f; chown 33:33 f; mv d e; echo x > e/x; chmod 600 e/x; chown 5 e/x; rm -r e
            setpriv --reuid=33 --regid=33 --clear-groups bash -c "echo more >> f"; mkdir -p a/b/c; chown -R 77:77 a; rm -r a; test "$(cat f | tr "\n" " ")" = "new more "'
        test "$(stat -c %u upper/home/f)" = 100032
    "#;
    let (local, mnt) = (c.local.display(), c.mnt.display());
    sh(
        &c.mnt,
        &format!("export LOCAL='{local}' MNT='{mnt}'\n{AS}\ntrap 'kill $inside' EXIT\n{script}"),
    );
}

/// His kernel may go by what it was told before: that is no privilege.
#[test]
fn who_had_a_right_until_another_client_took_it_has_it_no_more() {
    let c = Cluster::up("rights5");
    let other = Mount::new(&c, "mnt2");
    let script = r#"
        chmod 755 .. .
        python3 - <<'PY'
import errno, os, stat, subprocess
def there(script): subprocess.run(["bash", "-euc", script], cwd=os.environ["OTHER"], check=True)
def act_as(uid):
    os.seteuid(0); os.setegid(uid); os.seteuid(uid)
def refused(act):
    try: act()
    except OSError as e:
        # A directory that is gone, too, changes no more.
        assert e.errno in (errno.EPERM, errno.EACCES, errno.ESTALE), e
        return
    raise AssertionError("it was let through")
os.setgroups([])
for kind in ("file", "directory"):
    for how in ("nothing", "stat", "removed"):
        act_as(0); os.mkdir("home"); os.chown("home", 1000, 1000); act_as(1000)
        if kind == "file": os.close(os.open("home/x", os.O_CREAT | os.O_RDWR, 0o700))
        else: os.mkdir("home/x", 0o700)
        fd = os.open("home/x", os.O_RDONLY); os.fstat(fd)
        there("chown 0:0 home/x; chmod 700 home/x")
        if how == "stat":
            for _ in range(20): os.fstat(fd)
        if how == "removed": os.unlink("home/x") if kind == "file" else os.rmdir("home/x")
        refused(lambda: os.fchmod(fd, 0o777)); refused(lambda: os.fchown(fd, 1000, -1)); refused(lambda: os.fchmod(fd, 0o4777))
        act_as(0)
        assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o700, (kind, how)
        os.close(fd); there("rm -rf home")
# What a list gave, and what it gives no more.
open("f", "w").write("x"); os.chmod("f", 0o600); subprocess.run(["setfacl", "-m", "u:1000:rw", "f"], check=True)
act_as(1000); os.close(os.open("f", os.O_RDONLY)); there("setfacl -x u:1000 f"); refused(lambda: os.open("f", os.O_RDONLY))
PY
    "#;
    sh(&c.mnt, &format!("export OTHER='{}'\n{script}", other.path.display()));
}
