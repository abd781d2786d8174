#!/usr/bin/env bash
# Trains a model that writes in the style of a text, for example Shakespeare's works.
#
#   examples/shakespeare.sh TEXT.txt [--small]
#
# THIMBLE: the binary (default: thimble). OUT: the output folder (default: shakespeare-example).
set -euo pipefail
thimble="${THIMBLE:-thimble}" out="${OUT:-shakespeare-example}" text="" settings=(--depth 6 --steps 3000)
for word in "$@"; do
  if [[ $word == --small ]]; then settings=(--layers 2 --dim 64 --mlp-hidden 128 --context 64 --steps 30); else text="$word"; fi
done
if [[ -z $text ]]; then
  echo "usage: examples/shakespeare.sh TEXT.txt [--small]" >&2
  exit 2
fi

# Bytes are enough for one author. The best checkpoint is kept, as it overfits soon.
"$thimble" train --preset quick --data "$text" --tokenizer bytes "${settings[@]}" -o "$out/run" --force
"$thimble" eval "$out/run" --val-tokens 2000
# The prompt follows -- because a text may begin with dashes.
"$thimble" generate "$out/run" --max-tokens 200 --temperature 0.8 -- "$(head -c 40 "$text" | tr -d '\n')"
