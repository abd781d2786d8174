#include "qa/model_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/artifact.h"
#include "formats/fold.h"
#include "formats/gguf_model.h"
#include "formats/safetensors.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/train_data.h"
#include "train/validation.h"

namespace thimble {

namespace {

constexpr double kShownDeviations = 3;

template <class Body>
void for_finite(std::span<const std::span<const float>> parts, Body body) {
  for (const std::span<const float> part : parts)
    for (const float value : part)
      if (std::isfinite(value)) body(double{value});
}

void fill_histogram(std::span<const std::span<const float>> parts, TensorStats& stats) {
  const double low = stats.mean - kShownDeviations * stats.deviation;
  const double width = 2 * kShownDeviations * stats.deviation / kHistogramBins;
  for_finite(parts, [&](double value) {
    const double bin = width > 0 ? (value - low) / width : kHistogramBins / 2.0;
    ++stats.histogram[static_cast<std::size_t>(std::clamp(bin, 0.0, kHistogramBins - 1.0))];
  });
}

}  // namespace

TensorStats stats_of(std::span<const std::span<const float>> parts) {
  TensorStats stats;
  for (const std::span<const float> part : parts) stats.count += static_cast<std::int64_t>(part.size());
  double sum = 0, least = std::numeric_limits<double>::infinity(), most = -least;
  std::int64_t finite = 0;
  for_finite(parts, [&](double value) {
    ++finite;
    stats.zeros += value == 0;
    sum += value;
    least = std::min(least, value);
    most = std::max(most, value);
  });
  stats.not_finite = stats.count - finite;
  if (finite == 0) return stats;
  stats.least = least;
  stats.most = most;
  stats.mean = sum / static_cast<double>(finite);
  double squares = 0;  // a second pass: the mean may be far from 0
  for_finite(parts, [&](double value) { squares += (value - stats.mean) * (value - stats.mean); });
  stats.deviation = std::sqrt(squares / static_cast<double>(finite));
  fill_histogram(parts, stats);
  return stats;
}

TensorStats stats_of(std::span<const float> values) {
  return stats_of(std::span(&values, 1));
}

namespace {

namespace fs = std::filesystem;

// "blk.12.attn_q.weight" -> "blk.*.attn_q.weight"
std::string without_layer(std::string_view name) {
  std::string pattern;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    if (begin > 0) pattern += '.';
    pattern += number ? std::string_view("*") : part;
    begin = end + 1;
  }
  return pattern;
}

// "optim.m.blocks.0.attn.c_q.weight" -> "optim.m.*"
std::string kind_of_other(std::string_view name) {
  if (!name.starts_with(kOptimizerPrefix)) return without_layer(name);
  const std::size_t second = name.find('.', kOptimizerPrefix.size());
  return fmt::format("{}.*", name.substr(0, second));
}

void add_dtype(const std::string& dtype, std::string& list) {
  const auto known = [](std::string_view name) { return fmt::format(", {},", name); };  // BF16 contains F16
  if (known(list).find(known(dtype)) != std::string::npos) return;
  list += (list.empty() ? "" : ", ") + dtype;
}

// Finds the entry by name, or appends one.
template <class Entry>
Entry& entry_with(const std::string& name, std::vector<Entry>& list) {
  const auto found = std::ranges::find(list, name, &Entry::name);
  if (found != list.end()) return *found;
  list.push_back({});
  list.back().name = name;
  return list.back();
}

void group_tensors(const ModelFile& file, ModelFacts& facts) {
  const ParamTable table(file.config.model);
  facts.parameters = table.count();
  std::map<std::string, std::vector<std::span<const float>>> values;
  for (const Param& param : table.all()) {
    WeightGroup& group = entry_with(without_layer(param.name), facts.weights);
    group.dims = param.dims;
    ++group.tensors;
    group.parameters += param.count();
    if (!file.weights.empty()) values[group.name].push_back(values_of(file, param));
  }
  for (WeightGroup& group : facts.weights) group.stats = stats_of(values[group.name]);
  for (const StoredTensor& stored : file.tensors) {
    if (const Param* param = param_of(file, table, stored.name)) {
      WeightGroup& group = entry_with(without_layer(param->name), facts.weights);
      add_dtype(stored.dtype, group.dtype);
      group.bytes += stored.bytes;
      continue;
    }
    OtherTensors& other = entry_with(kind_of_other(stored.name), facts.others);
    ++other.tensors;
    other.bytes += stored.bytes;
  }
}

std::optional<TokenizerFacts> tokenizer_facts(const Tokenizer* tokenizer) {
  if (!tokenizer) return std::nullopt;
  return TokenizerFacts{.kind = name_of(tokenizer->kind()),
                        .vocab_size = tokenizer->vocab_size(),
                        .special = tokenizer->special(),
                        .special_tokens = tokenizer->special_tokens(),
                        .digest = tokenizer->digest().hex()};
}

std::optional<double> number_at(const ModelFile& file, std::string_view key) {
  const std::string* text = find_metadata(file, key);
  return text ? parse_number<double>(*text) : std::nullopt;
}

// Finds the same metrics.jsonl for RUN, RUN/best.safetensors and
// RUN/checkpoints/step-00000100.safetensors.
std::optional<fs::path> metrics_of(const fs::path& model) {
  const fs::path folder = fs::is_directory(model) ? model : model.parent_path();
  for (const fs::path& candidate : {folder / "metrics.jsonl", folder / ".." / "metrics.jsonl"})
    if (fs::is_regular_file(candidate)) return candidate;
  return std::nullopt;
}

void add_history(const fs::path& metrics, TrainingFacts& facts) {
  const RunHistory history = read_history(metrics, facts.step);
  if (history.steps() == 0) return;
  facts.losses = history.losses().points();
  for (const RunHistory::Validation& validation : history.validations())
    facts.validations.emplace_back(validation.step, validation.loss);
  facts.train_loss = history.smoothed_loss();
  facts.seconds = history.seconds();
  if (history.bytes_per_token() > 0) facts.bytes_per_token = history.bytes_per_token();
}

// Without the folders of the data, which are nobody's business.
std::string data_of(const fs::path& run) {
  constexpr std::uint64_t kMaxSettingsBytes = 1 << 20;
  const fs::path file = run / "data.json";
  if (!fs::is_regular_file(file)) return "";
  const DataSettings settings = DataSettings::from_json(read_file(file, kMaxSettingsBytes), file.string());
  const fs::path data = settings.data.has_filename() ? settings.data : settings.data.parent_path();
  return fmt::format("{} ({})", data.filename().string(), name_of(settings.kind));
}

// The numbers of a training record, by key.
constexpr std::pair<std::string_view, std::optional<double> TrainingFacts::*> kRecordedNumbers[] = {
    {"seconds", &TrainingFacts::seconds},
    {"train_loss", &TrainingFacts::train_loss},
    {"val_loss", &TrainingFacts::val_loss},
    {"val_bpb", &TrainingFacts::val_bpb},
    {"bytes_per_token", &TrainingFacts::bytes_per_token}};

TrainingFacts read_training_record(const std::string& record, const std::string& name) {
  const Json json = parse_json(record, fmt::format("{}: {}", name, kTrainingKey));
  TrainingFacts facts;
  facts.step = json.at("step").as_int();
  if (const Json* tokens = json.find("tokens")) facts.tokens = tokens->as_int();
  if (const Json* data = json.find("data")) facts.data = data->as_string();
  for (const auto& [key, member] : kRecordedNumbers)
    if (const Json* number = json.find(key)) facts.*member = number->as_double();
  return facts;
}

}  // namespace

