#!/bin/bash
# Creates the cases for check_transformers.py: Hugging Face folders, and thimble's results for them.
#
#   make_transformers_cases.sh OUT [THIMBLE]      THIMBLE defaults to build/release/bin/thimble
# OUT/NAME/ contains, for each case:
#   model/               the exported folder
#   tokens.safetensors   token ids; trace.safetensors: thimble's logits for them
#   texts.txt            one text per line
#   ids.txt              their ids; special_ids.txt: their ids with special tokens
#   chat.json            a conversation (chat models)
#   prompt_ids.txt       its ids up to the start of the answer
#   prompt.txt           a text; greedy.json: thimble's greedy continuation
set -euo pipefail

out=${1:?usage: make_transformers_cases.sh OUT [THIMBLE]}
here=$(cd "$(dirname "$0")" && pwd)
thimble=${2:-$here/../../build/release/bin/thimble}
[ -x "$thimble" ] || { echo "$thimble not found or not executable" >&2; exit 1; }
[ ! -e "$out" ] || { echo "$out already exists" >&2; exit 1; }
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$thimble" data sample --kind tales -o "$work/tales.txt" > "$work/log"
"$thimble" data sample --kind chat -o "$work/chats.jsonl" > "$work/log"

# Prints a little-endian number, as used in safetensors.
number() { # VALUE BYTES
  local value=$1 i
  for ((i = 0; i < $2; ++i)); do printf "\\x$(printf %02x $((value & 255)))"; value=$((value >> 8)); done
}

write_tokens() { # FILE: 2 rows of 24 ids, all below 250
  local header='{"input":{"dtype":"I32","shape":[2,24],"data_offsets":[0,192]}}' i
  { number ${#header} 8; printf %s "$header"; for ((i = 0; i < 48; ++i)); do number $(((i * 37 + 11) % 250)) 4; done; } > "$1"
}

write_texts() { # FILE
  cat > "$1" <<'TEXTS'
Once upon a time there was a small cat.
  two  spaces,	a tab and trailing space 
Numbers 1234567, prices $3.50 and a date: 2024-02-29!
It's "quoted" (and bracketed) - isn't it?
naïve café, Ελληνικά, 中文字符, עברית, 😀👍🏽
repeated aaaaaaaaaaaaaaaa bbbb the the the the
TEXTS
}

# make_case NAME PRESET TOKENIZER KIND TYPE SETTING...
# KIND: text, chat, or spare (text with the bytes tokenizer, which leaves embedding rows unused).
# TYPE: dtype of the export.
make_case() {
  local name=$1 preset=$2 tokenizer=$3 kind=$4 type=$5
  shift 5
  local folder=$out/$name data=$work/tales.txt source=$work/$name words=() setting bos
  [ "$kind" != chat ] || data=$work/chats.jsonl
  for setting in layers=3 dim=64 heads=4 kv_heads=2 head_dim=16 mlp_hidden=96 context=128 batch_tokens=2048 steps=80 lr=0.01 \
    warmup_steps=5 prime_steps=0 max_seconds=0 val_every=0 "$@"; do words+=(--set "$setting"); done
  mkdir -p "$folder"
  echo "$name" >&2
  "$thimble" train --preset "$preset" --data "$data" --tokenizer "$tokenizer" "${words[@]}" -o "$work/$name" --quiet \
    > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
  if [ "$kind" = spare ]; then
    source=$work/$name.safetensors
    "$thimble" import "$work/$name" --tokenizer bytes -o "$source" > "$work/log"
  fi
  "$thimble" export "$source" --format hf --type "$type" -o "$folder/model" > "$folder/export.txt"
  write_tokens "$folder/tokens.safetensors"
  "$thimble" trace "$folder/model" --tokens "$folder/tokens.safetensors" --dtype f32 -o "$folder/trace.safetensors" > "$work/log"
  write_texts "$folder/texts.txt"
  "$thimble" tokenizer encode "$folder/model" "$folder/texts.txt" > "$folder/ids.txt"
  "$thimble" tokenizer encode "$folder/model" "$folder/texts.txt" --add-special > "$folder/special_ids.txt"
  printf 'The cat' > "$folder/prompt.txt"
  "$thimble" generate "$folder/model" 'The cat' -n 1 --max-tokens 32 --greedy --dtype f32 --json > "$folder/greedy.json"
  [ "$kind" = chat ] || return 0
  cat > "$folder/chat.json" <<'CHAT'
[{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Who is there?  "},
 {"role": "assistant", "content": "Anna."}, {"role": "user", "content": "Where is <b>she</b>?\nAnd why?"}]
CHAT
  bos=$(sed -n 's/.*"bos_token": "\(.*\)".*/\1/p' "$folder/model/tokenizer_config.json")
  "$thimble" tokenizer encode "$folder/model" --parse-special --whole --text \
    "$bos<system>Answer in one word.<end_turn><user>Who is there?  <end_turn><assistant>Anna.<end_turn><user>Where is <b>she</b>?
And why?<end_turn><assistant>" > "$folder/prompt_ids.txt"
}

make_case llama-bpe llama bpe:500 text f32
make_case llama-bias llama bytes text f32 bias=true tie_embeddings=false
make_case llama-pieces llama sentencepiece:500 text f32
make_case llama-chat-pieces llama sentencepiece:500 chat f32
make_case llama-spare llama bpe:300 spare f32
make_case qwen2-chat qwen2 bpe:500 chat f32
make_case qwen2-wide qwen2 bytes text f32 head_dim=32 kv_heads=4
make_case qwen3-chat qwen3 bpe:500 chat f32
make_case qwen3-bf16 qwen3 bpe:400 text bf16
make_case qwen3-f16 qwen3 bpe:400 text f16
echo "check with: python3 $here/check_transformers.py $out/*" >&2
