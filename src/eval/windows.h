// Sliding windows over a stream of tokens: every token is scored exactly once, with the most context it may have.
//
//   length 10, T 4, stride 2     inputs   0 1 2 3            scores 0 1 2 3
//                                             2 3 4 5        scores 4 5
//                                                 4 5 6 7    scores 6 7 ...
//
// The first window scores all it reads, every later one its last `stride` tokens, whose context is at least
// T - stride. Windows begin at 0, stride, 2 stride, ... as long as they have something left to score
// (parameter-golf 2.10, the corrected set). With stride = T they do not overlap.
#pragma once

#include <algorithm>
#include <cstdint>

namespace thimble {

class SlidingWindows {
 public:
  struct Span {
    std::uint64_t begin, count;  // inputs
    std::uint64_t scored_from;   // of them: those before are context alone
  };

  // length > 0, 1 <= stride <= T.
  SlidingWindows(std::uint64_t length, std::uint64_t T, std::uint64_t stride)
      : length_(length), T_(T), stride_(stride) {}

  std::uint64_t count() const { return length_ <= T_ ? 1 : 1 + (length_ - T_ + stride_ - 1) / stride_; }
  Span at(std::uint64_t i) const {
    const std::uint64_t begin = i * stride_;
    return {begin, std::min(T_, length_ - begin), i == 0 ? 0 : T_ - stride_};
  }

 private:
  std::uint64_t length_, T_, stride_;
};

}  // namespace thimble
