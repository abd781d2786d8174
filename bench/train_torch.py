#!/usr/bin/python3
"""The peer of `thimble bench train`: the same models in PyTorch, complete optimizer steps on random
tokens.

    bench/train_torch.py --preset golf|llama [--layers N --dim N ...] [--dtype f32|bf16] [--device cpu|cuda]
                         [--threads N] [--compile] [--batch-tokens N] [--micro-batch-tokens N] [--steps N]

Prints one JSON line: tokens_per_second, gflops, ms (of the median step), versions. FLOPs are
counted as in thimble: matrix products, the causal half of attention, backward as twice forward. The
optimizer's products take time but are not counted. Runs with PyTorch 1.13 (Debian's python3-torch)
and with 2.x, which has torch.compile, fused attention and rms_norm. On a GPU the golf preset is
trained as in the published script: torch.compile (with --compile), flash attention, fused Adam,
Muon with a compiled Newton-Schulz in bf16, and gradients accumulated over micro-batches
(--micro-batch-tokens, default 65,536).
"""
import argparse
import contextlib
import json
import math
import platform
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

HAS_RMS_NORM = hasattr(F, 'rms_norm')  # since 2.4
HAS_FUSED_ATTENTION = hasattr(F, 'scaled_dot_product_attention')  # since 2.0
HAS_GROUPS = HAS_FUSED_ATTENTION and 'enable_gqa' in (F.scaled_dot_product_attention.__doc__ or '')  # since 2.5
HAS_COMPILE = hasattr(torch, 'compile')

