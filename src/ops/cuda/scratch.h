// How kernels cut their work, and the scratch that follows from it: one place for those who plan and those who use it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace thimble::cuda {

// Sums over rows: blocks of rows, at places that depend on their number alone.
struct SumBlocks {
  static constexpr std::int64_t kMost = 256, kFewestRows = 32;

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

// Rows whose products a linear with a bias keeps in f32 at a time.
inline std::int64_t linear_bias_rows(std::int64_t rows) {
  return std::min<std::int64_t>(rows, 4096);
}

}  // namespace thimble::cuda
