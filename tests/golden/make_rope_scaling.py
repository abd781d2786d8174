#!/usr/bin/env python3
"""Makes tests/golden/rope_scaling.json: RoPE's frequencies with yarn and longrope, and the factors of
queries and keys.

  make_rope_scaling.py OUT.json        needs nothing else

Written from the papers, independently of src/model/params.cpp: yarn is equations 17 to 23 of "YaRN:
Efficient Context Window Extension of Large Language Models" (Peng et al. 2023) with the bounds rounded
outwards, as the authors' code does; longrope is the factor of "LongRoPE" (Ding et al. 2024) in the form
of Phi-3's published model.
"""
import json
import math
import sys


def wavelength(base, dims, pair):
    return 2 * math.pi * base ** (2 * pair / dims)


def yarn(base, dims, factor, original, fast, slow):
    # The pairs, as real numbers, with `fast` and `slow` turns in the original context.
    def pair_of(turns):
        return dims * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))

    first, last = max(math.floor(pair_of(fast)), 0), min(math.ceil(pair_of(slow)), dims - 1)
    if first == last:
        last += 0.001
    out = []
    for pair in range(dims // 2):
        plain = 2 * math.pi / wavelength(base, dims, pair)
        gamma = 1 - min(max((pair - first) / (last - first), 0), 1)  # 1: kept
        out.append((1 - gamma) * plain / factor + gamma * plain)
    return out, 0.1 * math.log(factor) + 1


def longrope(base, dims, factor, original, divisors):
    out = [2 * math.pi / wavelength(base, dims, pair) / divisors[pair] for pair in range(dims // 2)]
    return out, math.sqrt(1 + math.log(factor) / math.log(original))


def main():
    cases = []
    for base, dims, factor, original, fast, slow in [(1e4, 64, 4, 2048, 32, 1), (1e6, 128, 4, 32768, 32, 1),
                                                     (1e4, 16, 16, 64, 32, 1), (5e5, 96, 8, 8192, 16, 2)]:
        frequencies, attention = yarn(base, dims, factor, original, fast, slow)
        cases.append({"settings": ["rope_scaling=yarn", f"rope_base={base}", f"rope_dims={dims}", f"rope_factor={factor}",
                                   f"rope_original_context={original}", f"rope_beta_fast={fast}",
                                   f"rope_beta_slow={slow}", f"context={4 * original}"],
                      "frequencies": frequencies, "attention": attention})
    short, long = [1.0, 1.1, 1.25, 1.5], [1.0, 2.0, 4.0, 8.0]
    for context, divisors in [(128, short), (129, long), (512, long)]:
        frequencies, attention = longrope(1e4, 8, 4, 128, divisors)
        cases.append({"settings": ["rope_scaling=longrope", "rope_base=10000", "rope_dims=8", "rope_factor=4",
                                   "rope_original_context=128", f"context={context}",
                                   "rope_short_factors=" + ",".join(map(str, short)),
                                   "rope_long_factors=" + ",".join(map(str, long))],
                      "frequencies": frequencies, "attention": attention})
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main()