PRESETS = {
    'golf': dict(layers=9, dim=512, heads=8, kv_heads=4, mlp_hidden=1024, vocab=1024, context=1024, eps=1.1920929e-07,
                 mlp='relu2', golf=True, softcap=30.0, rope_direction=-1),
    'llama': dict(layers=9, dim=512, heads=8, kv_heads=4, mlp_hidden=1024, vocab=1024, context=1024, eps=1e-5,
                  mlp='swiglu', golf=False, softcap=0.0, rope_direction=1),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--preset', choices=sorted(PRESETS), default='golf')
    for name in ['layers', 'dim', 'heads', 'kv-heads', 'mlp-hidden', 'vocab', 'context']:
        parser.add_argument('--' + name, type=int, help="overrides the preset")
    parser.add_argument('--dtype', choices=['f32', 'bf16'], default='bf16', help='bf16: autocast, weights stay f32')
    parser.add_argument('--device', choices=['cpu', 'cuda'], default='cpu')
    parser.add_argument('--threads', type=int, default=0, help="0: PyTorch's default")
    parser.add_argument('--compile', action='store_true', help='use torch.compile if available')
    parser.add_argument('--batch-tokens', type=int, default=65536, help='tokens per step')
    parser.add_argument('--micro-batch-tokens', type=int, default=0, help='0: 8192 on the CPU, 65536 on a GPU')
    parser.add_argument('--warmup', type=int, default=1, help='steps before the measured ones')
    parser.add_argument('--short-warmup', action='store_true', help='warmup steps of one micro-batch each')
    parser.add_argument('--steps', type=int, default=3, help='measured steps')
    return parser.parse_args()


def shape_from(args):
    shape = argparse.Namespace(**PRESETS[args.preset])
    for name in ['layers', 'dim', 'heads', 'kv_heads', 'mlp_hidden', 'vocab', 'context']:
        if getattr(args, name):
            setattr(shape, name, getattr(args, name))
    shape.head_dim = shape.dim // shape.heads
    return shape


def rms_norm(x, eps, weight=None):
    if HAS_RMS_NORM:
        return F.rms_norm(x, (x.size(-1),), weight, eps)
    wide = x.float()
    y = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    return y if weight is None else y * weight.to(x.dtype)


def angles(shape, device):
    frequencies = shape.head_dim ** -1.0 * torch.arange(0, shape.head_dim, 2, dtype=torch.float32)
    turns = torch.outer(torch.arange(shape.context, dtype=torch.float32), 10000.0 ** -frequencies)
    return turns.cos().to(device), (shape.rope_direction * turns.sin()).to(device)


def rope(x, cos, sin):
    half = x.size(-1) // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def attention(q, k, v, causal_mask):
    """Shapes [B, heads, T, D]; neighbouring query heads share a key head."""
    if HAS_GROUPS:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    group = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    if HAS_FUSED_ATTENTION:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = torch.matmul(q * q.size(-1) ** -0.5, k.transpose(-2, -1)).add_(causal_mask.to(q.dtype))
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def matrix(rows, cols, zero=False):
    return nn.Parameter(torch.zeros(rows, cols) if zero else torch.empty(rows, cols).uniform_(-1, 1) / math.sqrt(cols))


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        C, kv = shape.dim, shape.kv_heads * shape.head_dim
        gates = 2 if shape.mlp == 'swiglu' else 1
        self.q, self.k, self.v, self.proj = matrix(C, C), matrix(kv, C), matrix(kv, C), matrix(C, C, zero=shape.golf)
        self.fc, self.mlp_proj = matrix(gates * shape.mlp_hidden, C), matrix(C, shape.mlp_hidden, zero=shape.golf)
        if shape.golf:
            self.q_gain = nn.Parameter(torch.full((shape.heads,), 1.5))
            self.attn_scale, self.mlp_scale = nn.Parameter(torch.ones(C)), nn.Parameter(torch.ones(C))
            self.resid_mix = nn.Parameter(torch.stack((torch.ones(C), torch.zeros(C))))
        else:
            self.attn_norm, self.mlp_norm = nn.Parameter(torch.ones(C)), nn.Parameter(torch.ones(C))

    def attend(self, h, tables):
        s, (B, T, _) = self.shape, h.shape
        q = F.linear(h, self.q.to(h.dtype)).view(B, T, s.heads, s.head_dim).transpose(1, 2)
        k = F.linear(h, self.k.to(h.dtype)).view(B, T, s.kv_heads, s.head_dim).transpose(1, 2)
        v = F.linear(h, self.v.to(h.dtype)).view(B, T, s.kv_heads, s.head_dim).transpose(1, 2)
        if s.golf:
            q, k = rms_norm(q, s.eps), rms_norm(k, s.eps)
        cos, sin, mask = [table.to(h.dtype) for table in tables]
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        if s.golf:
            q = q * self.q_gain.to(q.dtype)[None, :, None, None]
        y = attention(q, k, v, mask).transpose(1, 2).reshape(B, T, s.dim)
        return F.linear(y, self.proj.to(h.dtype))

    def mlp(self, h):
        h = F.linear(h, self.fc.to(h.dtype))
        if self.shape.mlp == 'relu2':
            h = torch.relu(h).square()
        else:
            gate, up = h.chunk(2, dim=-1)
            h = F.silu(gate) * up
        return F.linear(h, self.mlp_proj.to(h.dtype))

    def forward(self, x, x0, tables):
        eps = self.shape.eps
        if not self.shape.golf:
            x = x + self.attend(rms_norm(x, eps, self.attn_norm.to(x.dtype)), tables)
            return x + self.mlp(rms_norm(x, eps, self.mlp_norm.to(x.dtype)))
        mix = self.resid_mix.to(x.dtype)
        x = mix[0] * x + mix[1] * x0
        x = x + self.attn_scale.to(x.dtype) * self.attend(rms_norm(x, eps), tables)
        return x + self.mlp_scale.to(x.dtype) * self.mlp(rms_norm(x, eps))


class Gpt(nn.Module):
    def __init__(self, shape, dtype, device):
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.embedding = nn.Parameter(torch.randn(shape.vocab, shape.dim) * (0.005 if shape.golf else 0.02))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        if shape.golf:
            self.skip_weights = nn.Parameter(torch.ones(shape.layers // 2, shape.dim))
        else:
            self.final_norm = nn.Parameter(torch.ones(shape.dim))
        mask = torch.full((shape.context, shape.context), -math.inf).triu(1)
        self.tables = (*angles(shape, device), mask.to(device))

    def hidden(self, tokens):
        x = F.embedding(tokens, self.embedding).to(self.dtype)
        if not self.shape.golf:
            for block in self.blocks:
                x = block(x, None, self.tables)
            return rms_norm(x, self.shape.eps, self.final_norm.to(x.dtype))
        x = x0 = rms_norm(x, self.shape.eps)
        skips, first = [], self.shape.layers // 2
        for i, block in enumerate(self.blocks):
            if i >= first and skips:
                x = x + self.skip_weights[i - first].to(x.dtype) * skips.pop()
            x = block(x, x0, self.tables)
            if i < first:
                skips.append(x)
        return rms_norm(x, self.shape.eps)

    def forward(self, tokens, targets):
        logits = F.linear(self.hidden(tokens), self.embedding.to(self.dtype))
        if self.shape.softcap:
            logits = self.shape.softcap * torch.tanh(logits / self.shape.softcap)
        return F.cross_entropy(logits.float().view(-1, self.shape.vocab), targets.reshape(-1))


def newton_schulz(u, steps=5):
    """Orthogonalizes Muon's update, in bf16."""
    x = u.bfloat16()
    x = x / (x.norm() + 1e-7)
    tall = x.size(0) > x.size(1)
    x = x.t() if tall else x
    for _ in range(steps):
        a = x @ x.t()
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.t() if tall else x


class Muon:
    def __init__(self, params, lr, orthogonalize):
        self.params, self.lr, self.orthogonalize = params, lr, orthogonalize
        self.momentum = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self, mu=0.95):
        for p, momentum in zip(self.params, self.momentum):
            momentum.mul_(mu).add_(p.grad)
            update = self.orthogonalize(p.grad.add(momentum, alpha=mu))
            p.add_(update.to(p.dtype), alpha=-self.lr * max(1, p.size(0) / p.size(1)) ** 0.5)


def optimizers(model, shape, args):
    extra = {'fused': True} if args.device == 'cuda' else {}
    if not shape.golf:
        return [torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, **extra)]
    matrices = [p for name, p in model.blocks.named_parameters() if p.ndim == 2 and 'resid_mix' not in name]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen and p is not model.embedding]
    orthogonalize = torch.compile(newton_schulz, dynamic=False) if args.compile and HAS_COMPILE else newton_schulz
    return [Muon(matrices, 0.04, orthogonalize),
            torch.optim.Adam([{'params': [model.embedding], 'lr': 0.05}, {'params': others, 'lr': 0.04}],
                             betas=(0.9, 0.95), **extra)]


