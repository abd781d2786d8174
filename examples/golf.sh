#!/usr/bin/env bash
# Parameter golf: trains the best model that fits into 16,000,000 bytes.
#
#   examples/golf.sh [TEXT...] [--small]         default: generated tales
#
# THIMBLE: the binary (default: thimble). OUT: the output folder (default: golf-example).
set -euo pipefail
thimble="${THIMBLE:-thimble}" out="${OUT:-golf-example}" texts=() size=50M vocabulary=1024
settings=(--max-seconds 600)
for word in "$@"; do
  if [[ $word == --small ]]; then
    size=60k vocabulary=300
    settings=(--layers 2 --dim 64 --heads 2 --kv-heads 1 --context 64 --batch-tokens 512 --span-tokens 64 --steps 6 --val-every 0
      --bigram-buckets 64 --bigram-dim 16)
  else
    texts+=("$word")
  fi
done

mkdir -p "$out"
if ((${#texts[@]} == 0)); then
  texts=("$out/tales.txt")
  "$thimble" data sample --kind tales --size "$size" -o "$out/tales.txt" --force
fi
"$thimble" tokenizer train "${texts[@]}" --vocab-size "$vocabulary" -o "$out/tokenizer.json" --force
"$thimble" data build "${texts[@]}" --tokenizer "$out/tokenizer.json" -o "$out/shards" --force
"$thimble" train --preset golf-plus --data "$out/shards" "${settings[@]}" -o "$out/run" --force

# int6, pruned, compressed, measured before and after. Fails if the result does not fit.
"$thimble" pack "$out/run" --data "$out/shards" --val-tokens 2000 --budget 16000000 -o "$out/golf.thimble" --force
"$thimble" inspect "$out/golf.thimble"
