#!/usr/bin/env python3
"""Checks exported folders with Hugging Face's Transformers. Run manually on a machine that has it.

    make_transformers_cases.sh CASES                (on any machine with thimble)
    python3 check_transformers.py CASES/*           (needs torch and transformers)

For every case: AutoModelForCausalLM and AutoTokenizer load the folder without warnings; logits agree
with thimble's to 1e-4; texts have the same ids as in thimble, with and without special tokens, and
decode to the same text; the chat template renders to thimble's prompt ids; greedy text is the same.
Prints one line per check and the number of failed checks.
"""
import json
import os
import sys
import tempfile
import warnings

import torch
import transformers
from safetensors.torch import load_file

TOLERANCE = 1e-4
failures = []


def check(case, what, ok, detail=""):
    print(f"{'ok  ' if ok else 'FAIL'}  {case:20} {what}{': ' + detail if detail else ''}", flush=True)
    if not ok:
        failures.append(f"{case}: {what}: {detail}")


def ids_in(path):
    with open(path, encoding="utf-8") as file:
        return [[int(word) for word in line.split()] for line in file.read().splitlines()]


def first_difference(ours, theirs):
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if a != b:
            return f"at {i} thimble {ours[i:i + 5]}, transformers {theirs[i:i + 5]}"
    return f"lengths {len(ours)} and {len(theirs)}" if len(ours) != len(theirs) else ""


def prompt_ids_of(tokenizer, messages):
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
    if hasattr(rendered, "keys"):  # Transformers 5 returns a dictionary
        rendered = rendered["input_ids"]
    return [int(id) for id in rendered]


def check_logits(case, folder, model):
    tokens = load_file(os.path.join(folder, "tokens.safetensors"))["input"].long()
    ours = load_file(os.path.join(folder, "trace.safetensors"))["logits"]
    with torch.no_grad():
        theirs = model(input_ids=tokens).logits.float()
    difference = (ours.reshape(theirs.shape) - theirs).abs().max().item()
    check(case, "logits", difference <= TOLERANCE, f"max difference {difference:.2e} (largest logit {ours.abs().max():.1f})")


def check_tokenizer(case, folder, tokenizer):
    with open(os.path.join(folder, "texts.txt"), encoding="utf-8") as file:
        texts = file.read().split("\n")[:-1]
    for name, special in (("ids.txt", False), ("special_ids.txt", True)):
        for text, ours in zip(texts, ids_in(os.path.join(folder, name)), strict=True):
            theirs = tokenizer(text, add_special_tokens=special)["input_ids"]
            difference = first_difference(ours, theirs)
            check(case, f"ids{' with special tokens' if special else ''} of {text[:24]!r}", not difference, difference)
    # If a SentencePiece model normalizes, the decoded text differs but encodes to the same ids.
    for text, ours in zip(texts, ids_in(os.path.join(folder, "ids.txt")), strict=True):
        back = tokenizer.decode(ours)
        again = tokenizer(back, add_special_tokens=False)["input_ids"]
        check(case, f"decode of {text[:24]!r}", back == text or again == ours, "" if back == text else repr(back))


def check_chat(case, folder, tokenizer):
    path = os.path.join(folder, "chat.json")
    if not os.path.exists(path):
        return
    with open(path, encoding="utf-8") as file:
        messages = json.load(file)
    ours = [id for line in ids_in(os.path.join(folder, "prompt_ids.txt")) for id in line]
    difference = first_difference(ours, prompt_ids_of(tokenizer, messages))
    check(case, "chat template", not difference, difference)


def check_greedy(case, folder, model, tokenizer):
    with open(os.path.join(folder, "prompt.txt"), encoding="utf-8") as file:
        inputs = tokenizer(file.read(), return_tensors="pt")
    with open(os.path.join(folder, "greedy.json"), encoding="utf-8") as file:
        ours = json.load(file)["samples"][0]["tokens"]
    with torch.no_grad():
        output = model.generate(**inputs, max_new_tokens=32, do_sample=False)
    theirs = output[0, inputs["input_ids"].shape[1]:].tolist()
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    while theirs and theirs[-1] in ends:  # thimble's list does not contain the end token
        theirs.pop()
    while ours and ours[-1] in ends:
        ours.pop()
    difference = first_difference(ours, theirs)
    check(case, "greedy text", not difference, difference)


def check_saves(case, model, tokenizer):
    """A folder saved again by Transformers contains the same tensors."""
    with tempfile.TemporaryDirectory() as again:
        model.save_pretrained(again)
        tokenizer.save_pretrained(again)
        saved = load_file(os.path.join(again, "model.safetensors"))
    same = all(torch.equal(saved[name], value) for name, value in model.state_dict().items() if name in saved)
    check(case, "saved again", bool(saved) and same, f"{len(saved)} tensors")


def check_case(folder):
    case, path = os.path.basename(os.path.normpath(folder)), os.path.join(folder, "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    model = model.float().eval()
    problems = {key: str(value) for key, value in info.items() if value}
    check(case, "loads", not problems, str(problems) if problems else type(model).__name__)
    check(case, "vocabulary", len(tokenizer) <= model.config.vocab_size, f"{len(tokenizer)} of {model.config.vocab_size}")
    check_logits(case, folder, model)
    check_tokenizer(case, folder, tokenizer)
    check_chat(case, folder, tokenizer)
    check_greedy(case, folder, model, tokenizer)
    check_saves(case, model, tokenizer)


def main(folders):
    if not folders:
        sys.exit(__doc__)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    for folder in folders:
        try:
            check_case(folder)
        except Exception as error:  # continue with the other folders
            check(os.path.basename(os.path.normpath(folder)), "runs", False, f"{type(error).__name__}: {error}")
    for failure in failures:
        print(f"failed: {failure}")
    print(f"{len(folders)} folders, {len(failures)} checks failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
