#!/bin/bash
# Makes one kernel look like two hosts with an RDMA network between them: hosts.sh [CABLES [MTU]], as root.
#
#            host a                          host b
# cable 0    v0  rxe0  10.9.0.1  fd09::1     v1  rxe1  10.9.0.2  fd09::2
# cable 1    v2  rxe2  10.9.1.1  fd09:1::1   v3  rxe3  10.9.1.2  fd09:1::2
#
# Software RoCE knows the initial network namespace only, so both hosts are in it. Each host's packets to the other are sent
# over the cable because the rules that say so are asked before the table of local addresses, which would choose the loopback
# device; what comes out of the cable is asked for local addresses first.
#
# Commands are collected and given to one process each: starting one is slow where the machine is emulated.
set -eu
cables=${1:-1} mtu=${2:-1500}
links='link set lo up' both='rule add pref 1000 lookup local
rule del pref 0' ip4='' ip6='' devices=''

# Number of the end, its interface, own and other address of both families.
end() {
    local number=$1 interface=$2 own=$3 other=$4 own6=$5 other6=$6 table=$((100 + $1))
    links+="
link set $interface up
address add $own/24 dev $interface
address add $own6/64 dev $interface nodad"
    both+="
rule add pref $((10 + number)) iif $interface lookup local"
    ip4+="
rule add pref $table to $other lookup $table
route add $other dev $interface src $own table $table"
    ip6+="
rule add pref $table to $other6 lookup $table
route add $other6 dev $interface src $own6 table $table"
    devices+="
link add rxe$number type rxe netdev $interface"
}

set_up_interface() {
    local name folder=/proc/sys/net/ipv4/conf/$1
    for name in accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2; do
        echo "${name#*=}" >"$folder/${name%=*}"
    done
    echo 0 >"/proc/sys/net/ipv6/conf/$1/accept_dad"
}

# A device learns its addresses from events of the network, a moment later: both families, and the link-local one.
wait_for_gids() {
    local device=$1 tries=0
    until [ "$(grep -Lx '[0:]*' "/sys/class/infiniband/$device/ports/1/gids/"[0-2] | wc -l)" = 3 ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || { echo "$device has not got its addresses" >&2; return 1; }
        sleep 0.1
    done
}

modprobe -a rdma_rxe ib_uverbs smc smc_diag
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
for ((number = 0; number < cables; number++)); do
    a=$((2 * number)) b=$((2 * number + 1)) net=fd09:$number:
    [ "$number" != 0 ] || net=fd09:
    ip link add "v$a" mtu "$mtu" type veth peer name "v$b" mtu "$mtu"
    set_up_interface "v$a"
    set_up_interface "v$b"
    end "$a" "v$a" "10.9.$number.1" "10.9.$number.2" "$net:1" "$net:2"
    end "$b" "v$b" "10.9.$number.2" "10.9.$number.1" "$net:2" "$net:1"
done
ip -batch - <<<"$links"
ip -4 -batch - <<<"$both$ip4"
ip -6 -batch - <<<"$both$ip6"
rdma -b - <<<"${devices#$'\n'}"
for ((number = 0; number < 2 * cables; number++)); do
    wait_for_gids "rxe$number"
done
