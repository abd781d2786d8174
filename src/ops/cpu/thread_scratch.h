// A call's scratch cut into equal parts, one for each thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/parallel.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace thimble::cpu {

class ThreadScratch {
 public:
  // What to plan for, with as many threads as there are now.
  static std::int64_t bytes(std::int64_t bytes_each) {
    return align_up(bytes_each, kAlignment) * max_threads();
  }

  ThreadScratch(const Tensor& scratch, std::int64_t bytes_each, std::string_view op)
      : data_(static_cast<std::byte*>(scratch.data)), bytes_each_(align_up(bytes_each, kAlignment)) {
    check(scratch.cols >= bytes(bytes_each), "[{}] scratch was planned for fewer than {} threads", op,
          max_threads());
  }

  // Of memory that was planned with bytes(bytes_each).
  ThreadScratch(std::byte* memory, std::int64_t bytes_each)
      : data_(memory), bytes_each_(align_up(bytes_each, kAlignment)) {}

  // The calling thread's part, aligned to kAlignment.
  std::byte* mine() const { return data_ + thread_index() * bytes_each_; }

 private:
  std::byte* data_;
  std::int64_t bytes_each_;
};

// Hands out aligned pieces of one part. Without memory it only measures: a struct that takes its pieces in its
// constructor says by the same lines how many bytes it needs.
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
