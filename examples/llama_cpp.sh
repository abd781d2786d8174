#!/usr/bin/env bash
# Trains a model, exports it as GGUF and runs it in llama.cpp.
#
#   examples/llama_cpp.sh [TEXT.txt] [--small]   default: generated tales
#
# THIMBLE: the binary (default: thimble). OUT: the output folder (default: llama-example).
set -euo pipefail
thimble="${THIMBLE:-thimble}" out="${OUT:-llama-example}" text="" size=10M settings=(--depth 6 --steps 1000)
for word in "$@"; do
  if [[ $word == --small ]]; then
    size=40k settings=(--layers 2 --dim 64 --heads 2 --kv-heads 1 --mlp-hidden 128 --context 64 --batch-tokens 512 --steps 20
      --val-every 0)
  else
    text="$word"
  fi
done

mkdir -p "$out"
if [[ -z $text ]]; then
  text="$out/tales.txt"
  "$thimble" data sample --kind tales --size "$size" -o "$text" --force
fi
"$thimble" train --preset llama --data "$text" --tokenizer bpe:512 "${settings[@]}" -o "$out/run" --force
"$thimble" export "$out/run" --format gguf --type f16 -o "$out/model.gguf" --force
"$thimble" qa "$out/model.gguf"

# Both programs print the same greedy completion.
"$thimble" generate "$out/model.gguf" "Once" --greedy --max-tokens 24
if command -v llama-completion >/dev/null; then
  llama-completion -m "$out/model.gguf" -p "Once" --temp 0 -n 24 -no-cnv
elif command -v llama-cli >/dev/null; then
  llama-cli -m "$out/model.gguf" -p "Once" --temp 0 -n 24 -no-cnv </dev/null
else
  echo "llama.cpp is not installed. To run the model with it: llama-cli -m $out/model.gguf -p Once --temp 0 -n 24 -no-cnv"
fi
