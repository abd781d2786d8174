#include "formats/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "formats/safetensors_header.h"
#include "ops/sums.h"

namespace thimble {

namespace {

constexpr std::int32_t kNotScored = -1;

// Of the shape of `input`, as 32 bits; what is negative becomes -1.
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
    check(value <= std::numeric_limits<std::int32_t>::max(), "{}: tensor {} holds {}, which is no token id",
          file.name(), name, value);
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
  check(summary.scored > 0 || !options.gradients, Hint{"rows of one token need a tensor target"},
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

}  // namespace thimble
