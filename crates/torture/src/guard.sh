# guard.sh PLACE GLOWFS PID: waits until the process PID ends or says so, then takes down what it left in PLACE.
# Not a part of that process, so that no way to end it (a signal, a panic, an operation that hangs) leaves a cluster behind.
place=$1 glowfs=$2 pid=$3
trap '' INT TERM HUP PIPE
cd /
# When the process $1 began: a later one may have its number.
started() {
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
    set -- ${stat##*) }
    case $1 in [ZX]) return 1 ;; esac
    [ $# -ge 20 ] && began_now=${20}
}
# Killed, but held by an operation that hangs.
dying() {
    while read -r key value; do
        case $key in SigPnd: | ShdPnd:) case $value in *[13579bdf]??) return 0 ;; esac ;; esac
    done <"/proc/$pid/status"
    return 1
}
started "$pid" || exit 0
began=$began_now
while :; do
    sleep 0.5
    [ -d "$place" ] && [ ! -e "$place/leave" ] || exit 0
    [ ! -e "$place/down" ] || break
    # All stays but what hangs in the mounts, which would keep that process from ending.
    if [ -e "$place/cut" ]; then
        for at in mnt1 mnt2 mnt3; do umount -f "$place/$at"; done
        exit 0
    fi
    started "$pid" && [ "$began_now" = "$began" ] && ! dying || break
done 2>/dev/null
echo "taking down what is left in $place" >&2
# The mounts' daemons first: what hangs in a mount ends with them.
for file in "$place"/*.pid; do
    { read -r daemon since <"$file"; } 2>/dev/null || continue
    started "$daemon" && [ "$began_now" = "$since" ] || continue
    case $(readlink "/proc/$daemon/exe") in "$glowfs"*) kill -KILL "$daemon" ;; esac
done
for at in mnt3 mnt2; do umount -l "$place/$at" 2>/dev/null; done
timeout -k 5 120 "$glowfs" dev down --dir "$place/cluster" >/dev/null 2>&1
[ ! -s "$place/mounted" ] || while read -r disk; do umount -l "$disk" 2>/dev/null; done <"$place/mounted"
[ ! -d "$place/cluster" ] || timeout -k 5 120 "$glowfs" dev destroy --yes --dir "$place/cluster" >/dev/null || true
if grep -qF " $place/" /proc/self/mountinfo; then
    echo "$place stays: something is mounted below it still" >&2
    exit 1
fi
rm -rf --one-file-system "$place"
echo "$place is gone" >&2
