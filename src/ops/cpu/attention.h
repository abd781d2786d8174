// How attention is cut up on the CPU: documents, blocks of queries and tiles of keys, and which
// kernel takes a call.
//
//   attention.cpp              f32 tiles by Highway: any dtype, any head size
//   attention_bf16.cpp         bf16 with head sizes that 16 divides, by AVX-512 BF16 or AMX
//   cached_attention.cpp       decoding, by Highway
//   cached_attention_bf16.cpp  decoding in bf16, by AVX-512 BF16
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/attention.h"
#include "ops/cpu/bf16_tiles.h"
#include "ops/cpu/row_blocks.h"

namespace thimble::cpu {

inline constexpr std::int64_t kTile = 64;     // queries in a block, keys in a tile
inline constexpr std::int64_t kTilePad = 16;  // tile rows are padded to whole vectors of any instruction set

// Backward sums dq (or dk and dv) in f32 for this many rows of a document at a time. This bounds its
// memory; in longer documents a bf16 gradient is rounded once per window.
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

// attention_bf16.cpp

inline bool attention_in_bf16_pairs(DType dtype, std::int64_t head_size) {
  return dtype == DType::bf16 && head_size % 16 == 0 && multiplies_bf16_pairs();
}

// Queries that pass over the keys together in forward: two tiles, so that a tile of keys is prepared half as often.
inline constexpr std::int64_t kForwardBlock = 2 * kTile;

// Bytes of one thread's tiles.
std::int64_t attention_bf16_forward_bytes(std::int64_t head_size, std::int64_t group);
std::int64_t attention_bf16_backward_bytes(std::int64_t rows, std::int64_t head_size);

// Queries [block, block + kForwardBlock) of a document, all heads that share a kv head.
void attention_bf16_block(const Attention& op, std::int64_t kv_head, Document document, std::int64_t block,
                          std::byte* scratch);
void attention_bf16_backward_document(const Attention& op, std::int64_t kv_head, Document document,
                                      std::byte* scratch);

// cached_attention_bf16.cpp

// Rows [begin, begin + count) of a call, of one slot, at consecutive positions, and the kv heads
// [kv_begin, kv_end) that they look at. A line is one query under one head.
struct QueryRun {
  std::int64_t begin, count, kv_begin, kv_end;
};

bool cached_attention_in_bf16_pairs(const CachedAttention& op);

// The most lines that pass over the keys together: in bf16, and in f32 in registers
// (cached_attention.cpp). What they collect fits into L2, and into L1 beside a block of keys.
inline constexpr std::int64_t kLinesInPairs = 32, kLinesInRegisters = 8;

// The call cut up into runs of at most `lines` lines (or of one query). Several kv heads are one task
// where there are tasks enough: neighbours in memory are read together.
std::vector<QueryRun> cached_attention_runs(const CachedAttention& op, std::int64_t lines,
                                            std::int64_t threads);

std::int64_t cached_attention_bf16_bytes(std::int64_t head_size);  // of one thread's scratch
void cached_attention_bf16_run(const CachedAttention& op, const QueryRun& run, std::byte* scratch);

}  // namespace thimble::cpu
