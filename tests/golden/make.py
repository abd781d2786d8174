#!/usr/bin/env python3
"""Makes the files of tests/golden that README.md lists as made by this script.

  tests/golden/make.py corpus bpe sentencepiece merges shards chats jinja  # all that a clone can make
  tests/golden/make.py torch                                               # needs ../shared/fixtures

Needs: thimble (--thimble), `npm ci` in tests/interop (or --node-modules DIR), g++ and
libsentencepiece-dev, spm_normalize of Debian's package sentencepiece (--spm-bin DIR), and jinja2.

The expected ids, texts and merges come from other programs: Hugging Face's tokenizers,
libsentencepiece, jinja2, and the plain Python trainer below. thimble only makes their inputs.
"""

import argparse
import collections
import gzip
import json
import pathlib
import re
import struct
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
END = "<|endoftext|>"
options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("parts", nargs="+", choices=["corpus", "bpe", "sentencepiece", "merges", "shards", "chats", "jinja", "torch"])
options.add_argument("--thimble", default=str(HERE / "../../build/release/bin/thimble"))
options.add_argument("--node-modules", default=str(HERE / "../interop"), help="the folder that contains node_modules")
options.add_argument("--spm-bin", default="/usr/bin")
options.add_argument("--shared", default=str(HERE / "../../../shared/fixtures"))
options = options.parse_args()


def run(*words, **more):
    return subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE, **more).stdout


def thimble(*words):
    return run(options.thimble, *words, "-q", "-f")


def read_text(name):
    path = HERE / name
    return (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()


def write_gz(name, data):
    (HERE / name).write_bytes(gzip.compress(data, 9, mtime=0))


def write_json(name, **members):
    """One array element per line, so that a diff shows which text changed."""
    def text(value):
        if not isinstance(value, list):
            return json.dumps(value)
        return "[\n" + ",\n".join(json.dumps(element, separators=(",", ":")) for element in value) + "\n]"
    (HERE / name).write_text("{\n" + ",\n".join(f'"{key}": {text(value)}' for key, value in members.items()) + "\n}\n")


def documents():
    return [text.removeprefix("\n") for text in read_text("corpus/tales.txt.gz").split(END)][:-1]


STRINGS = json.loads(read_text("tokenizers/strings.json"))


def make_corpus():
    with tempfile.TemporaryDirectory() as folder:
        for kind, size, name in ("tales", "120k", "tales.txt"), ("chat", "40k", "chats.jsonl"):
            thimble("data", "sample", "--kind", kind, "--size", size, "-o", f"{folder}/{name}")
            write_gz(f"corpus/{name}.gz", pathlib.Path(folder, name).read_bytes())


# Byte-level BPE: files of the same structure as the published ones, but trained here.

UNMERGED = {"\u0120cat", "\u0120the"}
FORMS = {
    "gpt2": dict(special=[END], bos=None, normalizer=None, ignore_merges=False, pairs=False),
    "llama3": dict(special=["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
                   bos="<|begin_of_text|>", normalizer=None, ignore_merges=True, pairs=True),
    "qwen2": dict(special=[END, "<|im_start|>", "<|im_end|>"], bos=None, normalizer={"type": "NFC"},
                  ignore_merges=False, pairs=False),
    "o200k": dict(special=[END, "<|endofprompt|>"], bos=None, normalizer=None, ignore_merges=False, pairs=True),
}


def in_form(trained, name, special, bos, normalizer, ignore_merges, pairs):
    """The trained tokens and merges in the file structure of a model family: special tokens last."""
    old = trained["model"]["vocab"]
    ours = {token["content"] for token in trained["added_tokens"]}
    vocab = {token: id for id, token in enumerate(t for t in sorted(old, key=old.get) if t not in ours)}
    added = [dict(id=len(vocab) + i, content=token, single_word=False, lstrip=False, rstrip=False,
                  normalized=False, special=True) for i, token in enumerate(special)]
    if name == "gpt2":
        vocab[END] = len(vocab)  # GPT-2's file also has it in the vocabulary
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    processor, words = level, trained["pre_tokenizer"]
    if name == "gpt2":
        words = level | {"use_regex": True}
    if bos:
        id = next(token["id"] for token in added if token["content"] == bos)
        one, text = {"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        processor = {"type": "Sequence", "processors": [level, {
            "type": "TemplateProcessing", "single": [one, text], "pair": [one, text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos: {"id": bos, "ids": [id], "tokens": [bos]}}}]}
    affix = None if pairs else ""
    merges = [pair if pairs else " ".join(pair) for pair in trained["model"]["merges"]]
    if ignore_merges:  # words that are tokens, although no merge makes them
        merges = [pair for pair in merges if "".join(pair) not in UNMERGED]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": words, "post_processor": processor, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": affix,
                      "end_of_word_suffix": affix, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": ignore_merges, "vocab": vocab, "merges": merges}}


