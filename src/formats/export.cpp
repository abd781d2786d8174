#include "formats/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "formats/fold.h"
#include "formats/gguf_model.h"
#include "formats/gguf_tokenizer.h"
#include "formats/hugging_face_write.h"
#include "formats/model_file.h"
#include "formats/weights_file.h"
#include "model/rows.h"

namespace thimble {

namespace {

constexpr std::int64_t kComparedTokens = 64;  // of each row
constexpr std::int64_t kComparedRows = 2;
constexpr std::uint64_t kTokenSeed = 20240520;
// Latin letters and single blanks: what no normaliser changes that a format may leave out.
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

const ExportFormat& format_with_name(std::string_view name) {
  for (const ExportFormat& format : export_formats())
    if (format.name == name) return format;
  fail("there is no format '{}' to export to", name);
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

// The model with every matrix as the type stores it, or every tensor.
ModelFile rounded(const ModelFile& source, GgufType type, bool vectors) {
  ModelFile model = source;
  const ParamTable table(model.config.model);
  for (const Param& param : table.all()) {
    if (param.dims.size() != 2 && !vectors) continue;
    const auto values = param.in(std::span(model.weights));
    round_values(values, fits_blocks(type, param.cols) ? type : GgufType::f16, param.name);
  }
  return model;
}

ModelFile without_softcap(const ModelFile& model) {
  ModelFile capless = model;
  capless.config.model.logit_softcap = 0;
  return capless;
}

// What the file says is compared, not what was meant to be written.
double difference_on_disk(const ModelFile& expected, const std::filesystem::path& path) {
  const ModelFile written = open_model(path);
  const std::string wrong = tokenizer_difference(expected, written);
  check(wrong.empty(), "it would not be what {} is, and was not written: {}", expected.path.string(), wrong);
  return logit_difference(expected, written);
}

}  // namespace

std::span<const ExportFormat> export_formats() {
  using enum GgufType;
  static const std::vector<ExportFormat> formats = {
      {"gguf", "one file for llama.cpp", {f16, f32, bf16, q8_0, q4_0}, export_gguf},
      {"hf", "a Hugging Face folder", {f32, bf16, f16}, export_hugging_face, true},
      {"safetensors", "one file of ours, for inference alone", {f32, bf16, f16}, export_safetensors, true},
  };  // made once, never changed
  return formats;
}

ExportReport export_model(FileOps& ops, const ModelFile& model, std::string_view format,
                          const ExportRequest& request) {
  return export_model(ops, model, format_with_name(format), request);
}

ExportReport export_model(FileOps& ops, const ModelFile& model, const ExportFormat& format,
                          ExportRequest request) {
  const GgufType type = request.type.value_or(format.types.front());
  check(std::ranges::count(format.types, type) > 0, "{} has no type {}", format.name, info_of(type).option);
  request.type = type;
  std::optional<double> difference;
  double tolerance = 0;
  const auto compare = [&](const ModelFile& expected, const std::filesystem::path& written) {
    difference = difference_on_disk(expected, written);
    tolerance = tolerated_difference(expected, type, format.rounds_vectors);
  };
  request.inspect = [&](const std::filesystem::path& written) {
    request.drop_softcap ? compare(without_softcap(model), written) : compare(model, written);
    if (request.interrupt) request.interrupt->throw_if_asked();
    check(*difference <= tolerance,
          "{} would not compute what {} does: its logits differ by {:.2g}, {} explains {:.2g}; it was not "
          "written",
          request.path.string(), model.path.string(), *difference, info_of(type).name, tolerance);
  };
  ExportReport report = format.write(ops, model, request);
  check(difference.has_value(), "[export] the format '{}' wrote without an inspection", format.name);
  report.difference = *difference;
  report.tolerance = tolerance;
  return report;
}

double logit_difference(const ModelFile& first, const ModelFile& second) {
  check(first.config.model.vocab_size == second.config.model.vocab_size, "{} has {} tokens, {} has {}",
        first.path.string(), first.config.model.vocab_size, second.path.string(),
        second.config.model.vocab_size);
  const std::int64_t row_length =
      std::min({kComparedTokens, first.config.model.context, second.config.model.context});
  const std::vector<float> a = logits_of(first, row_length), b = logits_of(second, row_length);
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
  // A model whose logits are all the same, as a golf model is before its first step, allows no difference.
  if (deviations == 0) return differences == 0 ? 0 : std::numeric_limits<double>::infinity();
  return std::sqrt(differences / deviations);
}

double tolerated_difference(const ModelFile& model, GgufType type, bool rounds_vectors) {
  if (type == GgufType::f32) return kExactDifference;
  // What folding makes of the rounding stays within twice.
  return kExactDifference + 2 * logit_difference(model, rounded(model, type, rounds_vectors));
}

std::string tokenizer_difference(const ModelFile& first, const ModelFile& second) {
  const auto a = open_tokenizer(first), b = open_tokenizer(second);
  if (!a && !b) return "";
  if (!a || !b) return "the tokenizer did not come back";
  if (a->encode(kComparedText) != b->encode(kComparedText))
    return "what is read back encodes a text differently";
  if (a->adds_bos() == b->adds_bos()) return "";
  return fmt::format("what is read back puts {} bos before a text", b->adds_bos() ? "a" : "no");
}

namespace {

// A cap can be dropped; and a llama that goes through layers again is one that has more of them.
ModelConfig without_cap_and_loop(ModelConfig config) {
  config.logit_softcap = 0;
  config.loop_first = config.loop_last = config.loop_count = 0;
  return config;
}

// A llama, qwen2 or qwen3; one with a cap without it, if that was asked for.
ExportedModel plain_model(const ModelFile& model, std::string_view architecture, bool drop_softcap) {
  const double cap = model.config.model.logit_softcap;
  if (cap == 0 && model.config.model.loop_count == 0) return exported_model(model);
  check(cap == 0 || drop_softcap,
        Hint{"--drop-softcap leaves it out: greedy text stays, probabilities change"},
        "llama.cpp's {} has no logit_softcap (here {}); nothing else keeps this model from being one",
        architecture, cap);
  FoldedModel plain = unrolled_model(model);
  plain.model.config.model.logit_softcap = 0;
  if (cap > 0) plain.steps.push_back(softcap_dropped(cap));
  ExportedModel exported = exported_model(plain.model);
  for (const FoldStep& step : plain.steps) exported.folded.push_back(step.line());
  return exported;
}

}  // namespace

ExportReport export_gguf(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  const std::string_view own = gguf_architecture(without_cap_and_loop(model.config.model)),
                         wanted = request.architecture;
  const bool plain = !own.empty() && (wanted.empty() || wanted == own);
  check(plain || wanted.empty() || is_folded_architecture(wanted), "expected a {}, found {}", wanted,
        own.empty() ? "none of llama, qwen2 and qwen3" : fmt::format("a {}", own));
  const ExportedModel exported =
      plain ? plain_model(model, own, request.drop_softcap)
            : exported_model(fold_model(model, {request.architecture, request.drop_softcap}));
  ExportReport report{.format = "gguf", .architecture = exported.architecture, .type = *request.type};
  const GgufSettings tokenizer = gguf_tokenizer_settings(model, report.notes);
  const GgufReport written =
      write_gguf(ops, request.path, request.existing, exported, tokenizer, *request.type, request.inspect);
  report.tensors = written.tensors;
  report.bytes = written.bytes;
  report.folded = exported.folded;
  if (!written.fallbacks.empty())
    report.notes.push_back(fmt::format("rows of {} are no whole blocks of {}: F16 instead",
                                       joined(written.fallbacks, ", "), info_of(*request.type).name));
  return report;
}

namespace {

DType dtype_of_type(GgufType type) {
  check(type == GgufType::f32 || type == GgufType::bf16 || type == GgufType::f16,
        "safetensors hold f32, bf16 and f16, not {}", info_of(type).option);
  return type == GgufType::f32 ? DType::f32 : type == GgufType::bf16 ? DType::bf16 : DType::f16;
}

// Transformers has no loops, but layers enough; nothing else may stand in the way.
std::optional<FoldedModel> without_loop(const ModelFile& model) {
  ModelConfig plain = model.config.model;
  if (std::exchange(plain.loop_count, 0) == 0) return std::nullopt;
  check_for_hugging_face(plain);
  return unrolled_model(model);
}

}  // namespace

ExportReport export_hugging_face(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  const std::optional<FoldedModel> unrolled = without_loop(model);
  const HuggingFaceReport written =
      write_hugging_face(ops, request.path, request.existing, unrolled ? unrolled->model : model,
                         dtype_of_type(*request.type), request.inspect);
  ExportReport report{.format = "hf",
                      .architecture = written.architecture,
                      .type = *request.type,
                      .tensors = written.tensors,
                      .bytes = written.bytes,
                      .notes = written.notes};
  if (unrolled)
    for (const FoldStep& step : unrolled->steps) report.folded.push_back(step.line());
  return report;
}

ExportReport export_safetensors(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  write_model(ops, request.path, request.existing, model, dtype_of_type(*request.type), request.inspect);
  return {.format = "safetensors",
          .architecture = std::string(architecture_of(model.config.model)),
          .type = *request.type,
          .tensors = ParamTable(model.config.model).all().size(),
          .bytes = std::filesystem::file_size(request.path)};
}

}  // namespace thimble
