#!/usr/bin/env bash
# Trains a generator of names: it learns how names are spelled and writes new ones.
#
#   examples/names.sh [NAMES.txt] [--small]      one name per line; default: names made of syllables
#
# THIMBLE: the binary (default: thimble). OUT: the output folder (default: names-example).
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

# One document per name, so the model learns where names end.
"$thimble" train --preset microgpt --data "$names" --documents line --tokenizer bytes --context 32 --warmup-steps 20 \
  --steps "$steps" --val-every "$steps" -o "$out/run" --force

# Some of the names are from the list, others are new.
"$thimble" generate "$out/run" --samples 20 --max-tokens 20 --temperature 0.8