NODE = """
import { readFileSync } from 'node:fs';
import { Tokenizer } from 'tokenizers';
const { file, texts } = JSON.parse(readFileSync(0, 'utf8'));
const tokenizer = Tokenizer.fromFile(file), out = { ids: [], with_special: [], decoded: [] };
for (const text of texts) {
  const ids = (await tokenizer.encode(text, null, { addSpecialTokens: false })).getIds();
  out.ids.push(ids);
  out.with_special.push((await tokenizer.encode(text)).getIds());
  out.decoded.push(await tokenizer.decode(ids, false));
}
process.stdout.write(JSON.stringify(out));
"""


def hugging_face(file, texts):
    return json.loads(run("node", "--input-type=module", "-e", NODE, cwd=options.node_modules,
                          input=json.dumps({"file": str(file), "texts": texts}).encode()))


def make_bpe():
    with tempfile.TemporaryDirectory() as folder:
        for name, form in FORMS.items():
            trained = f"{folder}/{name}.json"
            thimble("tokenizer", "train", HERE / "corpus/tales.txt.gz", HERE / "corpus/scripts.txt", "--pattern", name,
                    "--vocab-size", 1201, "-o", trained)
            out = HERE / f"tokenizers/{name}.json"
            spec = in_form(json.loads(pathlib.Path(trained).read_text()), name, **form)
            assert not form["ignore_merges"] or UNMERGED <= set(spec["model"]["vocab"])
            out.write_text(json.dumps(spec, ensure_ascii=False, separators=(",", ":")) + "\n")
            write_json(f"tokenizers/{name}.ids.json", **hugging_face(out, STRINGS["strings"]))


# SentencePiece, with the settings of parameter-golf.

SPM = r"""
#include <sentencepiece_processor.h>
#include <iostream>
int main(int, char** arguments) {  // reads: byte count, newline, bytes; writes a line of ids
  sentencepiece::SentencePieceProcessor model;
  if (!model.Load(arguments[1]).ok()) return 1;
  for (std::size_t size; std::cin >> size;) {
    std::string text(size, 0);
    std::cin.get();
    std::cin.read(text.data(), static_cast<std::streamsize>(size));
    for (const int id : model.EncodeAsIds(text)) std::cout << id << ' ';
    std::cout << '\n';
  }
}
"""


def spm_ids(model, texts):
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "spm.cpp")
        source.write_text(SPM)
        run("g++", "-std=c++17", "-O1", source, "-o", f"{folder}/spm", "-lsentencepiece")
        given = b"".join(b"%d\n" % len(text) + text for text in texts)
        return [[int(id) for id in line.split()] for line in run(f"{folder}/spm", model, input=given).decode().splitlines()]


def spm_normalized(model, text):
    """spm_normalize reads lines, and it ends a line at a zero byte."""
    if "\n" in text or "\0" in text:
        return None
    out = run(f"{options.spm_bin}/spm_normalize", f"--model={model}", "--use_internal_normalization", input=text.encode() + b"\n")
    return out.decode().removesuffix("\n")


def make_sentencepiece():
    for name, size, normalization in ("golf_1024", 1024, "nmt_nfkc"), ("identity_700", 700, "identity"):
        model = HERE / f"tokenizers/{name}.model"
        thimble("tokenizer", "train", HERE / "corpus/tales.txt.gz", HERE / "corpus/scripts.txt", "--kind", "sentencepiece",
                "--normalization", normalization, "--vocab-size", size, "-o", model)
        texts = STRINGS["strings"]
        write_json(f"tokenizers/{name}.ids.json", ids=spm_ids(model, [text.encode() for text in texts]),
                   normalized=[spm_normalized(model, text) for text in texts],
                   invalid=spm_ids(model, [bytes.fromhex(text) for text in STRINGS["invalid"]]))


# Byte-level BPE training: merges in the order of frequency, ties by the greater pair of byte strings.

