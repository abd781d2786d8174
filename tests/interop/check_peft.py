#!/usr/bin/env python3
"""Exchanges adapters with Hugging Face's PEFT. Run manually on a machine that has it.

    check_peft.py BASE ADAPTER TOKENS TRACE OUT     needs torch, transformers, peft

BASE is a Hugging Face folder that thimble wrote, ADAPTER a folder of `thimble export --format peft`
for it, and TRACE the file of `thimble trace --dtype f32` of both for the file TOKENS. PEFT loads the
adapter, and its logits must agree with thimble's to 1e-4 of the largest.

OUT gets an adapter that PEFT made for the model `llama3` of tests/golden/make_architectures.py, with
random values, and its logits for the tokens of tests/golden/adapters/reference.safetensors. Both
are fixtures: tests/golden/adapters/peft.
"""
import os
import sys

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))


def check_adapter(base, adapter, tokens, trace):
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, adapter).eval()
    ours = load_file(trace)["logits"]
    with torch.no_grad():
        theirs = model(input_ids=load_file(tokens)["input"].long()).logits
    difference = (ours.reshape(theirs.shape) - theirs).abs().max().item()
    largest = theirs.abs().max().item()
    print(f"logits differ by {difference:.2e}, the largest is {largest:.2f}")
    return difference <= 1e-4 * largest


def make_fixture(golden, out):
    sys.path.insert(0, golden)
    from make_architectures import build

    torch.manual_seed(5)
    model = get_peft_model(build("llama3"), LoraConfig(r=6, lora_alpha=9, use_rslora=True, lora_dropout=0.1,
                                                       target_modules=["q_proj", "v_proj", "down_proj"],
                                                       task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.2 * torch.randn_like(parameter))
    ids = load_file(os.path.join(golden, "adapters", "reference.safetensors"))["input"].long()
    with torch.no_grad():
        logits = model.eval()(input_ids=ids).logits.contiguous()
    model.save_pretrained(out)
    save_file({"logits": logits}, os.path.join(out, "logits.safetensors"))


if __name__ == "__main__":
    base, adapter, tokens, trace, out = sys.argv[1:]
    make_fixture(os.path.join(HERE, "..", "golden"), out)
    sys.exit(0 if check_adapter(base, adapter, tokens, trace) else 1)
