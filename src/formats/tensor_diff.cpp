#include "formats/tensor_diff.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace thimble {

namespace {

std::vector<std::int64_t> read_integers(const SafetensorsFile& file, std::string_view name) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(file.at(name).count()));
  file.read_i64(name, values);
  return values;
}

std::vector<double> read_values(const SafetensorsFile& file, std::string_view name) {
  if (!is_float(file.dtype(name))) {
    const std::vector<std::int64_t> values = read_integers(file, name);
    return {values.begin(), values.end()};
  }
  std::vector<float> values(static_cast<std::size_t>(file.at(name).count()));
  file.read_f32(name, values);
  return {values.begin(), values.end()};
}

double distance(double x, double y) {
  if (x == y || (std::isnan(x) && std::isnan(y))) return 0;
  const double difference = std::abs(x - y);
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

// Before they are rounded: above 2^53 neighbours are one double.
double distance(std::int64_t x, std::int64_t y) {
  const auto low = static_cast<std::uint64_t>(std::min(x, y)),
             high = static_cast<std::uint64_t>(std::max(x, y));
  return static_cast<double>(high - low);
}

template <class Number>
void measure(const std::vector<Number>& a, const std::vector<Number>& b, TensorDifference& out) {
  double dot = 0, aa = 0, bb = 0, squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double apart = distance(a[i], b[i]);
    const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    out.max_abs = std::max(out.max_abs, apart);
    squares += apart * apart;
    dot += x * y, aa += x * x, bb += y * y;
  }
  if (squares == 0) return;
  // Roots first: the product of two tiny sums would underflow.
  out.cosine = aa > 0 && bb > 0 ? dot / (std::sqrt(aa) * std::sqrt(bb)) : 0;
  out.relative_l2 = bb > 0 ? std::sqrt(squares / bb) : std::numeric_limits<double>::infinity();
}

TensorDifference compare(const SafetensorsFile& a, const SafetensorsFile& b, const std::string& name) {
  TensorDifference out{.name = name, .dims_a = a.at(name).dims, .dims_b = b.at(name).dims};
  if (!out.same_shape()) return out;
  if (is_float(a.dtype(name)) || is_float(b.dtype(name)))
    measure(read_values(a, name), read_values(b, name), out);
  else
    measure(read_integers(a, name), read_integers(b, name), out);
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