def train_merges(text, vocab_size):
    words = collections.Counter()
    for document in text.split(END):
        # GPT-2's pattern. For these texts \d and [^\W\d_] are \p{N} and \p{L}.
        document = document.removeprefix("\n")  # ends the line of the separator
        for word in re.findall(r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+", document):
            words[word.encode()] += 1
    words = [([bytes([byte]) for byte in word], count) for word, count in words.items()]
    merges = []
    while len(merges) < vocab_size - 257:
        pairs = collections.Counter()
        for parts, count in words:
            for pair in zip(parts, parts[1:]):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for parts, _ in words:
            at = 0
            while at + 1 < len(parts):
                if (parts[at], parts[at + 1]) == best:
                    parts[at : at + 2] = [best[0] + best[1]]
                at += 1
    return merges


def spelled(token):
    """GPT-2's spelling: printable Latin-1 as it is, the other bytes from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return "".join(chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in token)


def merges_text(text, vocab_size=500):
    return "".join(f"{spelled(left)} {spelled(right)}\n" for left, right in train_merges(text, vocab_size))


def make_merges():
    (HERE / "tokenizers/merges.txt").write_text(merges_text(read_text("corpus/tales.txt.gz")))
    reference = pathlib.Path(options.shared, "bpe-train")
    if reference.exists():  # the reference of a course that uses the same rule
        expected = (reference / "cs336-train-bpe-reference-merges.txt").read_text()
        assert merges_text((reference / "cs336-corpus.en").read_text()) == expected.rstrip("\n") + "\n"
        print("train_merges() gives the merges of", reference)


# Shards: 256 little-endian integers, of which the first three count, and 16-bit tokens.

def write_shard(name, tokens):
    (HERE / name).write_bytes(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + struct.pack(f"<{len(tokens)}H", *tokens))


def make_shards():
    golf = [id for ids in spm_ids(HERE / "tokenizers/golf_1024.model", [text.encode() for text in documents()]) for id in [1, *ids]]
    assert len(golf) > 12288
    write_shard("shards/fineweb_train_000000.bin", golf[:8192])
    write_shard("shards/fineweb_val_000000.bin", golf[8192:12289])
    gpt2 = HERE / "tokenizers/gpt2.json"
    end = next(token["id"] for token in json.loads(gpt2.read_text())["added_tokens"])
    ids = hugging_face(gpt2, documents())["ids"]
    write_shard("shards/tales_gpt2.bin", [id for text in ids for id in [end, *text]])


# Chats: what jinja2 makes of the templates in chat/.

def make_chats():
    import jinja2.sandbox

    chats = [
        "system: S", "user: U", "assistant: A", "",
        "user: How many eggs?", "",
        "user: Gr\u00fc\u00dfe, 'du' \"da\" \\ {{ x }} {% y %}", "",
        "user: \nline\n\nline\n", "assistant: yes \U0001f600", "user:   ", "",
        "system: Be brief.\n", "user: \n\nTwo line ends first", "assistant: Yes.\n", "user:  12", "",
        "user: {# no comment #}", "assistant: '", "user: \"\u4e2d\u6587\"", "assistant: \t", "user: end ", "",
    ]
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    rendered = []
    for file in sorted((HERE / "chat").glob("*.jinja")):
        template, messages = environment.from_string(file.read_text()), []
        for turn in chats:
            if turn:
                messages.append(dict(zip(("role", "content"), turn.split(": ", 1))))
                continue
            text = template.render(messages=messages, bos_token="<bos>", add_generation_prompt=True)
            rendered.append({"template": file.name, "messages": messages, "text": text})
            messages = []
    write_json("chat/rendered.json", rendered=rendered)


# Jinja: what jinja2, set up as in Transformers, makes of the snippets and conversations in jinja/.

def make_jinja():
    import jinja2.ext

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)

    def to_json(value, indent=None, separators=None, sort_keys=False, ensure_ascii=False):
        return json.dumps(value, indent=indent, separators=separators, sort_keys=sort_keys, ensure_ascii=ensure_ascii)

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True,
                                     extensions=[Generation, jinja2.ext.loopcontrols, jinja2.ext.do])
    environment.filters["tojson"] = to_json
    # @huggingface/jinja and thimble write true, false and nothing, Python True, False and None.
    environment.finalize = lambda value: "" if value is None else str(value).lower() if isinstance(value, bool) else value
    path = HERE / "jinja/rendered.json"
    golden = json.loads(path.read_text())
    for snippet in golden["snippets"]:
        snippet["text"] = environment.from_string(snippet["template"]).render(**golden["variables"])
    tools = environment.from_string((HERE / "jinja/tools.jinja").read_text())
    for conversation in golden["conversations"]:
        conversation["text"] = tools.render(**conversation["variables"])
    lists = [",\n".join(json.dumps(one) for one in golden[key]) for key in ("snippets", "conversations")]
    path.write_text('{\n"variables": %s,\n"snippets": [\n%s\n],\n"conversations": [\n%s\n]\n}\n'
                    % (json.dumps(golden["variables"]), *lists))


# PyTorch and Transformers are not needed: their outputs are taken from ../shared, and reduced.

def make_torch():
    for name in "golf_baseline", "golf_plus":
        data = pathlib.Path(options.shared, f"golden/{name}_train.safetensors").read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header, data = json.loads(data[8 : 8 + size]), data[8 + size :]
        metadata, out = header.pop("__metadata__"), b""
        metadata["note"] += "; final.* rounded to F16 by tests/golden/make.py"
        for tensor, entry in header.items():
            begin, end = entry["data_offsets"]
            values = data[begin:end]
            count = len(values) // 4
            if tensor.startswith("final.") and count % 2 == 0:  # compared by cosine; even: keeps the next one aligned
                values, entry["dtype"] = struct.pack(f"<{count}e", *struct.unpack(f"<{count}f", values)), "F16"
            entry["data_offsets"] = [len(out), len(out) + len(values)]
            out += values
        text = json.dumps({"__metadata__": metadata, **header}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        (HERE / f"{name}_train.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + out)
    for model in "llama_tied", "qwen2":
        (HERE / "hf" / model).mkdir(parents=True, exist_ok=True)
        for file in "config.json", "generation_config.json", "model.safetensors", "reference.safetensors":
            (HERE / "hf" / model / file).write_bytes(pathlib.Path(options.shared, "hf", model, file).read_bytes())


for part in options.parts:
    globals()[f"make_{part}"]()
