#!/usr/bin/env bash
# The figures of docs/lab/2026-11-several-ranks.md: training on 1 and 2 ranks, as processes on one
# host and on two simulated hosts with a limited connection (bench/two_hosts.sh), and the cost of a
# sum over ranks.
# Measures in rounds, one run of each variant per round, and prints medians.
#
#   cmake --build build --target thimble thimble_mpi ranks_bench
#   bench/scaling.sh build/bin 5 > scaling.txt        (root, for two hosts)
set -euo pipefail

bin="${1:?folder of thimble, libthimble_mpi.so and ranks_bench}"
rounds="${2:-5}"
here="$(cd "$(dirname "$0")" && pwd)"
bin="$(cd "$bin" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export OMP_WAIT_POLICY=passive LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}"
root=()
((EUID != 0)) || root=(--allow-run-as-root)

# A text of 2 MB in which there is something to learn.
for i in $(seq 1 40000); do echo "line $((i * i % 9973)): the cat sat on mat $((i % 37)) of $((i % 11))."; done >"$work/text.txt"
"$bin/thimble" data build "$work/text.txt" --tokenizer bytes -o "$work/shards" --quiet >/dev/null
words=(train --data "$work/shards" --preset quick --set dtype=f32 --set muon_dtype=f32 --batch-tokens 4096
  --steps 6 --val-every 0 --force --quiet --json)

# measure NAME COMMAND...: appends the tokens per second of one run to the variant's file.
measure() {
  local name="$1"
  shift
  "$@" "${words[@]}" -o "$work/run" 2>"$work/err" |
    sed -n 's/.*"tokens_per_second": *\([0-9.e+]*\).*/\1/p' >>"$work/$name" || cat "$work/err" >&2
}
median() { sort -g "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

processes=(mpirun "${root[@]}" --oversubscribe --bind-to none)
for ((round = 0; round < rounds; ++round)); do
  OMP_NUM_THREADS=1 measure 1x1 "$bin/thimble"
  OMP_NUM_THREADS=2 measure 1x2 "$bin/thimble"
  OMP_NUM_THREADS=1 measure 2x1 "${processes[@]}" -n 2 "$bin/thimble"
  for cable in none,none 1gbit,none 100mbit,none none,1ms none,5ms; do
    OMP_NUM_THREADS=1 measure "hosts-$cable" "$here/two_hosts.sh" "${cable%,*}" "${cable#*,}" -n 2 "$bin/thimble"
  done
done

echo "load: $(cut -d' ' -f1-3 /proc/loadavg), processors: $(nproc), rounds: $rounds"
echo "| variant | tokens/s, median | lowest | highest | of 1x1 |"
echo "|---|---|---|---|---|"
base="$(median "$work/1x1")"
for file in 1x1 1x2 2x1 hosts-none,none hosts-1gbit,none hosts-100mbit,none hosts-none,1ms hosts-none,5ms; do
  middle="$(median "$work/$file")"
  awk -v name="$file" -v m="$middle" -v base="$base" -v low="$(sort -g "$work/$file" | head -1)" \
    -v high="$(sort -g "$work/$file" | tail -1)" \
    'BEGIN { printf "| %s | %.0f | %.0f | %.0f | %.2f |\n", name, m, low, high, m / base }'
done

echo
echo "sums, 2 processes"
"${processes[@]}" -n 2 "$bin/ranks_bench"
echo "sums, 4 processes"
"${processes[@]}" -n 4 "$bin/ranks_bench"
for cable in none,none 1gbit,none 100mbit,none none,1ms none,5ms; do
  echo "sums, two hosts, $cable"
  OMP_NUM_THREADS=1 "$here/two_hosts.sh" "${cable%,*}" "${cable#*,}" -n 2 "$bin/ranks_bench"
done
