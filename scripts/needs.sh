#!/bin/bash
# Installs what a make target needs and this machine lacks: needs.sh PROFILE, or needs.sh packages NAME...
# Profiles: build, demo, test, bench, fuzz, lab, kernel, pfs-gluster, pfs-moosefs, pfs-ceph.
#
# Debian and Ubuntu only; elsewhere it names the commands that are missing. What is there is left alone,
# and when nothing is missing nothing is run.
set -euo pipefail

profile=${1:-test}

# command:package, grouped by what needs them.
build=(cc:gcc)
# The fuzzer itself is C++.
fuzz=("${build[@]}" c++:g++)
# A kernel in user mode, for the lab: 41 MB to fetch, 117 MB installed.
kernel=(linux.uml:user-mode-linux modprobe:kmod ethtool:ethtool ip:iproute2 unshare:util-linux
    ping:iputils-ping iperf3:iperf3)
gluster=(glusterd:glusterfs-server gluster:glusterfs-cli glusterfs:glusterfs-client)
moosefs=(mfsmaster:moosefs-master mfschunkserver:moosefs-chunkserver mfsmount:moosefs-client)
ceph=(ceph-mon:ceph-mon ceph-mgr:ceph-mgr ceph-osd:ceph-osd ceph-mds:ceph-mds ceph-fuse:ceph-fuse ceph:ceph-common)
# What every parallel file system of the lab stands on.
pfs=(ip:iproute2 nsenter:util-linux unshare:util-linux losetup:mount mkfs.xfs:xfsprogs)
demo=("${build[@]}" ssh:openssh-client ssh-keygen:openssh-client sshd:openssh-server ip:iproute2 nsenter:util-linux)
# Servers that the tests of FTP start for themselves, and clients of ours; vsftpd, which cannot be installed beside proftpd, is fetched
# by peers.sh.
ftp=(proftpd:proftpd-mod-crypto globus-gridftp-server:globus-gridftp-server-progs openssl:openssl
    globus-url-copy:globus-gass-copy-progs lftp:lftp curl:curl python3:python3)
# A batch system whose jobs start the servers of volumes: 6 MB to fetch, 20 MB installed.
slurm=(slurmctld:slurmctld slurmd:slurmd srun:slurm-client munged:munge)
test=("${demo[@]}" "${kernel[@]}" "${ftp[@]}" "${slurm[@]}" strace:strace b3sum:b3sum setpriv:util-linux script:bsdutils
    prlimit:util-linux mkfs.xfs:xfsprogs xfs_io:xfsprogs mkfs.ext4:e2fsprogs mkfs.btrfs:btrfs-progs mkfs.vfat:dosfstools
    ip:iproute2 ping:iputils-ping iperf3:iperf3 fusermount3:fuse3 rsync:rsync getfattr:attr getfacl:acl
    "${gluster[@]}" "${moosefs[@]}")
bench=("${demo[@]}" rsync:rsync iperf3:iperf3 fio:fio jq:jq b3sum:b3sum ping:iputils-ping fusermount3:fuse3
    rclone:rclone globus-url-copy:globus-gass-copy-progs globus-gridftp-server:globus-gridftp-server-progs
    xrdcp:xrootd-client xrootd:xrootd-server lftp:lftp curl:curl socat:socat
    python3:python3)
lab=("${demo[@]}" ping:iputils-ping iperf3:iperf3 rsync:rsync fusermount3:fuse3)

case $profile in
    build) wanted=("${build[@]}") ;;
    demo) wanted=("${demo[@]}") ;;
    test) wanted=("${test[@]}") ;;
    bench) wanted=("${bench[@]}") ;;
    fuzz) wanted=("${fuzz[@]}") ;;
    lab) wanted=("${lab[@]}") ;;
    kernel) wanted=("${kernel[@]}") ;;
    packages) wanted=() ;;
    pfs-gluster) wanted=("${pfs[@]}" "${gluster[@]}") ;;
    pfs-moosefs) wanted=("${pfs[@]}" "${moosefs[@]}") ;;
    pfs-ceph) wanted=("${pfs[@]}" "${ceph[@]}") ;;
    *)
        echo "needs.sh: no profile '$profile'; there are build, demo, test, bench, fuzz, lab, kernel and pfs-gluster, pfs-moosefs, pfs-ceph" >&2
        exit 2
        ;;
esac

PATH=$PATH:/usr/sbin:/sbin

if ! command -v cargo >/dev/null; then
    echo "needs.sh: cargo is missing; install Rust 1.90 or later, for instance by https://rustup.rs" >&2
    exit 1
fi

commands=() packages=()
for pair in "${wanted[@]}"; do
    command -v "${pair%%:*}" >/dev/null && continue
    # A machine has one FTP server; another one is not removed for the sake of a test.
    if [ "${pair%%:*}" = proftpd ] && dpkg-query -W -f '${Status} ${Provides}\n' 2>/dev/null | grep -q 'installed .*ftp-server'; then
        continue
    fi
    commands+=("${pair%%:*}")
    [[ " ${packages[*]} " == *" ${pair##*:} "* ]] || packages+=("${pair##*:}")
done
# TLS of ProFTPD is a package of its own, and no command.
if [ "$profile" = test ] && command -v proftpd >/dev/null && [ ! -e /usr/lib/proftpd/mod_tls.so ] &&
    dpkg-query -W proftpd-core >/dev/null 2>&1; then
    commands+=(mod_tls.so) packages+=(proftpd-mod-crypto)
fi
if [ "$profile" = packages ]; then
    for package in "${@:2}"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || packages+=("$package")
    done
    commands=("${packages[@]}")
fi
if [ ${#packages[@]} -eq 0 ]; then
    exit 0
fi

if ! command -v apt-get >/dev/null; then
    echo "needs.sh: these commands are missing: ${commands[*]}" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
        echo "needs.sh: not root; please run: sudo apt-get install ${packages[*]}" >&2
        # Tests that lack something are skipped and counted; only a build that cannot work ends here.
        [ "$profile" = test ] && command -v cc >/dev/null && exit 0
        exit 1
    fi
    as_root=(sudo)
fi

# A package that brings a daemon starts it when it is installed. None is wanted here: the tests start their
# own sshd. The policy file says so to the package manager, and is removed again.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap '"${as_root[@]}" rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
fi

# Whoever else installs (unattended-upgrades on a fresh machine) is waited for: dpkg's lock by apt itself, and the lock
# of the lists, for which apt never waits, here. After that time the error stands.
LOCK_WAITS=300
apt() {
    local waited=0
    while ! "${as_root[@]}" apt-get -o DPkg::Lock::Timeout="$LOCK_WAITS" "$@" >>"$log" 2>&1; do
        if ! tail -n 5 "$log" | grep -qi 'could not get lock\|unable to lock\|unable to acquire' || [ "$waited" -ge "$LOCK_WAITS" ]; then
            return 1
        fi
        [ "$waited" -gt 0 ] || echo "needs.sh: waiting for another installation to end: $(grep -i 'lock' "$log" | tail -n 1)"
        sleep 5
        waited=$((waited + 5))
    done
}

echo "needs.sh: installing ${packages[*]} (another installation is waited for, up to $LOCK_WAITS s)"
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
if ! { apt update && apt install -y --no-install-recommends "${packages[@]}"; }; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "needs.sh: could not install ${packages[*]}" >&2
    exit 1
fi
rm -f "$log"
