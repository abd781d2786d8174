// How a call is divided among threads: tasks of rows, sums over rows, and scratch per thread.
//
// Sums over rows have the same bits for any number of threads. Rows are split into at most 64
// blocks, at positions that depend only on the number of rows. Each block is summed into its own
// partial row; the partial rows are then added in order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/parallel.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace thimble::cpu {

struct RowBlocks {
  static constexpr std::int64_t kMaxBlocks = 64;
  static constexpr std::int64_t kMinRows = 16;  // adding up shorter blocks costs too much

  explicit RowBlocks(std::int64_t rows)
      : rows_each(std::max(kMinRows, (rows + kMaxBlocks - 1) / kMaxBlocks)),
        count((rows + rows_each - 1) / rows_each) {}

  std::int64_t rows_each, count;
};

constexpr std::int64_t kFloatsPerLine = kAlignment / static_cast<std::int64_t>(sizeof(float));

// Bytes of an f32 row in scratch, padded to the alignment of the next row.
inline std::int64_t row_bytes(std::int64_t width) {
  return align_up(width, kFloatsPerLine) * static_cast<std::int64_t>(sizeof(float));
}

// Scratch bytes for sums of `width` columns over at most `rows` rows. Fewer rows may need more
// blocks: 1025 rows make 61, 1024 make 64.
inline std::int64_t row_sum_bytes(std::int64_t rows, std::int64_t width) {
  const std::int64_t max_blocks =
      std::min(RowBlocks::kMaxBlocks, (rows + RowBlocks::kMinRows - 1) / RowBlocks::kMinRows);
  return max_blocks * row_bytes(width);
}

// body(begin, end, partial) adds the contribution of rows [begin, end) to partial[0 .. width),
// which is zeroed. finish(total) then receives the sums. If width is 0, body still runs, with
// partial = nullptr.
template <class Body, class Finish>
void sum_over_rows(std::int64_t rows, std::int64_t width, const Tensor& scratch, Body body, Finish finish) {
  const RowBlocks blocks(rows);
  const std::int64_t pitch = align_up(width, kFloatsPerLine);
  check(width == 0 || scratch.cols >= blocks.count * pitch * static_cast<std::int64_t>(sizeof(float)),
        "[row sums] {} bytes of scratch are too few for {} rows of {}", scratch.cols, rows, width);
  float* partials = static_cast<float*>(scratch.data);
  parallel_for(blocks.count, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b) {
      float* partial = width > 0 ? partials + b * pitch : nullptr;
      if (partial) std::memset(partial, 0, static_cast<std::size_t>(width) * sizeof(float));
      body(b * blocks.rows_each, std::min(rows, (b + 1) * blocks.rows_each), partial);
    }
  });
  if (width == 0) return;
  for (std::int64_t b = 1; b < blocks.count; ++b)
    for (std::int64_t c = 0; c < width; ++c) partials[c] += partials[b * pitch + c];
  finish(partials);
}

// Adds a total of `width` columns to a gradient: per channel, or summed into one shared value.
inline void add_total(const float* total, std::int64_t width, float* gradient, std::int64_t gradient_cols) {
  if (gradient_cols == width) {
    for (std::int64_t c = 0; c < width; ++c) gradient[c] += total[c];
    return;
  }
  double sum = 0;
  for (std::int64_t c = 0; c < width; ++c) sum += static_cast<double>(total[c]);
  gradient[0] += static_cast<float>(sum);
}

// Rows per task such that a task is worth a thread: about 16 KiB of f32.
inline std::int64_t rows_per_task(std::int64_t width) {
  return std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, width));
}

// A call's scratch, divided into equal parts, one per thread.
class ThreadScratch {
 public:
  // The bytes to plan for the current number of threads.
  static std::int64_t bytes(std::int64_t bytes_each) {
    return align_up(bytes_each, kAlignment) * max_threads();
  }

  ThreadScratch(const Tensor& scratch, std::int64_t bytes_each, std::string_view op)
      : data_(static_cast<std::byte*>(scratch.data)), bytes_each_(align_up(bytes_each, kAlignment)) {
    check(scratch.cols >= bytes(bytes_each), "[{}] scratch was planned for fewer than {} threads", op,
          max_threads());
  }

  // For memory planned with bytes(bytes_each).
  ThreadScratch(std::byte* memory, std::int64_t bytes_each)
      : data_(memory), bytes_each_(align_up(bytes_each, kAlignment)) {}

  // The calling thread's part, aligned to kAlignment.
  std::byte* mine() const { return data_ + thread_index() * bytes_each_; }

 private:
  std::byte* data_;
  std::int64_t bytes_each_;
};

// Allocates aligned pieces of one part. Without memory it only counts bytes, so a struct whose
// constructor takes its pieces also computes the size it needs.
class ScratchCutter {
 public:
  explicit ScratchCutter(std::byte* begin = nullptr) : begin_(begin) {}

  template <class T>
  void take(T*& piece, std::int64_t count) {
    piece = begin_ ? reinterpret_cast<T*>(begin_ + bytes_) : nullptr;
    bytes_ += align_up(count * static_cast<std::int64_t>(sizeof(T)), kAlignment);
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* begin_;
  std::int64_t bytes_ = 0;
};

}  // namespace thimble::cpu
