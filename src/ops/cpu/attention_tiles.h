// How attention is cut up: documents, blocks of queries, tiles of keys; and the memory a thread needs for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/attention.h"
#include "ops/cpu/row_blocks.h"

namespace thimble::cpu {

inline constexpr std::int64_t kTile = 64;     // queries in a block, keys in a tile
inline constexpr std::int64_t kTilePad = 16;  // tile rows are padded to whole vectors of any instruction set

// Backward sums dq (or dk and dv) in f32 for this many rows of a document at a time: what bounds its memory,
// and what a bf16 gradient is rounded for more than once in longer documents.
inline constexpr std::int64_t kWindow = 1024;

// A run of rows that attend only to each other.
struct Document {
  std::int64_t begin, end;
};

inline std::vector<Document> documents_of(const Attention& op) {
  std::vector<Document> documents;
  for (std::int64_t n = 0; n < op.first.rows; ++n) {
    if (*op.first.row<std::int32_t>(n) == n) documents.push_back({n, n});
    documents.back().end = n + 1;
  }
  return documents;
}

// Rows of the window that is kept for a batch of so many rows.
inline std::int64_t window_rows(std::int64_t rows) {
  return std::min(kWindow, align_up(rows, kTile));
}

// Bytes of one thread's tiles. Forward keeps the results of all heads of a group while keys pass by.
inline std::int64_t attention_forward_bytes(std::int64_t head_size, std::int64_t group) {
  const std::int64_t wide = align_up(head_size, kTilePad);
  const std::int64_t floats = (head_size + wide + kTile) * kTile + group * kTile * (2 * wide + 2);
  return floats * static_cast<std::int64_t>(sizeof(float));
}

inline std::int64_t attention_backward_bytes(std::int64_t rows, std::int64_t head_size, std::int64_t group) {
  const std::int64_t wide = align_up(head_size, kTilePad);
  const std::int64_t floats =
      2 * head_size * kTile + 5 * kTile * wide + 2 * kTile * kTile + kTile + group * window_rows(rows) * wide;
  return floats * static_cast<std::int64_t>(sizeof(float));
}

// Of whichever kernels will run, forward and backward.
std::int64_t attention_thread_bytes(const Shape& q, const AttentionAttributes& at);

std::int64_t cached_attention_thread_bytes(std::int64_t head_size);

}  // namespace thimble::cpu
