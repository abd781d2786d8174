#include "formats/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "formats/safetensors.h"
#include "ops/sums.h"

namespace thimble {

namespace {

constexpr std::int32_t kNotScored = -1;

// Reads a tensor of the shape of `input` as 32-bit integers; negative values become -1.
std::vector<std::int32_t> read_integers(const SafetensorsFile& file, std::string_view name,
                                        const std::vector<std::int64_t>& dims) {
  const SafetensorsEntry& entry = file.at(name);
  check(entry.dims == dims, "{}: tensor {} is {}, expected the shape of input, {}", file.name(), name,
        dims_text(entry.dims), dims_text(dims));
  std::vector<std::int64_t> wide(static_cast<std::size_t>(entry.count()));
  file.read_i64(name, wide);
  std::vector<std::int32_t> values;
  values.reserve(wide.size());
  for (const std::int64_t value : wide) {
    check(value <= std::numeric_limits<std::int32_t>::max(),
          "{}: tensor {} contains {}, which is not a token id", file.name(), name, value);
    values.push_back(value < 0 ? kNotScored : static_cast<std::int32_t>(value));
  }
  return values;
}

std::vector<std::int32_t> shifted(const TraceTokens& tokens) {
  const auto T = static_cast<std::size_t>(tokens.row_length());
  std::vector<std::int32_t> target(tokens.input.size(), kNotScored);
  for (std::size_t n = 0; n + 1 < target.size(); ++n)
    if ((n + 1) % T != 0) target[n] = tokens.input[n + 1];
  return target;
}

void add_gradients(SafetensorsWriter& writer, const ParamTable& table, std::span<const float> gradients) {
  for (const Param& param : table.all())
    writer.add("grad." + param.name, DType::f32, param.dims, std::as_bytes(param.in(gradients)));
}

}  // namespace

TraceTokens read_trace_tokens(const SafetensorsFile& file) {
  TraceTokens tokens;
  tokens.dims = file.at("input").dims;
  const bool shape = tokens.dims.size() == 1 || tokens.dims.size() == 2;
  check(shape && file.at("input").count() > 0, "{}: tensor input is {}, expected [rows, tokens] or [tokens]",
        file.name(), dims_text(tokens.dims));
  tokens.input = read_integers(file, "input", tokens.dims);
  tokens.target = file.find("target") ? read_integers(file, "target", tokens.dims) : shifted(tokens);
  if (file.find("doc_start"))
    for (const std::int32_t start : read_integers(file, "doc_start", tokens.dims))
      tokens.doc_start.push_back(start != 0);
  return tokens;
}

TraceSummary write_trace(FileOps& ops, const std::filesystem::path& path, Model& model,
                         const TraceTokens& tokens, const TraceOptions& options) {
  const Rows rows =
      grid_rows(model.config(), tokens.row_length(), tokens.input, tokens.target, tokens.doc_start);
  TraceSummary summary;
  summary.scored = std::ranges::count_if(rows.target, [](std::int32_t target) { return target >= 0; });
  check(summary.scored > 0 || !options.gradients,
        Hint{"add a tensor `target`: rows of one token have no default targets"},
        "no position is scored, so there is no loss and no gradient");

  SafetensorsWriter writer;
  const Model::Scores scores = model.score(rows, true);
  std::vector<std::int64_t> dims = tokens.dims;
  dims.push_back(model.config().vocab_size);
  writer.add("logits", DType::f32, dims, std::as_bytes(std::span(scores.logits)));
  const auto loss = static_cast<float>(cpu::weighted_sum(scores.nats, rows.weight));
  if (summary.scored > 0) {
    summary.loss = loss;
    writer.add("loss", DType::f32, {1}, std::as_bytes(std::span(&loss, 1)));
  }
  std::vector<float> gradients(options.gradients ? model.weights().size() : 0);
  if (options.gradients) {
    model.add_gradients(rows, gradients, {});
    add_gradients(writer, model.params(), gradients);
  }
  writer.write(ops, path, options.existing, WithDigest::no);
  return summary;
}

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

// Compares integers before rounding to double, which would merge neighbors above 2^53.
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
  // Take square roots first: the product of two tiny sums would underflow.
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
