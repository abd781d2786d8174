#include "formats/tensor_diff.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace thimble {

namespace {

std::vector<double> read_values(const SafetensorsFile& file, std::string_view name) {
  const auto count = static_cast<std::size_t>(file.at(name).count());
  if (is_float(file.dtype(name))) {
    std::vector<float> values(count);
    file.read_f32(name, values);
    return {values.begin(), values.end()};
  }
  std::vector<std::int64_t> values(count);
  file.read_i64(name, values);
  return {values.begin(), values.end()};
}

double distance(double x, double y) {
  if (x == y || (std::isnan(x) && std::isnan(y))) return 0;
  const double difference = std::abs(x - y);
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

void measure(const std::vector<double>& a, const std::vector<double>& b, TensorDifference& out) {
  double dot = 0, aa = 0, bb = 0, squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double apart = distance(a[i], b[i]);
    out.max_abs = std::max(out.max_abs, apart);
    squares += apart * apart;
    dot += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  }
  if (squares == 0) return;
  // Roots first: the product of two tiny sums would underflow.
  out.cosine = aa > 0 && bb > 0 ? dot / (std::sqrt(aa) * std::sqrt(bb)) : 0;
  out.relative_l2 = bb > 0 ? std::sqrt(squares / bb) : std::numeric_limits<double>::infinity();
}

TensorDifference compare(const SafetensorsFile& a, const SafetensorsFile& b, const std::string& name) {
  TensorDifference out{.name = name, .dims_a = a.at(name).dims, .dims_b = b.at(name).dims};
  if (out.same_shape()) measure(read_values(a, name), read_values(b, name), out);
  return out;
}

}  // namespace

FileDifference compare_files(const SafetensorsFile& a, const SafetensorsFile& b, const DiffOptions& options) {
  FileDifference out;
  for (const SafetensorsEntry& entry : a.entries()) {
    if (entry.name == kDigestTensor) continue;
    if (!b.find(entry.name)) {
      out.only_a.push_back(entry.name);
      continue;
    }
    const TensorDifference& tensor = out.tensors.emplace_back(compare(a, b, entry.name));
    out.max_abs = std::max(out.max_abs, tensor.max_abs);
    out.equal &= tensor.same_shape() && tensor.max_abs <= options.tolerance;
  }
  for (const SafetensorsEntry& entry : b.entries())
    if (entry.name != kDigestTensor && !a.find(entry.name)) out.only_b.push_back(entry.name);
  check(!out.tensors.empty(), "{} and {} have no tensor name in common", a.name(), b.name());
  if (options.strict) out.equal &= out.only_a.empty() && out.only_b.empty();
  return out;
}

}  // namespace thimble
