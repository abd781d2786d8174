// From a MODEL to an artifact, with the account of its bytes and of what it lost.
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
  std::uint64_t budget = 16'000'000;  // of code and file
  std::uint64_t code_bytes = 0;       // of the program that goes with it, for the account
  bool fit = false;                   // zero the cheapest weights until it fits
  bool as_packed = false;             // an artifact keeps its rule and its integers, but for what is pruned
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
    double relative_error;  // the largest of its tensors
  };

  std::string rule;
  std::uint64_t budget = 0, code_bytes = 0;
  std::uint64_t bytes = 0;            // of the file: every one of them
  std::uint64_t predicted_bytes = 0;  // what the size model said before
  std::uint64_t tokenizer_bytes = 0;  // among them
  std::int64_t parameters = 0;
  std::int64_t pruned = 0;          // weights that became zero before quantisation and, to fit, after it
  std::uint64_t float_bytes = 0;    // of all tensors in the types that the source holds them in
  std::uint64_t payload_bytes = 0;  // packed, but not compressed
  std::vector<Tensor> tensors;
  std::vector<Group> groups;

  std::int64_t quantised_tensors() const;
  double ratio() const;            // float_bytes over payload_bytes
  double bits_per_weight() const;  // of the file

  // Two accounts. Golf's rule leaves the tokenizer out; the budget is held to the other.
  std::uint64_t golf_bytes() const { return code_bytes + bytes - tokenizer_bytes; }
  std::uint64_t self_contained_bytes() const { return code_bytes + bytes; }
  bool fits() const { return self_contained_bytes() <= budget; }
};

struct PackResult {
  std::string bytes;  // of the file
  PackReport report;
  ModelFile loaded;  // what was read back from them, and found to be what was packed
};

// How large it would be by other rules, without packing it.
class PackEstimator {
 public:
  PackEstimator(const ModelFile& source, const PackRequest& request);  // both outlive it

  // Of code and file, as the budget counts.
  PackEstimate estimate(const QuantiseRule& rule, double prune);

 private:
  const ModelFile& source_;
  const PackRequest& request_;
  ParamTable table_;
  std::vector<DType> types_;
  std::uint64_t rest_ = 0;  // all but the coded groups
};

// An artifact that is packed again by the same rule keeps its integers: the result is the same to the byte.
PackResult pack_model(const ModelFile& source, const PackRequest& request, const ProgressOutput& progress,
                      const Interrupt* interrupt = nullptr);

// Looks for the rule that loses least and still fits: bits, where rows are clipped, how much is pruned.
//
// The size model (pack/pack_weights.h) goes first: it knows what will not fit, and how much each rule loses of the
// weights. Those that fit and lose least are packed for good, and scored; the best score wins.
//
//   const SearchResult found = search_packing(model, request, {}, [&](const ModelFile& packed) { return bpb; }, progress);
//   found.packed.bytes;  found.tries[found.best].rule;
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
  double error = 0;                         // of the weights, relative (pack/pack_weights.h)
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
