#!/usr/bin/env python3
"""Makes tests/golden/architectures: configs and reference numbers of Transformers' model families.

  make_architectures.py OUT [FOLDER...]     needs torch, transformers, safetensors, numpy; no network

For every family: a small model whose weights are a function of (tensor name, index), so only the
config and the results are stored. OUT/architectures.tar.gz contains, for each family:

  NAME/config.json             as Transformers writes it
  NAME/reference.safetensors   input, target [B, T]; logits [B, T, V]; loss (mean over all targets);
                               grad.TENSOR, complete up to kWhole elements, otherwise kSampled
                               elements; probes [tensors, 2], in the order of the tensors' names: the
                               gradient's norm and its product with a pattern; greedy: a prompt and
                               64 more ids. Metadata: "tensors", name to shape in the file

FOLDER is a model that thimble exported from one of these families, as FAMILY.ANYTHING: its logits
are compared with the family's. Every step of every family is in its own try block; log.txt and
report.json list the results.
"""
import json
import os
import shutil
import sys
import tarfile
import tempfile
import traceback

import numpy
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

B, T, PROMPT, GREEDY = 2, 28, 8, 64
kWhole, kSampled = 320, 256
MASK = (1 << 64) - 1
LOG = []


def log(text):
    print(text, flush=True)
    LOG.append(text)


# Numbers: splitmix64 of FNV-1a of the name, plus the index. All arithmetic is modulo 2^64.

def name_hash(name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def bits(name, count):
    with numpy.errstate(over="ignore"):
        golden = numpy.uint64(0x9E3779B97F4A7C15)
        x = numpy.uint64(name_hash(name)) + (numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(1)) * golden
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return x ^ (x >> numpy.uint64(31))


def uniform(name, count):
    """In [-1, 1), with 24 bits."""
    return (bits(name, count) >> numpy.uint64(40)).astype(numpy.float64) / 2.0**23 - 1.0


def integers(name, count, limit):
    return (bits(name, count) % numpy.uint64(limit)).astype(numpy.int64)


def is_gain(name, dims):
    return len(dims) == 1 and name.endswith("weight")


def value_of(name, dims, gain_base):
    """Gains: base + u / 4. Biases: u / 8. Embeddings and the head: u / 2. Other matrices: 3 u / 8."""
    u = uniform(name, int(numpy.prod(dims)))
    if is_gain(name, dims):
        u = gain_base + u / 4
    elif len(dims) == 1:
        u = u / 8
    elif any(part in name for part in ("embed_tokens", "wte", "wpe", "lm_head")):
        u = u / 2
    else:
        u = u * 0.375
    return torch.from_numpy(u.astype(numpy.float32).reshape(dims))


# The families. A head size that differs from hidden / heads, a window of 8 and grouped heads occur
# wherever the family has them.

def common(**more):
    settings = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
                    num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
                    pad_token_id=None, rms_norm_eps=1e-6)
    settings.update(more)
    return settings


THETA = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
GEMMA3 = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
          "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}}
SHORT, LONG = [1.0, 1.1, 1.25, 1.5], [1.0, 2.0, 4.0, 8.0]


def longrope(**more):
    return {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": SHORT, "long_factor": LONG,
            "partial_rotary_factor": 1.0, "original_max_position_embeddings": 128, **more}


