// Packs a model into an artifact, and reports its size and the quantization error.
//
//   PackResult packed = pack_model(open_model("runs/golf"), request, progress, &interrupt);
//   if (packed.report.fits()) write_file(ops, path, packed.bytes, existing);
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
#include "formats/model_file.h"
#include "pack/pack_estimate.h"
#include "pack/pack_weights.h"

namespace thimble {

inline constexpr std::uint64_t kGolfBudget = 16'000'000;  // bytes, of parameter-golf
inline constexpr std::uint64_t kNoBudget = std::numeric_limits<std::uint64_t>::max();

struct PackRequest {
  PackOptions options;
  std::uint64_t budget = kGolfBudget;  // bytes, for code and file
  std::uint64_t code_bytes = 0;        // size of the program, which counts against the budget
  bool fit = false;                    // zero the least important weights until it fits
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

  std::int64_t quantized_tensors() const;
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

// Estimates the size of a file without packing.
class PackEstimator {
 public:
  PackEstimator(const ModelFile& source, const PackRequest& request);  // `source` must outlive it

  // With other options. `bytes` is the size of code and file, as counted by the budget.
  PackEstimate estimate(const PackOptions& options, const Interrupt* interrupt = nullptr) const;

 private:
  const ModelFile& source_;
  ParamTable table_;
  std::vector<DType> types_;
  std::uint64_t rest_bytes_ = 0;  // everything except the coded groups
};

// Packing an artifact again by the same rule keeps its integers: the result is byte-identical.
PackResult pack_model(const ModelFile& source, const PackRequest& request, const ProgressOutput& progress,
                      const Interrupt* interrupt = nullptr);

}  // namespace thimble