def training_flops_per_token(model, shape):
    """Three times forward: 2 per matrix element and row, and q.k and p.v over half of the
    context."""
    elements = shape.vocab * shape.dim + sum(
        p.numel() for name, p in model.blocks.named_parameters() if p.ndim == 2 and 'resid_mix' not in name)
    return 3 * (2 * elements + shape.layers * 2 * shape.dim * (shape.context + 1))


class Run:
    def __init__(self, args):
        if args.threads:
            torch.set_num_threads(args.threads)
        torch.manual_seed(1337)
        self.args, self.shape = args, shape_from(args)
        self.dtype = torch.bfloat16 if args.dtype == 'bf16' else torch.float32
        self.model = Gpt(self.shape, self.dtype, args.device).to(args.device)
        if args.device == 'cuda':
            torch.backends.cuda.matmul.allow_tf32 = True
            if args.dtype == 'bf16':  # flash attention only
                for other in ['cudnn', 'mem_efficient', 'math']:
                    getattr(torch.backends.cuda, f'enable_{other}_sdp', lambda _: None)(False)
        if self.shape.golf and args.device == 'cuda' and args.dtype == 'bf16':
            self.model.embedding.data = self.model.embedding.data.bfloat16()  # as in the published script
        self.optimizers = optimizers(self.model, self.shape, args)
        self.flops_per_token = training_flops_per_token(self.model, self.shape)
        self.forward = self.model
        if args.compile and HAS_COMPILE:
            self.forward = torch.compile(self.model, dynamic=False, fullgraph=True)
        micro = args.micro_batch_tokens or (65536 if args.device == 'cuda' else 8192)
        self.rows = max(1, min(micro, args.batch_tokens) // self.shape.context)
        self.micro_batches = max(1, args.batch_tokens // (self.rows * self.shape.context))
        self.tokens = self.micro_batches * self.rows * self.shape.context

    def autocast(self):
        if self.args.dtype == 'f32':
            return contextlib.nullcontext()
        return torch.autocast(self.args.device, dtype=torch.bfloat16)

    def step(self, micro_batches):
        size = (self.rows, self.shape.context + 1)
        for _ in range(micro_batches):
            ids = torch.randint(self.shape.vocab, size, device=self.args.device)
            with self.autocast():
                loss = self.forward(ids[:, :-1], ids[:, 1:])
            (loss / micro_batches).backward()
        if not self.shape.golf:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.model.zero_grad(set_to_none=True)
        return loss

    def measure(self):
        """Milliseconds of every step. On a GPU the host runs ahead, so events mark the ends of
        steps."""
        args = self.args
        for _ in range(args.warmup):
            loss = self.step(1 if args.short_warmup else self.micro_batches)
        if args.device == 'cpu':
            marks = [time.perf_counter()]
            for _ in range(args.steps):
                loss = self.step(self.micro_batches)
                marks.append(time.perf_counter())
            times = [1e3 * (b - a) for a, b in zip(marks, marks[1:])]
        else:
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(args.steps + 1)]
            torch.cuda.synchronize()
            marks[0].record()
            for mark in marks[1:]:
                loss = self.step(self.micro_batches)
                mark.record()
            torch.cuda.synchronize()
            times = [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
        if not math.isfinite(loss.item()):
            sys.exit('train_torch.py: the loss is not finite')
        return times, loss.item()


def versions(args):
    found = {'torch': torch.__version__, 'python': platform.python_version()}
    for line in torch.__config__.show().splitlines():
        if 'MKL-DNN' in line or 'oneDNN' in line:
            found['onednn'] = line.split(' v')[-1].split(' ')[0]
    if args.device == 'cuda':
        found.update(cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version(), gpu=torch.cuda.get_device_name())
    return found


def main():
    args = arguments()
    run = Run(args)
    times, loss = run.measure()
    ms = statistics.median(times)
    rate = run.tokens / ms * 1e3
    print(json.dumps({
        'tokens_per_second': rate,
        'gflops': rate * run.flops_per_token / 1e9,
        'ms': ms,
        'ms_all': [round(t, 3) for t in times],
        'loss': loss,
        'step_tokens': run.tokens,
        'micro_batch_tokens': run.rows * run.shape.context,
        'flops_per_token': run.flops_per_token,
        'parameters': sum(p.numel() for p in run.model.parameters()),
        'dtype': args.dtype,
        'device': args.device,
        'threads': torch.get_num_threads(),
        'compiled': bool(args.compile and HAS_COMPILE),
        'versions': versions(args),
    }))


if __name__ == '__main__':
    main()
