// Cached attention in bf16 by AVX-512 BF16. A few queries of one slot and all heads that share a head of keys ("lines")
// pass over its blocks of keys together: a block is turned once for all of them (bf16_tiles.h).
//
//   S [lines, keys] = Q K^T     Y [lines, D] += P V      P is rounded to bf16, as attention_bf16.h does
//
// Blocks start at position 0, and a line's sums depend on nothing but its own query and position: batch-invariant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/attention.h"

namespace thimble::cpu {

// Rows [begin, begin + count) of a call, of one slot, at consecutive positions, and the heads of keys [kv_begin, kv_end)
// that they look at.
struct QueryRun {
  std::int64_t begin, count, kv_begin, kv_end;
};

bool cached_attention_in_bf16_pairs(const CachedAttention& op);

// Lines that pass together, at most: here, and where they are f32 in registers (cached_attention.cpp). What they collect
// fits into L2, and into L1 beside a block of keys.
inline constexpr std::int64_t kLinesInPairs = 32, kLinesInRegisters = 8;

// The call cut up into runs of at most `lines` lines (or of one query). Several heads of keys are one task where there
// are tasks enough: what lies together is read together.
std::vector<QueryRun> cached_attention_runs(const CachedAttention& op, std::int64_t lines,
                                            std::int64_t threads);

std::int64_t cached_attention_bf16_bytes(std::int64_t head_size);  // of one thread's scratch
void cached_attention_bf16_run(const CachedAttention& op, const QueryRun& run, std::byte* scratch);

}  // namespace thimble::cpu
