// How attention is cut up on CUDA, and which kernels take which case.
//
//   attention.cu         f32 sums in plain arithmetic: any head size up to 128, any layout, rows of any dtype
//   attention_mma.cu     bf16 or f16 tiles on the tensor cores: head sizes 32, 64 and 128, rows at 16-byte addresses
//   attention_wgmma*.cu  the same cases in bf16 on Hopper, by its own instructions
//
// A block of threads has 64 or 128 queries of a head (forward, dq) or keys of a kv head (dk, dv) and walks the other side
// in tiles, in order: nothing is added by two blocks, so the same bits every time. Tiles stand at multiples of their rows:
// a document's bits depend on where it stands modulo 128. A NaN reaches the rows of its tile, other documents' too.
#pragma once

#include "ops/attention.h"
#include "ops/cuda/rows.cuh"

namespace thimble::cuda {

inline constexpr int kQueryTile = 64, kKeyTile = 64;

// What every attention kernel reads.
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

  // Where the first tile of keys starts that a query of this tile sees.
  __device__ std::int64_t first_key_tile(std::int64_t query) const {
    return first[query] / kKeyTile * kKeyTile;
  }
};

// What backward reads besides, and writes.
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

// Backward keeps two floats of every row and head; a head's rows fill whole tiles.
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

// Prompts in cached attention: 64 rows that are consecutive positions of one slot are a tile, computed on the tensor cores
// (cached_attention_blocks.cu). Other rows, those that generate and the borders between prompts, are computed one by one
// (cached_attention.cu).
inline constexpr int kPromptTile = 64;

// Whether the rows of the tile at `first` are one prompt, as all threads of a block find it; of at least 64 threads.
// Rows of no slot do not spoil it.
__device__ inline bool is_prompt_tile(const Ints& slot, const Ints& position, std::int64_t first,
                                      std::int64_t rows) {
  constexpr int kWorthIt = 16;
  const std::int64_t n = first + threadIdx.x;
  const bool there = threadIdx.x < kPromptTile && n < rows && slot[n] >= 0;
  const bool follows =
      !there || (slot[n] == slot[first] && position[n] == position[first] + static_cast<int>(threadIdx.x));
  return __syncthreads_and(follows) != 0 && __syncthreads_count(there) >= kWorthIt;
}

// Whether there are kernels for it: bf16, heads of 32, 64 or 128.
bool takes_prompt_tiles(const CachedAttention& op);
void attend_prompt_tiles(const Context& context, const CachedAttention& op);

}  // namespace thimble::cuda