# name: (config class, model class, gain base, variants of the settings: the first that works is used)
FAMILIES = {
    "llama3": ("LlamaConfig", "LlamaForCausalLM", 1, [
        common(head_dim=16, rope_parameters=dict(LLAMA3)),
        common(head_dim=16, rope_theta=10000.0, rope_scaling={k: v for k, v in LLAMA3.items() if k != "rope_theta"})]),
    "smollm2": ("LlamaConfig", "LlamaForCausalLM", 1, [
        common(num_attention_heads=3, num_key_value_heads=1, hidden_size=48, tie_word_embeddings=True, rms_norm_eps=1e-5,
               rope_parameters={"rope_type": "default", "rope_theta": 100000.0}),
        common(num_attention_heads=3, num_key_value_heads=1, hidden_size=48, tie_word_embeddings=True, rms_norm_eps=1e-5,
               rope_theta=100000.0)]),
    "mistral": ("MistralConfig", "MistralForCausalLM", 1, [
        common(head_dim=16, sliding_window=8, rope_parameters=dict(THETA)),
        common(head_dim=16, sliding_window=8, rope_theta=10000.0)]),
    "qwen2_window": ("Qwen2Config", "Qwen2ForCausalLM", 1, [
        common(use_sliding_window=True, sliding_window=8, max_window_layers=1, rope_parameters=dict(THETA)),
        common(use_sliding_window=True, sliding_window=8, max_window_layers=1, rope_theta=10000.0)]),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", 1, [
        common(head_dim=16, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        common(head_dim=16, tie_word_embeddings=True, rope_theta=1000000.0)]),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", 1, [
        common(num_hidden_layers=4, tie_word_embeddings=True, rope_parameters=dict(THETA)),
        common(num_hidden_layers=4, tie_word_embeddings=True, rope_theta=10000.0)]),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", 0, [
        common(head_dim=16, sliding_window=8, query_pre_attn_scalar=24, attn_logit_softcapping=4.0, final_logit_softcapping=6.0,
               rope_parameters=dict(THETA)),
        common(head_dim=16, sliding_window=8, query_pre_attn_scalar=24, attn_logit_softcapping=4.0, final_logit_softcapping=6.0,
               rope_theta=10000.0)]),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", 0, [
        common(num_hidden_layers=7, intermediate_size=40, head_dim=16, sliding_window=8, query_pre_attn_scalar=24,
               rope_parameters={key: dict(value) for key, value in GEMMA3.items()}),
        common(num_hidden_layers=7, intermediate_size=40, head_dim=16, sliding_window=8, query_pre_attn_scalar=24,
               rope_theta=1000000.0, rope_local_base_freq=10000.0, rope_scaling={"rope_type": "linear", "factor": 8.0})]),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", 1, [
        common(sliding_window=8, original_max_position_embeddings=128,
               rope_parameters=dict(THETA, partial_rotary_factor=0.5)),
        common(sliding_window=8, original_max_position_embeddings=128, rope_theta=10000.0, partial_rotary_factor=0.5)]),
    "phi3_long": ("Phi3Config", "Phi3ForCausalLM", 1, [
        common(max_position_embeddings=512, original_max_position_embeddings=128, tie_word_embeddings=True,
               rope_parameters=longrope()),
        common(max_position_embeddings=512, original_max_position_embeddings=128, tie_word_embeddings=True,
               rope_theta=10000.0, rope_scaling={"type": "longrope", "short_factor": SHORT, "long_factor": LONG})]),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", 1, [
        dict(vocab_size=96, n_embd=32, n_layer=3, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2,
             resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)]),
}


def build(name):
    config_class, model_class, gain_base, variants = FAMILIES[name]
    error = None
    for i, settings in enumerate(variants):
        try:
            config = getattr(transformers, config_class)(**settings)
            try:
                config._attn_implementation = "eager"
            except Exception:
                log(f"{name}: cannot set eager attention\n{traceback.format_exc()}")
            model = getattr(transformers, model_class)(config)
            log(f"{name}: settings {i}")
            break
        except Exception as caught:
            error = caught
            log(f"{name}: settings {i} failed\n{traceback.format_exc()}")
    else:
        raise error
    model = model.to(torch.float32).eval()
    with torch.no_grad():
        for tensor, parameter in model.named_parameters():
            parameter.copy_(value_of(tensor, list(parameter.shape), gain_base))
    log(f"{name}: attention {getattr(model.config, '_attn_implementation', '?')}, "
        f"{sum(p.numel() for p in model.parameters())} parameters")
    return model


def logits_of(model, ids):
    return model(input_ids=ids, use_cache=False).logits


def greedy(model, seed, vocab):
    """The first prompt whose continuation is never nearly a tie, and does not repeat few ids."""
    best = None
    for attempt in range(60):
        ids = [int(id) for id in integers(f"{seed}.prompt{attempt}", PROMPT, vocab)]
        margin = 1e9
        with torch.no_grad():
            for _ in range(GREEDY):
                top = torch.topk(logits_of(model, torch.tensor([ids]))[0, -1], 2)
                margin = min(margin, float(top.values[0] - top.values[1]))
                ids.append(int(top.indices[0]))
        variety = len(set(ids[PROMPT:]))
        score = (margin > 1e-3) * 100 + min(variety, 12)
        if best is None or score > best[0]:
            best = (score, ids, margin, variety, attempt)
        if margin > 1e-3 and variety >= 12:
            break
    log(f"{seed}: greedy attempt {best[4]}, smallest margin {best[2]:.2e}, {best[3]} different ids")
    return best[1]


def check_cached_generation(model, name, ids):
    try:
        out = model.generate(input_ids=torch.tensor([ids[:PROMPT]]), max_new_tokens=GREEDY, min_new_tokens=GREEDY,
                             do_sample=False, pad_token_id=0)[0].tolist()
        log(f"{name}: generate() {'agrees' if out == ids else 'differs (min_new_tokens suppresses eos)'}")
    except Exception:
        log(f"{name}: generate() failed\n{traceback.format_exc()}")


