// Attention in bf16 by AVX-512 BF16, its products by AMX where there is one: scores stand transposed, [keys, queries], so that a query is a lane and
// nothing is ever summed across lanes. Every product is tiles of bf16 into f32 (bf16_tiles.h, amx_tiles.h):
//
//   forward   S^T = K Q^T     Y^T += V^T P^T
//   backward  S^T = K Q^T     dP^T = V dY^T     dV += P^T dY     dK += dS^T Q     dQ^T += K^T dS^T
//
// P and dS are rounded to bf16 before they are multiplied again. Other head sizes and processors: attention.cpp.
#pragma once

#include "ops/cpu/attention_tiles.h"
#include "ops/cpu/bf16_tiles.h"

namespace thimble::cpu {

inline bool attention_in_bf16_pairs(DType dtype, std::int64_t head_size) {
  return dtype == DType::bf16 && head_size % 16 == 0 && multiplies_bf16_pairs();
}

inline constexpr std::int64_t kHalf = kTile / 2;

// Queries that pass over the keys together in forward: two tiles, so that a tile of keys is prepared half as often.
inline constexpr std::int64_t kForwardBlock = 2 * kTile;

std::int64_t attention_bf16_forward_bytes(std::int64_t head_size, std::int64_t group);
std::int64_t attention_bf16_backward_bytes(std::int64_t rows, std::int64_t head_size);

// Queries [block, block + kForwardBlock) of a document, all heads that share a kv head.
void attention_bf16_block(const Attention& op, std::int64_t kv_head, Document document, std::int64_t block,
                          std::byte* scratch);
void attention_bf16_backward_document(const Attention& op, std::int64_t kv_head, Document document,
                                      std::byte* scratch);

}  // namespace thimble::cpu
