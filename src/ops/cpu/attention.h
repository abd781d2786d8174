// Shared declarations of CPU attention: documents, blocks of queries, tiles of keys, and the choice
// of kernel.
//
//   attention.cpp              f32 tiles with Highway: any dtype, any head size
//   attention_bf16.cpp         bf16 with AVX-512 BF16 or AMX: head sizes that are multiples of 16
//   cached_attention.cpp       decoding, with Highway
//   cached_attention_bf16.cpp  decoding in bf16, with AVX-512 BF16
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/attention.h"
#include "ops/cpu/bf16_tiles.h"
#include "ops/cpu/row_blocks.h"

namespace thimble::cpu {

inline constexpr std::int64_t kTile = 64;  // queries per block, keys per tile
inline constexpr std::int64_t kTilePad =
    16;  // tile rows are padded to whole vectors of every instruction set

// Backward sums dq (or dk and dv) in f32 for this many rows of a document at a time. This bounds
// its memory; in longer documents a bf16 gradient is rounded once per window.
inline constexpr std::int64_t kWindow = 1024;

// A range of rows that attend only to each other.
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

// The first tile of a document with a key that `query` attends to. Tiles are counted from the start
// of the document.
inline std::int64_t first_tile(const Attention& op, Document document, std::int64_t query) {
  return document.begin + (op.first_key(query) - document.begin) / kTile * kTile;
}

// Rows of a window, for a batch of `rows` rows.
inline std::int64_t window_rows(std::int64_t rows) {
  return std::min(kWindow, align_up(rows, kTile));
}

// attention_bf16.cpp

inline bool attention_in_bf16_pairs(DType dtype, std::int64_t head_size) {
  return dtype == DType::bf16 && head_size % 16 == 0 && multiplies_bf16_pairs();
}

// Queries processed together in forward: two tiles halve the work of preparing key tiles.
inline constexpr std::int64_t kForwardBlock = 2 * kTile;

// Scratch bytes per thread.
std::int64_t attention_bf16_forward_bytes(std::int64_t head_size, std::int64_t group);
std::int64_t attention_bf16_backward_bytes(std::int64_t rows, std::int64_t head_size);

// Queries [block, block + kForwardBlock) of a document, for all heads that share a kv head.
void attention_bf16_block(const Attention& op, std::int64_t kv_head, Document document, std::int64_t block,
                          std::byte* scratch);
void attention_bf16_backward_document(const Attention& op, std::int64_t kv_head, Document document,
                                      std::byte* scratch);

// cached_attention_bf16.cpp

// Rows [begin, begin + count) of a call, all in one slot at consecutive positions, and the kv heads
// [kv_begin, kv_end) to process. A line is one query under one head.
struct QueryRun {
  std::int64_t begin, count, kv_begin, kv_end;
};

bool cached_attention_in_bf16_pairs(const CachedAttention& op);

// The maximum number of lines that share one pass over the keys: in bf16 (kLinesInPairs), and in
// f32 registers (cached_attention.cpp). Their results fit into L2, and into L1 next to a block of
// keys.
inline constexpr std::int64_t kLinesInPairs = 32, kLinesInRegisters = 8;

// Splits the call into runs of at most `lines` lines (or of one query). If there are enough tasks,
// a task takes several kv heads, because their keys are adjacent in memory.
std::vector<QueryRun> cached_attention_runs(const CachedAttention& op, std::int64_t lines,
                                            std::int64_t threads);

std::int64_t cached_attention_bf16_bytes(std::int64_t head_size);  // scratch bytes per thread
void cached_attention_bf16_run(const CachedAttention& op, const QueryRun& run, std::byte* scratch);

}  // namespace thimble::cpu
