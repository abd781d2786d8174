// Packs a model into an artifact, and reports its size and the quantization error.
//
//   PackResult packed = pack_model(open_model("runs/golf"), request, progress, &interrupt);
//   if (packed.report.fits()) write_file(ops, path, packed.bytes, existing);
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
#include "formats/model_file.h"
#include "pack/pack_weights.h"

namespace thimble {

struct PackRequest {
  PackOptions options;
  std::uint64_t budget = 16'000'000;  // bytes, for code and file
  std::uint64_t code_bytes = 0;       // size of the program, which counts against the budget
  bool fit = false;                   // zero the least important weights until it fits
  bool as_packed = false;  // repacking an artifact: keep its rule and its integers, except pruned ones
};

struct PackReport {
  struct Tensor {
    std::string name;
    Storage storage;
    PackingError error;
  };
  struct Group {
    std::string name;
    Storage storage;
    std::int64_t parameters;
    std::uint64_t bytes;    // in the file
    double relative_error;  // maximum over the group's tensors
  };

  std::string rule;
  std::uint64_t budget = 0, code_bytes = 0;
  std::uint64_t bytes = 0;            // size of the file
  std::uint64_t predicted_bytes = 0;  // predicted by the size model
  std::uint64_t tokenizer_bytes = 0;  // part of `bytes`
  std::int64_t parameters = 0;
  std::int64_t pruned = 0;          // weights set to zero, before quantization and by `fit`
  std::uint64_t float_bytes = 0;    // of all tensors, in the types of the source
  std::uint64_t payload_bytes = 0;  // packed, before compression
  std::vector<Tensor> tensors;
  std::vector<Group> groups;

  std::int64_t quantised_tensors() const;
  double ratio() const;            // float_bytes / payload_bytes
  double bits_per_weight() const;  // of the file

  // Two ways to count. Golf's rules exclude the tokenizer; the budget includes it.
  std::uint64_t golf_bytes() const { return code_bytes + bytes - tokenizer_bytes; }
  std::uint64_t self_contained_bytes() const { return code_bytes + bytes; }
  bool fits() const { return self_contained_bytes() <= budget; }
};

struct PackResult {
  std::string bytes;  // the complete file
  PackReport report;
  ModelFile loaded;  // read back from `bytes` and verified
};

// Estimates the size under other rules without packing.
class PackEstimator {
 public:
  PackEstimator(const ModelFile& source, const PackRequest& request);  // both must outlive it

  // `bytes` is the size of code and file, as counted by the budget.
  PackEstimate estimate(const QuantiseRule& rule, double prune);

 private:
  const ModelFile& source_;
  const PackRequest& request_;
  ParamTable table_;
  std::vector<DType> types_;
  std::uint64_t rest_bytes_ = 0;  // everything except the coded groups
};

// Packing an artifact again by the same rule keeps its integers: the result is byte-identical.
PackResult pack_model(const ModelFile& source, const PackRequest& request, const ProgressOutput& progress,
                      const Interrupt* interrupt = nullptr);

// Searches over bits, clipping and pruning for the best-scoring rule that fits the budget.
//
// The size model (pack/pack_weights.h) predicts the size and the weight error of every rule. The
// rules that are predicted to fit with the smallest error are packed and scored; the lowest score
// wins.
//
//   const SearchResult found = search_packing(
//       model, request, {}, [&](const ModelFile& packed) { return bpb; }, progress);
//   found.packed.bytes;  found.tries[found.best].rule;
struct SearchSpace {
  std::vector<int> bits = {8, 6, 5};
  // Clipping in standard deviations; 0: the rule's default. For each number of bits, the search
  // adds the finest clip that is predicted to fit.
  std::vector<float> clips = {0, 8, 10, 12.85f, 16, 20, 26, 32};
  std::vector<double> prunes = {0, 0.03};
  std::size_t measured = 6;  // number of rules to pack and score
};

struct SearchTry {
  QuantiseRule rule;
  double prune = 0;
  std::uint64_t predicted_bytes = 0;        // of code and file, as counted by the budget
  double error = 0;                         // relative error of the weights (pack/pack_weights.h)
  std::optional<std::uint64_t> bytes = {};  // nullopt: not packed
  std::optional<double> score = {};         // nullopt: not scored, or over the budget
};

struct SearchResult {
  std::vector<SearchTry> tries;  // scored ones first, best first; then unscored ones by error
  std::size_t best = 0;          // index into tries
  PackResult packed;
};

// Lower is better.
using PackScore = std::function<double(const ModelFile& packed)>;

// Throws an Error with the smallest predicted size if no rule fits.
SearchResult search_packing(const ModelFile& source, const PackRequest& request, const SearchSpace& space,
                            const PackScore& score, const ProgressOutput& progress,
                            const Interrupt* interrupt = nullptr);

}  // namespace thimble