std::uint64_t model_bytes(const ModelFile& file) {
  if (!fs::is_directory(file.path)) return fs::file_size(file.path);
  std::uint64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(file.path))
    if (entry.is_regular_file()) bytes += entry.file_size();
  return bytes;
}

const std::string* find_metadata(const ModelFile& file, std::string_view key) {
  for (const auto& [name, value] : file.metadata)
    if (name == key) return &value;
  return nullptr;
}

std::span<const float> values_of(const ModelFile& file, const Param& param) {
  return param.in(std::span(file.weights));
}

const Param* param_of(const ModelFile& file, const ParamTable& table, std::string_view stored_name) {
  if (const Param* param = table.find(stored_name)) return param;
  if (file.format != "gguf") return nullptr;
  if (is_folded_architecture(file.architecture)) {
    for (const FoldedTensor& tensor : folded_tensors(file.architecture, file.config.model))
      if (tensor.name == stored_name && !tensor.output_scale)
        for (const Param& param : table.all())
          if (param.role == tensor.role && param.layer == tensor.layer) return &param;
    return nullptr;
  }
  for (const Param& param : table.all())
    for (const GgufName& known : gguf_names())
      if (known.role == param.role && known.of(param.layer) == stored_name) return &param;
  return nullptr;
}

std::optional<TrainingFacts> training_facts(const ModelFile& file, const Tokenizer* tokenizer,
                                            const fs::path& path) {
  if (const std::string* record = find_metadata(file, kTrainingKey))
    return read_training_record(*record, file.path.string());
  if (!file.step) return std::nullopt;
  TrainingFacts facts;
  facts.step = *file.step;
  facts.val_loss = number_at(file, kValLossKey);
  facts.val_bpb = number_at(file, kValBpbKey);
  const std::string *ids = find_metadata(file, kGoldenKey), *nats = find_metadata(file, kGoldenNatsKey);
  if (ids && nats && tokenizer) {
    facts.golden = golden_from(*ids, *nats, tokenizer->vocab_size()).ids;
    facts.golden_text = tokenizer->decode(facts.golden, {.keep_special = true});
  }
  const SafetensorsFile checkpoint =
      SafetensorsFile::open(file.path, [](std::string_view tensor) { return tensor == kTrainStateTensor; });
  // A file rewritten by another tool may lack digests, so its training state cannot be verified.
  if (checkpoint.find(kTrainStateTensor) && checkpoint.find(kDigestTensor)) {
    const TrainState state = read_train_state(checkpoint);
    facts.tokens = state.tokens;
    if (state.best_step >= 0) {
      facts.best_step = state.best_step;
      facts.best_val_loss = state.best_val_loss;
    }
  }
  try {
    if (const auto metrics = metrics_of(path)) {
      add_history(*metrics, facts);
      facts.data = data_of(metrics->parent_path());
    }
  } catch (const Error&) {  // the last line may be incomplete while the run is being trained
  }
  return facts;
}

std::string training_record(const TrainingFacts& facts) {
  Json json = Json::object().set("step", facts.step);
  if (facts.tokens) json.set("tokens", *facts.tokens);
  if (!facts.data.empty()) json.set("data", facts.data);
  for (const auto& [key, member] : kRecordedNumbers)
    if (facts.*member) json.set(std::string(key), *(facts.*member));
  return json.dump();
}

ModelFacts facts_of(const ModelFile& file, const fs::path& path) {
  ModelFacts facts;
  facts.file_bytes = model_bytes(file);
  group_tensors(file, facts);
  const auto tokenizer = open_tokenizer(file);
  facts.tokenizer = tokenizer_facts(tokenizer.get());
  facts.training = training_facts(file, tokenizer.get(), path);
  return facts;
}

}  // namespace thimble