def saved_tensors(model, folder, name, gain_base):
    """Names and shapes in the file that Transformers writes; checks that values are unchanged."""
    model.save_pretrained(folder)
    shapes, problems = {}, []
    with safe_open(os.path.join(folder, "model.safetensors"), framework="pt") as file:
        for tensor in file.keys():
            value = file.get_tensor(tensor)
            shapes[tensor] = list(value.shape)
            if not torch.equal(value, value_of(tensor, list(value.shape), gain_base)):
                problems.append(tensor)
    log(f"{name}: {len(shapes)} tensors in the file, {len(problems)} of other values {problems[:4]}")
    return shapes


def reference(name, out):
    model = build(name)
    gain_base = FAMILIES[name][2]
    vocab = model.config.vocab_size
    result = {"input": torch.from_numpy(integers(f"{name}.input", B * T, vocab).reshape(B, T)),
              "target": torch.from_numpy(integers(f"{name}.target", B * T, vocab).reshape(B, T))}
    logits = logits_of(model, result["input"])
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, vocab).float(), result["target"].reshape(-1))
    model.zero_grad(set_to_none=True)
    loss.backward()
    result["logits"] = logits.detach().float().contiguous()
    result["loss"] = loss.detach().reshape(1)
    probes = []
    for tensor, parameter in sorted(model.named_parameters()):
        gradient = parameter.grad.detach().double().reshape(-1).numpy()
        probes.append([float(numpy.sqrt((gradient * gradient).sum())),
                       float((gradient * uniform("probe." + tensor, gradient.size)).sum())])
        if gradient.size > kWhole:
            gradient = gradient[integers("sample." + tensor, kSampled, gradient.size)]
        result["grad." + tensor] = torch.from_numpy(gradient.astype(numpy.float32))
    result["probes"] = torch.tensor(probes, dtype=torch.float32)
    log(f"{name}: loss {float(loss):.6f}, logits to {float(logits.abs().max()):.3f}")
    try:
        ids = greedy(model, name, vocab)
        result["greedy"] = torch.tensor(ids)
        check_cached_generation(model, name, ids)
    except Exception:
        log(f"{name}: greedy failed\n{traceback.format_exc()}")
    folder = os.path.join(out, name)
    os.makedirs(folder)
    shapes = {tensor: list(parameter.shape) for tensor, parameter in model.named_parameters()}
    with tempfile.TemporaryDirectory() as saved:
        try:
            model.config.save_pretrained(saved)
            shutil.copy(os.path.join(saved, "config.json"), folder)
            shapes = saved_tensors(model, saved, name, gain_base)
            shutil.copy(os.path.join(saved, "config.json"), folder)
        except Exception:
            log(f"{name}: saving failed\n{traceback.format_exc()}")
    save_file({key: value.contiguous() for key, value in result.items()}, os.path.join(folder, "reference.safetensors"),
              metadata={"tensors": json.dumps(shapes, sort_keys=True), "gain_base": str(gain_base),
                        "made_by": f"transformers {transformers.__version__}, torch {torch.__version__}"})
    return result


def check_export(folder, references):
    """Transformers loads a folder that thimble exported, and computes the family's logits."""
    name = os.path.basename(os.path.normpath(folder))
    family = name.split(".")[0]
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True,
                                                                    attn_implementation="eager")
    problems = {key: str(value) for key, value in info.items() if value}
    with torch.no_grad():
        logits = logits_of(model.float().eval(), references[family]["input"])
    difference = float((logits - references[family]["logits"]).abs().max())
    log(f"export {name}: {type(model).__name__}, logits differ by {difference:.2e}, loading problems: {problems}")
    return {"difference": difference, "problems": problems}


def main(out, folders):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
    except Exception:
        log(traceback.format_exc())
    log(f"transformers {transformers.__version__}, torch {torch.__version__}, numpy {numpy.__version__}")
    os.makedirs(out, exist_ok=True)
    work = tempfile.mkdtemp()
    references, report = {}, {}
    for name in FAMILIES:
        try:
            references[name] = reference(name, work)
            report[name] = "ok"
        except Exception:
            log(f"{name}: FAILED\n{traceback.format_exc()}")
            report[name] = "failed"
    for folder in folders:
        try:
            report[folder] = check_export(folder, references)
        except Exception:
            log(f"{folder}: FAILED\n{traceback.format_exc()}")
            report[folder] = "failed"
    for file, text in ("log.txt", "\n".join(LOG) + "\n"), ("report.json", json.dumps(report, indent=1) + "\n"):
        with open(os.path.join(out, file), "w", encoding="utf-8") as stream:
            stream.write(text)
    with tarfile.open(os.path.join(out, "architectures.tar.gz"), "w:gz") as tar:
        for name in sorted(os.listdir(work)):
            tar.add(os.path.join(work, name), arcname=name)
    shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
