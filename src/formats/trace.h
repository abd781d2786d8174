// Runs a model on given tokens and writes the results to a file, to compare with another program.
//
//   in    input      [B, T] or [T], integers
//         target     same shape; negative: not scored. Default: the inputs shifted by one, where
//                    the last position of each row is not scored
//         doc_start  same shape, nonzero where a document starts. Default: the start of each row
//   out   logits     [B, T, V]
//         loss       [1]: mean nats of the scored positions; absent if none is scored
//         grad.NAME  gradient of the loss for every weight, if requested
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "formats/safetensors.h"
#include "model/model.h"

namespace thimble {

struct TraceTokens {
  std::vector<std::int64_t> dims;  // of `input`
  std::vector<std::int32_t> input, target;
  std::vector<std::uint8_t> doc_start;  // empty: default

  std::int64_t row_length() const { return dims.back(); }
};

TraceTokens read_trace_tokens(const SafetensorsFile& file);

struct TraceOptions {
  bool gradients = false;
  Existing existing = Existing::refuse;
};

struct TraceSummary {
  std::optional<double> loss;
  std::int64_t scored = 0;  // positions
};

TraceSummary write_trace(FileOps& ops, const std::filesystem::path& path, Model& model,
                         const TraceTokens& tokens, const TraceOptions& options);

// The difference between two tensors of the same name in two files.
struct TensorDifference {
  std::string name;
  std::vector<std::int64_t> dims_a, dims_b;
  // Infinite if only one of two values is NaN, or for different infinities. Two NaNs are equal. All
  // three fields are meaningless if the shapes differ.
  double max_abs = 0;
  double cosine = 1;       // 1 if both are zero
  double relative_l2 = 0;  // |a - b| / |b|

  bool same_shape() const { return dims_a == dims_b; }
};

struct FileDifference {
  std::vector<TensorDifference> tensors;    // in both files, in the order of A
  std::vector<std::string> only_a, only_b;  // names
  double max_abs = 0;                       // over tensors of equal shape
  bool equal = true;                        // within the tolerance; strict: same names, too
};

struct DiffOptions {
  double tolerance = 0;  // for max_abs
  bool strict = false;
};

// Compares values, so element types may differ. Digests are ignored. Throws an Error if the files
// have no tensor name in common.
FileDifference compare_files(const SafetensorsFile& a, const SafetensorsFile& b, const DiffOptions& options);

}  // namespace thimble
