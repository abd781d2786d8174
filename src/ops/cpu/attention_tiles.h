// How attention is cut up: documents, blocks of queries, tiles of keys; and the memory a thread needs for
// them.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/attention.h"
#include "ops/cpu/row_blocks.h"

namespace thimble::cpu {

inline constexpr std::int64_t kTile = 64;     // queries in a block, keys in a tile
inline constexpr std::int64_t kTilePad = 16;  // tile rows are padded to whole vectors of any instruction set

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

// Floats of one thread's tiles. Forward keeps the results of all heads of a group while keys pass by.
inline std::int64_t forward_tile_floats(std::int64_t head_size, std::int64_t group) {
  const std::int64_t wide = align_up(head_size, kTilePad);
  return head_size * kTile + kTile * wide + kTile * kTile + group * kTile * (wide + 2);
}

inline std::int64_t backward_tile_floats(std::int64_t head_size) {
  const std::int64_t wide = align_up(head_size, kTilePad);
  return 2 * head_size * kTile + 6 * kTile * wide + 2 * kTile * kTile + kTile;
}

}  // namespace thimble::cpu
