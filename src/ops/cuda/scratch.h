// How kernels cut their work, and the scratch that follows from it: one place for those who plan and those who use it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace thimble::cuda {

// Sums over rows: blocks of rows, at places that depend on their number alone.
struct SumBlocks {
  static constexpr std::int64_t kMost = 528,
                                kFewestRows = 16;  // four blocks for each of an H200's 132 multiprocessors

  explicit SumBlocks(std::int64_t rows)
      : rows_each(std::max(kFewestRows, (rows + kMost - 1) / kMost)),
        count((rows + rows_each - 1) / rows_each) {}

  std::int64_t rows_each, count;
};

// Bytes for `sums` sums of `cols` columns over at most `rows` rows, and one row of totals. (Fewer rows may make more
// blocks.)
inline std::int64_t column_sum_bytes(std::int64_t rows, std::int64_t cols, int sums) {
  const std::int64_t most =
      std::min(SumBlocks::kMost, (rows + SumBlocks::kFewestRows - 1) / SumBlocks::kFewestRows);
  return (most + 1) * sums * cols * static_cast<std::int64_t>(sizeof(float));
}

// Embedding's backward cuts the sorted rows into chunks.
inline constexpr std::int64_t kEmbeddingChunk = 32;
inline std::int64_t embedding_chunks(std::int64_t rows) {
  return (rows + kEmbeddingChunk - 1) / kEmbeddingChunk;
}

// The head's logits: at a stride that keeps every row aligned.
inline std::int64_t head_loss_stride(std::int64_t vocabulary) {
  return (vocabulary + 15) / 16 * 16;
}

// Rows whose products a linear with a bias keeps in f32 at a time.
inline std::int64_t linear_bias_rows(std::int64_t rows) {
  return std::min<std::int64_t>(rows, 4096);
}

// Calls of up to so many rows decode: each row is computed in an order of its own. Larger ones read prompts.
inline constexpr std::int64_t kFewRows = 64;

// Cached attention of few rows cuts a long context into parts of so many keys.
inline constexpr std::int64_t kCachedPart = 512;
inline std::int64_t cached_attention_parts(std::int64_t rows, std::int64_t context) {
  return rows <= kFewRows && context > 2 * kCachedPart ? (context + kCachedPart - 1) / kCachedPart : 1;
}

// Attention's backward keeps two floats of every row and head; a head's rows fill whole tiles.
inline std::int64_t attention_fact_rows(std::int64_t rows) {
  return (rows + 63) / 64 * 64;
}
inline std::int64_t attention_fact_bytes(std::int64_t rows, std::int64_t heads) {
  return attention_fact_rows(rows) * heads * 2 * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace thimble::cuda
