// What a model computes for given tokens, as a file that can be compared with another program's.
//
//   in    input      [B, T] or [T], integers
//         target     the same shape, negative: not scored. Absent: the inputs shifted by one, the last
//         position
//                    of each row not scored
//         doc_start  the same shape, not 0 where a document starts. Absent: only at each row's start
//   out   logits     [B, T, V]
//         loss       [1]: mean nats of the scored positions; absent if there are none
//         grad.NAME  of the loss, for every weight, if wanted
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
  std::vector<std::uint8_t> doc_start;  // may be empty

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

// Two files of tensors, compared name by name.
struct TensorDifference {
  std::string name;
  std::vector<std::int64_t> dims_a, dims_b;
  // Infinite if one side has a number where the other has none, or an infinity of another sign; two NaNs are
  // equal. All three mean nothing where the shapes differ.
  double max_abs = 0;
  double cosine = 1;       // of two zeros: 1
  double relative_l2 = 0;  // |a - b| / |b|

  bool same_shape() const { return dims_a == dims_b; }
};

struct FileDifference {
  std::vector<TensorDifference> tensors;    // of both, in the order of A
  std::vector<std::string> only_a, only_b;  // names
  double max_abs = 0;                       // over tensors of equal shape
  bool equal = true;                        // within the tolerance; strict: the same names, too
};

struct DiffOptions {
  double tolerance = 0;  // of max_abs
  bool strict = false;
};

// Element types may differ: values count. Our digests are passed over. No name in common is an Error.
FileDifference compare_files(const SafetensorsFile& a, const SafetensorsFile& b, const DiffOptions& options);

}  // namespace thimble
