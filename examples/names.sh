#!/usr/bin/env bash
# A generator of names: it learns how names are spelled, and writes new ones.
#
#   examples/names.sh [NAMES.txt] [--small]      one name a line; without a file, names made up of syllables
#
# THIMBLE names the binary (default: thimble), OUT the folder (default: names-example).
set -euo pipefail
thimble="${THIMBLE:-thimble}" out="${OUT:-names-example}" names="" steps=2000
for word in "$@"; do
  if [[ $word == --small ]]; then steps=60; else names="$word"; fi
done

mkdir -p "$out"
if [[ -z $names ]]; then
  names="$out/names.txt"
  for first in bel car dor el fin gal hel is jor kal lor mar nor or per; do
    for middle in "" a e i o an en in; do
      for last in da la lin mir na ra rik ron s th; do echo "$first$middle$last"; done
    done
  done >"$names"
fi

# A document a name: the model learns where one ends. Without control characters: lines may end in CR LF.
tr -d '\000-\011\013-\037\177' <"$names" | sed 's/["\\]//g; s/.*/{"text": "&"}/' >"$out/names.jsonl"
"$thimble" train --preset microgpt --data "$out/names.jsonl" --tokenizer bytes --context 32 --warmup-steps 20 \
  --steps "$steps" --val-every "$steps" -o "$out/run" --force

# Names of the list among them are found by heart, the others are new.
"$thimble" generate "$out/run" --samples 20 --max-tokens 20 --temperature 0.8
