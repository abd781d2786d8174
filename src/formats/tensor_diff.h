// Two files of tensors, compared name by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/safetensors.h"

namespace thimble {

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
