# Two hosts on one machine, for the demonstration and the benchmarks; to be sourced.
#
# hosts_up DIR makes two namespaces and an sshd in the far one and sets LAB (a folder in DIR), SSH (what goes to
# `haul -e`) and FAR_ADDRESS; `near CMD...` runs in the near one. loopback_up DIR is the same without namespaces.
# Both are undone when the script ends, however it ends. What is started is ended by its process id.

LAB=""
SSHD_PID=""
NEAR_NS=""
FAR_NS=""

say() { printf '\n== %s\n' "$*"; }

need_root() {
    if [ "$(id -u)" -ne 0 ]; then
        echo "$1: this needs root, for network namespaces and an sshd; try: sudo -E make $1" >&2
        exit 1
    fi
}

hosts_up() {
    hosts_lab "$1"
    NEAR_NS=haul-$$-near FAR_NS=haul-$$-far FAR_ADDRESS=10.79.0.2
    ip netns add "$NEAR_NS"
    ip netns add "$FAR_NS"
    ip -n "$NEAR_NS" link add veth0 type veth peer name veth0 netns "$FAR_NS"
    ip -n "$NEAR_NS" addr add 10.79.0.1/24 dev veth0
    ip -n "$FAR_NS" addr add $FAR_ADDRESS/24 dev veth0
    for namespace in "$NEAR_NS" "$FAR_NS"; do
        ip -n "$namespace" link set lo up
        ip -n "$namespace" link set veth0 up
    done
    hosts_sshd 22022 nsenter --net="/run/netns/$FAR_NS"
}

loopback_up() {
    hosts_lab "$1"
    FAR_ADDRESS=127.0.0.1
    # A port of the range that the kernel hands out to nobody.
    hosts_sshd $((20000 + $$ % 10000))
}

near() {
    (near_exec "$@")
}

# The same in place of this shell: in the background, `$!` is then the program's own process id.
near_exec() {
    if [ -n "$NEAR_NS" ]; then exec nsenter --net="/run/netns/$NEAR_NS" "$@"; else exec "$@"; fi
}

# The process ids of what serves the far end; shells and sshd do not count.
far_hauls() {
    local process
    for process in /proc/[0-9]*; do
        { tr '\0' '\n' <"$process/environ"; } 2>/dev/null | grep -qx "HAUL_DEMO=$$" || continue
        case "$(readlink "$process/exe" 2>/dev/null)" in
            "" | */sh | */bash | */dash | */sshd*) ;;
            *) echo "${process#/proc/}" ;;
        esac
    done
}

hosts_lab() {
    LAB=$(mktemp -d "$1/haul-XXXXXX")
    trap hosts_down EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    mkdir -p "$LAB/bin" "$LAB/home" /run/sshd
    ln -s "$HAUL" "$LAB/bin/haul"
}

hosts_sshd() {
    local port=$1
    shift
    ssh-keygen -q -t ed25519 -N '' -f "$LAB/host_key"
    ssh-keygen -q -t ed25519 -N '' -f "$LAB/user_key"
    cp "$LAB/user_key.pub" "$LAB/authorized_keys"
    cat >"$LAB/sshd_config" <<END
ListenAddress $FAR_ADDRESS
Port $port
HostKey $LAB/host_key
AuthorizedKeysFile $LAB/authorized_keys
PidFile none
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding no
SetEnv HOME=$LAB/home PATH=$LAB/bin:/usr/bin:/bin:/usr/sbin:/sbin HAUL_DEMO=$$
END
    echo "[$FAR_ADDRESS]:$port $(cat "$LAB/host_key.pub")" >"$LAB/known_hosts"
    "$@" /usr/sbin/sshd -D -e -f "$LAB/sshd_config" 2>"$LAB/sshd.log" &
    SSHD_PID=$!
    for _ in $(seq 200); do
        grep -qs 'Server listening' "$LAB/sshd.log" && break
        sleep 0.05
    done
    SSH="ssh -F none -p $port -i $LAB/user_key -o IdentitiesOnly=yes -o UserKnownHostsFile=$LAB/known_hosts"
    SSH="$SSH -o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes"
    if ! near $SSH "$FAR_ADDRESS" true; then
        echo "sshd does not answer:" >&2
        cat "$LAB/sshd.log" >&2
        exit 1
    fi
}

hosts_down() {
    local job
    for job in $(jobs -p); do
        kill "$job" 2>/dev/null || true
    done
    [ -z "$SSHD_PID" ] || wait "$SSHD_PID" 2>/dev/null || true
    [ -z "$NEAR_NS" ] || ip netns del "$NEAR_NS" 2>/dev/null || true
    [ -z "$FAR_NS" ] || ip netns del "$FAR_NS" 2>/dev/null || true
    [ -z "$LAB" ] || rm -rf "$LAB"
}

# Median and spread of the numbers on stdin: "MEDIAN (MIN .. MAX)".
median() {
    sort -g | awk 'function show(x) { return sprintf(x >= 100 ? "%.0f" : "%.3g", x) }
        { v[NR] = $1 } END {
        if (NR == 0) { print "-"; exit }
        m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2
        printf "%s (%s .. %s)", show(m), show(v[1]), show(v[NR]) }'
}

# "WALL CPU" seconds of a command, its children's time included.
timed() {
    local TIMEFORMAT='%R %U %S'
    { time "$@" >/dev/null 2>"$LAB/err" || { cat "$LAB/err" >&2; exit 1; }; } 2>&1 | awk '{ print $1, $2 + $3 }'
}
