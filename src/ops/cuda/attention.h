// How attention is divided into blocks on CUDA, and which kernels handle which case.
//
//   attention.cu         plain f32 arithmetic: any head size up to 128, any layout, any row dtype
//   attention_mma.cu     tensor cores: bf16 or f16, head sizes 32, 64 and 128, 16-byte aligned rows
//   attention_wgmma*.cu  the same cases in bf16 on Hopper, with Hopper's own instructions
//
// A thread block has 64 or 128 queries of a head (forward, dq) or keys of a kv head (dk, dv) and
// loops over tiles of the other side in order. No two blocks add to the same result, so results are
// deterministic. Tiles start at multiples of their size, so a document's bits depend on its
// position modulo 128. A NaN may reach all rows that share a tile with it, including those of other
// documents.
#pragma once

#include "ops/attention.h"
#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

inline constexpr int kQueryTile = 64, kKeyTile = 64;

// Inputs of every attention kernel.
struct AttentionRows {
  View q, k, v;
  Ints first;
  std::int64_t rows;
  std::int32_t size, group;  // D, and query heads per kv head
  float scale;

  explicit AttentionRows(const Attention& op)
      : q(op.q),
        k(op.k),
        v(op.v),
        first(op.first),
        rows(op.q.rows),
        size(static_cast<std::int32_t>(op.head_size())),
        group(static_cast<std::int32_t>(op.group())),
        scale(op.at.scale) {}

  // The start of the first key tile that a query of this tile attends to.
  __device__ std::int64_t first_key_tile(std::int64_t query) const {
    return first[query] / kKeyTile * kKeyTile;
  }
};

// Additional inputs, and outputs, of backward.
struct AttentionGradients {
  View dy, lse, dq, dk, dv;
  const float* delta;  // [N, H]: dy . y
  std::int32_t heads;
  bool add_dq, add_dk, add_dv;

  AttentionGradients(const Attention& op, const float* delta_of_rows)
      : dy(op.dy),
        lse(op.lse),
        dq(op.dq),
        dk(op.dk),
        dv(op.dv),
        delta(delta_of_rows),
        heads(op.at.heads),
        add_dq(op.add_dq),
        add_dk(op.add_dk),
        add_dv(op.add_dv) {}
};

// Backward stores two floats per row and head; the rows of a head are padded to whole tiles.
inline std::int64_t attention_fact_rows(std::int64_t rows) {
  return (rows + 63) / 64 * 64;
}
inline std::int64_t attention_fact_bytes(std::int64_t rows, std::int64_t heads) {
  return attention_fact_rows(rows) * heads * 2 * kFloatBytes;
}

void wgmma_attention_forward(cudaStream_t stream, const Attention& op);
void wgmma_attention_backward(cudaStream_t stream, const Attention& op, float2* facts);
void mma_attention_forward(cudaStream_t stream, const Attention& op);
void mma_attention_backward(cudaStream_t stream, const Attention& op, const float* delta);

// Prompts in cached attention: 64 rows at consecutive positions of one slot form a tile, which the
// tensor cores compute (cached_attention_blocks.cu). Other rows, from decoding and from borders
// between prompts, are computed individually (cached_attention.cu).
inline constexpr int kPromptTile = 64;

// Whether the rows of the tile at `first` belong to one prompt. Padding rows (slot -1) are ignored.
// Must be called by all threads of a block of at least 64 threads.
__device__ inline bool is_prompt_tile(const Ints& slot, const Ints& position, std::int64_t first,
                                      std::int64_t rows) {
  constexpr int kMinRows = 16;
  const std::int64_t n = first + threadIdx.x;
  const bool valid = threadIdx.x < kPromptTile && n < rows && slot[n] >= 0;
  const bool follows =
      !valid || (slot[n] == slot[first] && position[n] == position[first] + static_cast<int>(threadIdx.x));
  return __syncthreads_and(follows) != 0 && __syncthreads_count(valid) >= kMinRows;
}

// Whether there are kernels for this call: bf16, head size 32, 64 or 128.
bool supports_prompt_tiles(const CachedAttention& op);
void attend_prompt_tiles(const Context& context, const CachedAttention& op);

}  // namespace thimble::cuda
