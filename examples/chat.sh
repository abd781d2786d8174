#!/usr/bin/env bash
# Trains a chat model on your own conversations.
#
#   examples/chat.sh [CHATS.jsonl] [--small]
#
# Formats: OpenAI, ShareGPT, Alpaca. Default: generated chats.
#
# THIMBLE: the binary (default: thimble). OUT: the output folder (default: chat-example).
set -euo pipefail
thimble="${THIMBLE:-thimble}" out="${OUT:-chat-example}" chats="" size=30M
settings=(--tokenizer bpe:1024)
for word in "$@"; do
  if [[ $word == --small ]]; then
    size=60k settings=(--tokenizer bpe:400 --layers 2 --dim 64 --steps 15 --val-every 0)
  else
    chats="$word"
  fi
done

mkdir -p "$out"
if [[ -z $chats ]]; then
  chats="$out/chats.jsonl"
  "$thimble" data sample --kind chat --size "$size" -o "$chats" --force
fi
"$thimble" train --preset chat --data "$chats" "${settings[@]}" -o "$out/run" --force

# Reads one question per line. At a terminal, `thimble chat` is interactive.
echo "What colour is the cat?" | "$thimble" chat "$out/run" --max-tokens 40
