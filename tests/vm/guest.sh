#!/bin/bash
# The first program of the machine: guest.sh OUT. What it does is in OUT/order, which boot.py wrote; what becomes of it
# goes to OUT: started, output.log, kernel.log and, last and whole or not at all, status.
set -u
out=$1
. "$out/order" # trees, cables, mtu, seconds, settings, words

main() {
    exec >>"$out/output.log" 2>&1
    touch "$out/started"
    cached_trees || return
    "${0%/*}/hosts.sh" "$cables" "$mtu" || return
    ulimit -l unlimited
    touch "$out/ready" || return
    export "${settings[@]}"
    timeout --kill-after=10 "$seconds" "${words[@]}"
}

# The host's files once more, now with what was read kept in memory: the machine's own mount asks the host each time, and
# that is most of what starting Python takes. The host's files must not change while the machine runs.
cached_trees() {
    mkdir -p /run/host /run/out
    mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=512000,ro cached /run/host || return
    mount --bind "$out" /run/out
    for tree in "${trees[@]}"; do
        mount --bind "/run/host$tree" "$tree" || return
    done
    [ -w "$out" ] || mount --bind /run/out "$out"
}

main
status=$?
out=/run/out
[ -w "$out" ] || out=$1
dmesg >"$out/kernel.log"
echo "$status" >"$out/status.part"
sync
mv "$out/status.part" "$out/status"
