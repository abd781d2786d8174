#!/usr/bin/env bash
# Simulates two hosts on one machine: two network namespaces joined by a connection of limited
# bandwidth and latency, with mpirun between them. Needs root and iproute2. Removes everything when
# it ends.
#
#   bench/two_hosts.sh RATE DELAY MPIRUN-ARGUMENTS...
#   bench/two_hosts.sh 1gbit 0.1ms -n 2 build/bin/thimble train --data book.txt -o runs/book
#
# RATE and DELAY are as in tc (each way; the delay in ms). "none": not limited. If the kernel has no
# netem, bench/cable.py adds the delay.
set -euo pipefail

rate="${1:?rate, as tc spells it: 1gbit, 100mbit, none}"
delay="${2:?delay each way: 0.1ms, 5ms, none}"
shift 2

here="$(cd "$(dirname "$0")" && pwd)"
name="th$$"
work="$(mktemp -d)"
cable=""
# shellcheck disable=SC2317  # called by the trap
cleanup() {
  [ -z "$cable" ] || kill "$cable" 2>/dev/null || true
  for side in a b; do
    ip netns pids "$name$side" 2>/dev/null | xargs -r kill 2>/dev/null || true
    ip netns del "$name$side" 2>/dev/null || true
    ip link del "$name$side" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap cleanup EXIT

# place SIDE INTERFACE NUMBER: makes the interface the cable of that host.
place() {
  ip link set "$2" netns "$name$1"
  ip -n "$name$1" link set lo up
  ip -n "$name$1" link set "$2" name cable
  ip -n "$name$1" link set cable up
  ip -n "$name$1" addr add "10.99.0.$3/24" dev cable
}

netem=no
ip link add "${name}x" type veth peer name "${name}y"
if tc qdisc add dev "${name}x" root netem delay 1ms 2>/dev/null; then netem=yes; fi
ip link del "${name}x"

ip netns add "${name}a"
ip netns add "${name}b"
if [ "$delay" != none ] && [ "$netem" = no ]; then
  ip link add "${name}a" type veth peer name "${name}x"
  ip link add "${name}b" type veth peer name "${name}y"
  ip link set "${name}a" up
  ip link set "${name}b" up
  place a "${name}x" 1
  place b "${name}y" 2
  python3 "$here/cable.py" "${name}a" "${name}b" "${delay%ms}" &
  cable=$!
else
  ip link add "${name}x" type veth peer name "${name}y"
  place a "${name}x" 1
  place b "${name}y" 2
fi
for side in a b; do
  if [ "$netem" = yes ]; then
    limits=()
    [ "$delay" = none ] || limits+=(delay "$delay")
    [ "$rate" = none ] || limits+=(rate "$rate")
    if ((${#limits[@]})); then tc -n "$name$side" qdisc add dev cable root netem limit 100000 "${limits[@]}"; fi
  elif [ "$rate" != none ]; then
    tc -n "$name$side" qdisc add dev cable root tbf rate "$rate" burst 256kb latency 200ms
  fi
done

# mpirun runs this instead of ssh: HOST COMMAND... The other host needs its own host name.
cat >"$work/agent" <<EOF
#!/bin/sh
shift
exec ip netns exec ${name}b unshare --uts sh -c 'hostname ${name}-other; exec "\$@"' sh sh -c "\$*"
EOF
chmod +x "$work/agent"

root=()
((EUID != 0)) || root=(--allow-run-as-root)
status=0
ip netns exec "${name}a" mpirun "${root[@]}" --host 10.99.0.1:4,10.99.0.2:4 --map-by node --bind-to none \
  --mca plm_rsh_agent "$work/agent" --mca btl tcp,self --mca btl_tcp_if_include cable \
  --mca oob_tcp_if_include cable -x OMP_NUM_THREADS -x OMP_WAIT_POLICY -x LD_LIBRARY_PATH "$@" || status=$?
exit "$status"
