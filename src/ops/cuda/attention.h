// How attention is divided into blocks on CUDA, and which kernels handle which case.
//
//   attention.cu         plain f32 arithmetic: any head size up to 256, any layout, any row dtype
//   attention_mma.cu     tensor cores: bf16 or f16, head sizes 32, 64, 96, 128 and 256, 16-byte
//                        aligned rows
//   attention_wgmma*.cu  bf16 on Hopper, with Hopper's own instructions: head sizes 32, 64 and 128,
//                        no softcap
//
// All of them take windows, and skip tiles in which no query attends to any key.
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

// Caps products q.k so that scale times a product is the capped score. Without a cap, all members
// are 0.
struct Softcap {
  float share = 0, cap = 0;  // scale / softcap, softcap / scale

  Softcap(float softcap, float scale) {
    if (softcap > 0) share = scale / softcap, cap = softcap / scale;
  }

  template <int R, int C>
  __device__ void apply(float (&products)[R][C]) const {
    if (share == 0) return;
#pragma unroll
    for (auto& row : products)
#pragma unroll
      for (float& product : row) product = cap * tanhf(product * share);
  }
  __device__ float apply(float product) const {
    return share == 0 ? product : cap * tanhf(product * share);
  }
  // The derivative, from the capped product: 1 - tanh^2, and 1 without a cap.
  __device__ float slope(float capped) const {
    const float t = capped * share;
    return 1 - t * t;
  }
};

// Inputs of every attention kernel.
struct AttentionRows {
  View q, k, v;
  Ints first;
  std::int64_t rows;
  std::int32_t size, group;  // D, and query heads per kv head
  std::int32_t window;       // no window: as long as the batch
  float scale;
  Softcap softcap;

  explicit AttentionRows(const Attention& op)
      : q(op.q),
        k(op.k),
        v(op.v),
        first(op.first),
        rows(op.q.rows),
        size(static_cast<std::int32_t>(op.head_size())),
        group(static_cast<std::int32_t>(op.group())),
        window(op.at.window > 0 ? op.at.window : static_cast<std::int32_t>(rows)),
        scale(op.at.scale),
        softcap(op.at.softcap, scale) {}

  // The first row that row n attends to; non-decreasing. Row numbers fit into 32 bits, as `first`.
  __device__ std::int32_t first_key(std::int64_t n) const {
    return max(first[n], static_cast<std::int32_t>(n) - window + 1);
  }
  // The start of the first key tile that a query of this tile attends to.
  __device__ std::int64_t first_key_tile(std::int64_t query) const {
    return first_key(query) / kKeyTile * kKeyTile;
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

// Lets a kernel use `bytes` of dynamic shared memory.
template <class Kernel>
void reserve_shared(const char* name, Kernel kernel, int bytes) {
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaErrorInvalidValue)
    refuse("[attention] expected heads whose tiles fit into this GPU's shared memory per block, in bytes",
           bytes);
  checked(error, name);
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

// Whether there are kernels for this call: bf16, head size 32, 64, 96, 128 or 256.
bool supports_prompt_tiles(const CachedAttention& op);
void attend_prompt_tiles(const Context& context, const CachedAttention& op);

}  // namespace thimble::cuda
