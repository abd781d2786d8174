#!/usr/bin/env python3
"""Makes tests/golden/adapters: PyTorch's loss and gradients of LoRA adapters.

  make_adapters.py OUT                       needs torch, transformers, safetensors, numpy; no network

The base is the model `llama3` of make_architectures.py. Every linear layer of its blocks has an
adapter of rank 4 with alpha 6, written out in plain PyTorch as the paper defines it:

  y = w x + alpha / rank b (a x)

so PEFT is not needed. The adapters' values are a function of (tensor name, index), like those of
the base. OUT/reference.safetensors contains input, target [B, T], the loss (mean over all targets),
logits [B, T, V] and grad.TENSOR for every adapter tensor, under PEFT's names without their prefix
"base_model.model.".
"""
import os
import sys

import numpy
import torch
from safetensors.torch import save_file

from make_architectures import B, T, build, integers, uniform

RANK, ALPHA = 4, 6.0


def adapter_value(name, dims):
    u = uniform(name, int(numpy.prod(dims)))
    return torch.from_numpy((u / 4).astype(numpy.float32).reshape(dims))


class Adapted(torch.nn.Module):
    def __init__(self, base, name):
        super().__init__()
        self.base = base
        self.a = torch.nn.Parameter(adapter_value(f"{name}.lora_A.weight", [RANK, base.in_features]))
        self.b = torch.nn.Parameter(adapter_value(f"{name}.lora_B.weight", [base.out_features, RANK]))

    def forward(self, x):
        return self.base(x) + ALPHA / RANK * (x @ self.a.T) @ self.b.T


def main(out):
    model = build("llama3")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    adapters = {}
    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or ".layers." not in name:
            continue
        parent, leaf = name.rsplit(".", 1)
        adapters[name] = Adapted(module, name)
        setattr(model.get_submodule(parent), leaf, adapters[name])
    vocabulary = model.config.vocab_size
    ids = torch.from_numpy(integers("adapters.input", B * T, vocabulary).reshape(B, T))
    target = torch.from_numpy(integers("adapters.target", B * T, vocabulary).reshape(B, T))
    logits = model(input_ids=ids, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, vocabulary), target.reshape(-1))
    loss.backward()
    tensors = {"input": ids.int(), "target": target.int(), "loss": loss.detach().reshape(1),
               "logits": logits.detach().contiguous()}
    for name, adapter in adapters.items():
        tensors[f"grad.{name}.lora_A.weight"] = adapter.a.grad
        tensors[f"grad.{name}.lora_B.weight"] = adapter.b.grad
    os.makedirs(out, exist_ok=True)
    save_file(tensors, os.path.join(out, "reference.safetensors"),
              metadata={"torch": torch.__version__, "base": "llama3", "rank": str(RANK), "alpha": str(ALPHA)})
    print(f"{len(adapters)} adapters, loss {loss.item():.6f}")


if __name__ == "__main__":
    main(sys.argv[1])
