// Searches for the packing of a model that loses least within a byte budget.
//
//   const auto score = [&](const ModelFile& packed) { return loss_of(packed); };
//   const SearchResult found = search_packing(model, request, {.gptq = &factors}, score, progress);
//   found.packed.bytes;  found.tries[found.best].options;
//
// A candidate is a rule (bits and clip) for each role (pack/pack_weights.h), a codec, a fraction to
// prune, and GPTQ or not. Measuring all combinations would take days, so the search goes in three
// steps:
//
//   1. Estimate. Quantize the model by every rule. This gives the size and the error of each role
//      under each rule, and so those of every combination of rules.
//   2. Probe. Quantize one role at a time, coarsely, and score the model. To second order, the
//      score grows with the squared error, so this gives the score of every combination.
//   3. Measure. Pack and score the combination with the lowest expected score that is expected to
//      fit, with all clips scaled so that the file fills the budget. Repeat with GPTQ, with
//      pruning, and with the next best combinations.
//
// All matrices are quantized, also those that parameter-golf's scripts keep as floats.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
#include "formats/model_file.h"
#include "formats/pack_model.h"

namespace thimble {

// Clips from fine to coarse for every row of kBitWidths; with `bits`, only for that many.
std::vector<QuantizeRule> searched_rules(std::optional<int> bits = std::nullopt);

struct SearchSpace {
  std::vector<QuantizeRule> rules = searched_rules();      // of matrices
  std::vector<QuantizeRule> embedding = searched_rules();  // of the embedding and head
  std::vector<double> prunes = {0, 0.03};
  std::vector<Codec> codecs = {Codec::range, Codec::zstd};  // the one with the smallest file is used
  const GptqFactors* gptq = nullptr;                        // nullptr: rounds to nearest only
  bool rounds_to_nearest = true;                            // false: GPTQ only
  std::size_t measured = 6;                                 // number of files to score
};

// A file that was packed.
struct SearchTry {
  PackOptions options;
  std::uint64_t predicted_bytes = 0;  // of code and file, as counted by the budget
  std::uint64_t bytes = 0;
  double expected_score = 0;
  std::optional<double> score = {};  // nullopt: over the budget, or a larger file fitted too
};

struct SearchResult {
  std::vector<SearchTry> tries;  // scored ones first, best first
  std::size_t best = 0;          // index into tries
  PackResult packed;
};

// Lower is better.
using PackScore = std::function<double(const ModelFile& packed)>;

// request.options supplies `keep`; the search chooses all else. Throws an Error with the smallest
// predicted size if nothing fits.
SearchResult search_packing(const ModelFile& source, const PackRequest& request, const SearchSpace& space,
                            const PackScore& score, const ProgressOutput& progress,
                            const Interrupt* interrupt = nullptr);

}  // namespace thimble
