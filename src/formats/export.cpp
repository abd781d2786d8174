#include "formats/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "formats/adapters.h"
#include "formats/gguf_model.h"
#include "formats/model_file.h"
#include "model/rows.h"

namespace thimble {

namespace {

constexpr std::int64_t kComparedTokens = 64;  // per row
constexpr std::int64_t kComparedRows = 2;
constexpr std::uint64_t kTokenSeed = 20240520;
// Latin letters and single blanks: text that no normalizer changes, because some formats do not
// store the normalizer.
constexpr std::string_view kComparedText = "The quick brown fox jumps over 12 lazy dogs, said McGee";

std::vector<std::int32_t> random_tokens(const ModelConfig& config, std::int64_t count) {
  Rng rng(kTokenSeed);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::int32_t& token : tokens)
    token = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(config.vocab_size)));
  return tokens;
}

std::vector<float> logits_of(const ModelFile& file, std::int64_t row_length) {
  const Context context;
  Model model = make_model(file, context);
  const auto tokens = random_tokens(file.config.model, kComparedRows * row_length);
  return model.score(grid_rows(file.config.model, row_length, tokens), true).logits;
}

void round_values(std::span<float> values, GgufType type, const std::string& name) {
  std::vector<std::byte> bytes(gguf_bytes(type, std::ssize(values)));
  try {
    encode_gguf(type, values, bytes);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", name, error.what()), Hint{error.hint()}, error.where());
  }
  decode_gguf(type, bytes, values);
}

// The type of a matrix in a GGUF of this type; for roles that only folded models have, the type
// itself.
GgufType stored_type(const Param& param, const ModelConfig& config, GgufType type) {
  for (const GgufName& name : gguf_names())
    if (name.role == param.role)
      type = mixed_type(type, name.of(param.layer), config.layers, config.tie_embeddings);
  return fitting_type(type, param.cols);
}

// The model with every matrix (or, with `vectors`, every tensor) rounded to the type.
ModelFile rounded(const ModelFile& source, GgufType type, bool vectors) {
  ModelFile model = source;
  const ParamTable table(model.config.model);
  for (const Param& param : table.all()) {
    if (param.dims.size() != 2 && !vectors) continue;
    const auto values = param.in(std::span(model.weights));
    round_values(values, stored_type(param, model.config.model, type), param.name);
  }
  return model;
}

ModelFile without_softcap(const ModelFile& model) {
  ModelFile capless = model;
  capless.config.model.logit_softcap = 0;
  return capless;
}

// Compares with the file as read back from disk.
double difference_on_disk(const ModelFile& expected, const std::filesystem::path& path,
                          const ProgressOutput& progress, ProgressBar& bar) {
  const ModelFile written = open_model(path, WeightsAs::floats, progress);
  const std::string wrong = tokenizer_difference(expected, written);
  check(wrong.empty(), "the export does not match {} and was not written: {}", expected.path.string(), wrong);
  return logit_difference(expected, written, &bar);
}

}  // namespace

// Each is defined in the file that writes the format.
ExportFormat gguf_export();
ExportFormat ollama_export();
ExportFormat hugging_face_export();
ExportFormat safetensors_export();

std::span<const ExportFormat> export_formats() {
  static const std::vector<ExportFormat> formats = {gguf_export(), ollama_export(), hugging_face_export(),
                                                    safetensors_export(), peft_export()};
  return formats;
}

const ExportFormat& export_format(std::string_view name) {
  for (const ExportFormat& format : export_formats())
    if (format.name == name) return format;
  fail("unknown export format '{}'", name);
}

ExportReport export_model(FileOps& ops, const ModelFile& model, std::string_view format,
                          const ExportRequest& request) {
  return export_model(ops, model, export_format(format), request);
}

ExportReport export_model(FileOps& ops, const ModelFile& model, const ExportFormat& format,
                          ExportRequest request) {
  const GgufType type = request.type.value_or(format.types.front());
  check(std::ranges::count(format.types, type) > 0, "export format {} does not support type {}", format.name,
        info_of(type).option);
  request.type = type;
  std::optional<double> difference;
  double tolerance = 0;
  const auto compare = [&](const ModelFile& expected, const std::filesystem::path& written) {
    ProgressBar bar(request.progress, "comparing", "models", type == GgufType::f32 ? 2 : 4);
    difference = difference_on_disk(expected, written, request.progress, bar);
    tolerance = tolerated_difference(expected, type, format.rounds_vectors, &bar);
  };
  request.inspect = [&](const std::filesystem::path& written) {
    request.drop_softcap ? compare(without_softcap(model), written) : compare(model, written);
    if (request.interrupt) request.interrupt->throw_if_interrupted();
    check(*difference <= tolerance,
          "{} does not reproduce {} and was not written: the logits differ by {:.2g}, but rounding to {} "
          "explains at most {:.2g}",
          request.path.string(), model.path.string(), *difference, gguf_export_name(type), tolerance);
  };
  ExportReport report = format.write(ops, model, request);
  check(difference.has_value(), "[export] the format '{}' did not call inspect", format.name);
  report.format = format.name;
  report.difference = *difference;
  report.tolerance = tolerance;
  return report;
}

double logit_difference(const ModelFile& first, const ModelFile& second, ProgressBar* bar) {
  check(first.config.model.vocab_size == second.config.model.vocab_size,
        "expected two models with the same vocabulary size: {} has {} tokens, {} has {}", first.path.string(),
        first.config.model.vocab_size, second.path.string(), second.config.model.vocab_size);
  const std::int64_t row_length =
      std::min({kComparedTokens, first.config.model.context, second.config.model.context});
  const auto logits = [&](const ModelFile& model) {
    std::vector<float> values = logits_of(model, row_length);
    if (bar) bar->advance(1);
    return values;
  };
  const std::vector<float> a = logits(first), b = logits(second);
  const auto V = static_cast<std::size_t>(first.config.model.vocab_size);
  double differences = 0, deviations = 0;
  for (std::size_t row = 0; row < a.size(); row += V) {
    const double mean = std::accumulate(a.begin() + static_cast<std::ptrdiff_t>(row),
                                        a.begin() + static_cast<std::ptrdiff_t>(row + V), 0.0) /
                        static_cast<double>(V);
    for (std::size_t i = row; i < row + V; ++i) {
      const double difference = double{a[i]} - double{b[i]}, deviation = double{a[i]} - mean;
      differences += difference * difference;
      deviations += deviation * deviation;
    }
  }
  // If all logits of a row are equal, as in a golf model before its first step, no difference is
  // allowed.
  if (deviations == 0) return differences == 0 ? 0 : std::numeric_limits<double>::infinity();
  return std::sqrt(differences / deviations);
}

double tolerated_difference(const ModelFile& model, GgufType type, bool rounds_vectors, ProgressBar* bar) {
  if (type == GgufType::f32) return kExactDifference;
  // The factor 2 allows for the effect of folding on rounding.
  return kExactDifference + 2 * logit_difference(model, rounded(model, type, rounds_vectors), bar);
}

std::string tokenizer_difference(const ModelFile& first, const ModelFile& second) {
  const auto a = open_tokenizer(first), b = open_tokenizer(second);
  if (!a && !b) return "";
  if (!a || !b) return "only one of the two models has a tokenizer";
  if (a->encode(kComparedText) != b->encode(kComparedText))
    return "the exported tokenizer encodes a text differently";
  if (a->adds_bos() == b->adds_bos()) return "";
  return fmt::format("the exported tokenizer puts {} bos before a text", b->adds_bos() ? "a" : "no");
}

}  // namespace thimble
