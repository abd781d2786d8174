// Looks for the rule that loses least and still fits: bits, where rows are clipped, how much is pruned.
//
// The size model (pack/size_model.h) goes first: it knows what will not fit, and how much each rule loses of the
// weights. Those that fit and lose least are packed for good, and scored; the best score wins.
//
//   const SearchResult found = search_packing(model, request, {}, [&](const ModelFile& packed) { return bpb; }, progress);
//   found.packed.bytes;  found.tries[found.best].rule;
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "formats/pack_model.h"

namespace thimble {

struct SearchSpace {
  std::vector<int> bits = {8, 6, 5};
  // Deviations; 0: the rule's own place. For every number of bits there is also the finest that the size model finds to
  // fit.
  std::vector<float> clips = {0, 8, 10, 12.85f, 16, 20, 26, 32};
  std::vector<double> prunes = {0, 0.03};
  std::size_t measured = 6;  // how many are packed and scored
};

struct SearchTry {
  QuantiseRule rule;
  double prune = 0;
  std::uint64_t predicted_bytes = 0;        // of code and file, as the budget counts
  double error = 0;                         // of the weights, relative (pack/size_model.h)
  std::optional<std::uint64_t> bytes = {};  // none: not packed
  std::optional<double> score = {};         // none: not scored, or it did not fit
};

struct SearchResult {
  std::vector<SearchTry> tries;  // what was measured first, best first; then the rest by error
  std::size_t best = 0;          // of tries
  PackResult packed;
};

// Lower is better.
using PackScore = std::function<double(const ModelFile& packed)>;

// Nothing that fits is an Error that says how small it gets.
SearchResult search_packing(const ModelFile& source, const PackRequest& request, const SearchSpace& space,
                            const PackScore& score, const ProgressOutput& progress,
                            const Interrupt* interrupt = nullptr);

}  // namespace thimble
