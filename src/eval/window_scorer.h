// Many short or long sequences scored together: rows of T tokens are filled with them, side by side, and computed
// a batch at a time.
//
//   WindowScorer scorer(model, T, 0, [&](const Window& window, std::span<const float> nats) { ... });
//   for (...) scorer.add({.input = .., .target = .., .tag = ..});
//   scorer.finish();
//
// Windows do not see each other: attention, positions, smear gate and bigram hash restart with each. What one scores
// does not depend on what shares its batch: on the CPU it came out the same to the bit, f32 and bf16, for every batch
// that was tried. Promised is 1e-6, because which kernel a library takes for a product may depend on the number of rows.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/model.h"

namespace thimble {

struct Window {
  std::vector<std::int32_t> input;   // at most T
  std::vector<std::int32_t> target;  // as many; -1: not scored
  std::uint64_t tag = 0;             // the caller's own
};

class WindowScorer {
 public:
  // nats: one for each input; 0 where there is no target. Windows come in the order in which they were added.
  using Sink = std::function<void(const Window& window, std::span<const float> nats)>;

  // tokens_at_a_time 0: about 8192, fewer where the vocabulary is so large that their logits would not fit; on a card
  // up to 65,536, as its memory allows.
  WindowScorer(Model& model, std::int64_t T, std::int64_t tokens_at_a_time, Sink sink);

  void add(Window window);  // computes what is waiting when there is no room for another
  void finish();            // computes the rest

 private:
  struct Waiting {
    Window window;
    std::size_t row, begin;  // its place: input `begin` of the row
  };

  void compute();
  void collect();  // what was computed, into the sink

  Model& model_;
  std::size_t T_, most_rows_;
  std::size_t shared_ = 0;  // windows share a row up to so many tokens; a longer one has a row of its own
  Sink sink_;
  std::vector<Waiting> waiting_, computing_;  // a card computes some while others are gathered
  std::size_t computing_length_ = 0;          // of their rows
  std::vector<std::size_t> used_;             // tokens in each row that was begun
};

}  // namespace thimble
