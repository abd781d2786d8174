#include "train/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "base/file_ops.h"
#include "base/files.h"
#include "base/table.h"
#include "data/data_folder.h"
#include "data/difficulty.h"
#include "data/shard.h"
#include "model/model.h"
#include "model/params.h"
#include "ops/cuda_plugin.h"
#include "train/step_bench.h"
#include "train/train.h"

namespace thimble {

namespace {

struct ModelSize {
  std::int64_t layers, dim, heads;
};
// About 1.5 to 2 times as many parameters as the one before; 50 k to 100 M.
constexpr ModelSize kSizes[] = {{2, 32, 1},  {2, 64, 2},  {4, 64, 2},    {4, 128, 2},
                                {4, 192, 3}, {4, 256, 4}, {6, 256, 4},   {6, 384, 6},
                                {8, 384, 6}, {8, 512, 8}, {10, 640, 10}, {12, 768, 12}};
constexpr std::int64_t kMlpRatio = 3;

// Vocabulary by bytes of training text.
struct VocabularyRow {
  double below_bytes;
  TokenId tokens;  // 0: bytes
};
constexpr VocabularyRow kVocabularies[] = {{4e3, 0}, {10e3, 512}, {50e3, 1536}, {HUGE_VAL, 4096}};

constexpr double kMostEpochs = 16;      // with more, the validation loss rises again
constexpr double kMostParameters = 40;  // per different token: larger models gain nothing
constexpr double kSpeedMargin = 1.05;   // a step of a run, with loader, dropout and log, over a measured one
constexpr double kScoringCost = 0.4;    // of a token in validation, over one in training
constexpr std::int64_t kValidations = 10;
constexpr double kValidationShare = 0.06;  // of the time, at most
constexpr std::int64_t kFewestSteps = 10;
constexpr std::int64_t kPatience = 4;  // validations: 40 % of a run
constexpr double kClearGain = 0.002;   // of the loss: less does not justify a larger model

std::int64_t power_of_two(double value, std::int64_t least, std::int64_t most) {
  const double limited = std::clamp(value, static_cast<double>(least), static_cast<double>(most));
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(limited)));
}

// Measured on English text with thimble's BPE, rounded.
double estimated_bytes_per_token(std::int64_t vocab_size) {
  if (vocab_size < 300) return 1;
  return std::clamp(0.5 * std::log2(static_cast<double>(vocab_size)) - 2.4, 1.0, 4.5);
}

double bytes_per_token(const PlanFacts& facts, const Config& config) {
  return facts.bytes_per_token > 0 ? facts.bytes_per_token
                                   : estimated_bytes_per_token(config.model.vocab_size);
}

double train_tokens(const PlanFacts& facts, const Config& config) {
  return std::max(1.0, facts.train_bytes / bytes_per_token(facts, config));
}

double parameters_of(const Config& config) {
  return static_cast<double>(ParamTable(config.model).count());
}

double tokens_read(const PlanFacts& facts, const Config& config) {
  const TrainConfig& train = config.train;
  if (train.epochs > 0) return train.epochs * train_tokens(facts, config);
  return static_cast<double>(train.steps) * static_cast<double>(train.batch_tokens);
}

// The tokens of one validation, and how many of the validation set they are.
struct ValidationCost {
  std::int64_t tokens = 0;  // 0: all
  double scored = 0;        // tokens of one validation
  double seconds = 0;       // of all validations of the run
};

ValidationCost validation_cost(const PlanFacts& facts, const Config& config, double token_seconds) {
  const double all = facts.val_bytes / bytes_per_token(facts, config);
  const double each = kScoringCost * token_seconds * (kValidations + 1);  // seconds per token, whole run
  const double affordable =
      std::max(kValidationShare * facts.seconds / each, 8.0 * static_cast<double>(config.model.context));
  ValidationCost cost{.scored = std::min(all, affordable)};
  if (config.train.val_tokens > 0) cost.scored = std::min(all, static_cast<double>(config.train.val_tokens));
  if (affordable < all) cost.tokens = static_cast<std::int64_t>(affordable);
  cost.seconds = cost.scored * each;
  return cost;
}

// The steps that fit into the time, or as many as are useful.
RunLength length_of(const PlanFacts& facts, const Config& config, double step_seconds) {
  const auto batch = static_cast<double>(config.train.batch_tokens);
  const double step = kSpeedMargin * step_seconds, text = train_tokens(facts, config);
  const ValidationCost validation = validation_cost(facts, config, step_seconds / batch);
  const double in_time = (facts.seconds - validation.seconds) / step, useful = kMostEpochs * text / batch;
  RunLength length{.step_seconds = step_seconds, .fills_time = in_time <= useful};
  const double steps = std::max(std::min(in_time, useful), static_cast<double>(kFewestSteps));
  length.steps = static_cast<std::int64_t>(steps);
  if (config.train.steps > 0) length.steps = config.train.steps;
  if (config.train.epochs > 0)
    length.steps = std::max<std::int64_t>(1, std::llround(config.train.epochs * text / batch));
  length.epochs = static_cast<double>(length.steps) * batch / text;
  length.seconds = static_cast<double>(length.steps) * step + validation.seconds;
  return length;
}

// The settings with the user's steps or epochs, or with neither.
ConfigBuilder without_length(const ConfigBuilder& settings) {
  ConfigBuilder open = settings;
  if (!open.given("steps") && !open.given("epochs")) open.derive("steps", std::int64_t{0});
  return open;
}

// Resolving needs a run that ends; a step count of 1 stands for one that is not chosen yet.
Config resolved_open(const ConfigBuilder& settings) {
  ConfigBuilder open = without_length(settings);
  const bool chosen = open.given("steps") || open.given("epochs");
  if (!chosen) open.derive("steps", std::int64_t{1});
  Config config = open.resolve();
  if (!chosen) config.train.steps = 0;
  return config;
}

}  // namespace

std::function<double(const Config&)> step_timer(const std::shared_ptr<DeviceRuntime>& device, double seconds,
                                                const ProgressOutput& progress, const Interrupt& interrupt) {
  return [=, &interrupt](const Config& config) {
    StepBenchRequest request{.config = config,
                             .dtype = compute_dtype(config.train.dtype, device->device()),
                             .steps = 1,
                             .ceiling = false,
                             .device = device};
    const double once = bench_steps(request, progress, interrupt).seconds;
    request.steps = std::clamp<std::int64_t>(static_cast<std::int64_t>(seconds / once), 3, 100);
    if (2 * once > seconds) return once;
    return bench_steps(request, progress, interrupt).seconds;
  };
}

std::optional<TokenizerSpec> planned_tokenizer(const PlanFacts& facts) {
  for (const VocabularyRow& row : kVocabularies)
    if (facts.train_bytes < row.below_bytes) {
      if (row.tokens == 0) return std::nullopt;
      return TokenizerSpec{TokenizerKind::bpe, row.tokens};
    }
  return std::nullopt;
}

namespace {

// Small enough that an epoch has many steps.
std::int64_t planned_batch(const PlanFacts& facts, double text_tokens, std::int64_t context) {
  const std::int64_t most = facts.gpu ? 32768 : 4096;
  return std::max(context, power_of_two(text_tokens / 48, 64, most));
}

void put_size(const PlanFacts& facts, const ModelSize& size, ConfigBuilder& settings) {
  settings.derive("layers", size.layers);
  settings.derive("dim", size.dim);
  settings.derive("heads", size.heads);
  settings.derive("kv_heads", std::int64_t{0});
  settings.derive("head_dim", std::int64_t{0});
  settings.derive("mlp_hidden", kMlpRatio * settings.current().model.dim);
  const double text = train_tokens(facts, settings.current());
  settings.derive("context", power_of_two(std::sqrt(text), 16, 256));
  settings.derive("batch_tokens", planned_batch(facts, text, settings.current().model.context));
}

}  // namespace

void choose_model(const PlanFacts& facts, ConfigBuilder& settings) {
  std::optional<ConfigBuilder> best;
  std::optional<Error> refused;
  double lowest = HUGE_VAL;
  int not_better = 0;  // candidates in a row
  std::vector<ModelConfig> tried;
  for (const ModelSize& size : kSizes) {
    ConfigBuilder candidate = settings;
    Config config;
    try {  // a setting of the user may not fit this size
      put_size(facts, size, candidate);
      config = resolved_open(candidate);
    } catch (const Error& error) {
      refused = error;
      continue;
    }
    if (std::ranges::find(tried, config.model) != tried.end()) continue;
    tried.push_back(config.model);
    if (best && parameters_of(config) > kMostParameters * train_tokens(facts, config)) break;
    const RunLength length = length_of(facts, config, facts.step_seconds(config));
    const bool in_time = length.seconds <= 1.1 * facts.seconds;
    if (best && !in_time) break;
    config.train.steps = length.steps;
    config.train.epochs = 0;
    PlanFacts known = facts;
    if (known.difficulty == 0) known.difficulty = 1;  // only compares models
    const double loss = expected_loss(known, config).bits_per_byte;
    if (best && loss > lowest * (1 - kClearGain)) {
      if (++not_better == 2) break;
      continue;
    }
    best = candidate;
    lowest = loss;
    not_better = 0;
  }
  if (!best) throw refused ? *refused : Error("no model fits the settings");
  settings = *best;
}

namespace {

// Text that is read many times is memorized without weight decay, which for text that is read once
// or twice only slows learning down. Measured on 10 k to 12 M different tokens. Beside decay and an
// average of the weights, dropout gained nothing on any text.
constexpr double kRepeated = 2;  // epochs

double rounded(double value) {
  return std::round(100 * value) / 100;
}

// A model memorizes the sooner, the larger it is for the text.
double planned_decay(double epochs, double parameters_per_token) {
  return rounded(std::clamp(0.016 * (epochs - 1) * std::sqrt(parameters_per_token), 0.0, 1.0));
}

// The average reaches back over about a twelfth of the run, at most 100 steps.
double planned_average(std::int64_t steps) {
  return std::clamp(std::round(1000 - 12'000 / static_cast<double>(steps)) / 1000, 0.5, 0.99);
}

}  // namespace

RunLength choose_length(const PlanFacts& facts, bool keep_recipe, ConfigBuilder& settings) {
  Config config = resolved_open(settings);
  const double step_seconds = facts.step_seconds(config);
  const RunLength length = length_of(facts, config, step_seconds);
  if (!settings.given("epochs")) settings.derive("steps", length.steps);
  const auto batch = static_cast<double>(config.train.batch_tokens);
  settings.derive("val_every", std::max<std::int64_t>(1, (length.steps + kValidations - 1) / kValidations));
  settings.derive("val_tokens", validation_cost(facts, config, step_seconds / batch).tokens);
  settings.derive("patience", kPatience);
  if (keep_recipe) return length;
  settings.derive("warmup_steps", std::clamp<std::int64_t>(length.steps / 20, 1, 50));
  const double epochs = length.epochs, per_token = parameters_of(config) / train_tokens(facts, config);
  const double decay = planned_decay(epochs, per_token);
  settings.derive("weight_decay", decay);
  settings.derive("muon_weight_decay", decay);
  settings.derive("dropout", 0.0);
  if (epochs >= kRepeated && !settings.given("swa_start"))
    settings.derive("ema_decay", planned_average(length.steps));
  return length;
}

ExpectedLoss expected_loss(const PlanFacts& facts, const Config& config) {
  const double per_token = bytes_per_token(facts, config);
  return expected_loss({.parameters = parameters_of(config),
                        .bytes_read = tokens_read(facts, config) * per_token,
                        .different_bytes = facts.train_bytes,
                        .difficulty = facts.difficulty,
                        .is_estimated = facts.difficulty_is_estimated});
}

namespace {

std::string minutes_text(double seconds) {
  return seconds < 120 ? fmt::format("{:.0f} s", seconds) : fmt::format("{:.1f} min", seconds / 60);
}

std::string size_text(double bytes) {
  return with_unit(std::round(bytes)) + (bytes < 1000 ? " B" : "B");
}

// "given" for a setting of the user, else the reason.
std::string reason(const ConfigBuilder& settings, std::string_view key, std::string why) {
  return settings.given(key) ? "given" : std::move(why);
}

}  // namespace

std::string plan_table(const PlanFacts& facts, const RunLength& length, const ConfigBuilder& settings) {
  const Config config = settings.resolve();
  const ModelConfig& model = config.model;
  const TrainConfig& train = config.train;
  const double text = train_tokens(facts, config);
  const double speed = static_cast<double>(train.batch_tokens) / length.step_seconds;
  Table table({"choice", "value", "why"});
  const std::string kind = facts.kind == DataKind::chat ? "chats" : "text";
  table.row({"tokenizer", fmt::format("{} tokens", with_commas(model.vocab_size)),
             fmt::format("{} of {}, {:.2f} bytes per token", size_text(facts.train_bytes + facts.val_bytes),
                         kind, bytes_per_token(facts, config))});
  table.row(
      {"model",
       fmt::format("{} x {}, {} parameters", model.layers, model.dim, with_unit(parameters_of(config))),
       reason(settings, "dim",
              fmt::format("lowest expected loss after {} at this speed", minutes_text(facts.seconds)))});
  table.row({"context", fmt::format("{} tokens", model.context),
             reason(settings, "context",
                    fmt::format("about {:.0f} bytes",
                                static_cast<double>(model.context) * bytes_per_token(facts, config)))});
  table.row({"batch", fmt::format("{} tokens", with_commas(train.batch_tokens)),
             reason(settings, "batch_tokens",
                    fmt::format("{:.0f} steps per epoch", text / static_cast<double>(train.batch_tokens)))});
  const std::string many = fmt::format("{} tokens per second, measured", with_unit(speed));
  table.row(
      {"steps", with_commas(length.steps),
       reason(settings, train.epochs > 0 ? "epochs" : "steps",
              length.fills_time ? many : fmt::format("{:.0f} epochs: more would not help", length.epochs))});
  table.row(
      {"weight decay", fmt::format("{}", config.optimizer.muon_weight_decay),
       reason(settings, "muon_weight_decay", fmt::format("the text is read {:.3g} times", length.epochs))});
  table.row(
      {"learning rate", fmt::format("{}", config.optimizer.rate(ParamGroup::matrix)),
       reason(settings, "matrix_lr", fmt::format("of the matrices; {} for the rest", config.optimizer.lr))});
  table.row(
      {"time", minutes_text(length.seconds), fmt::format("training and {} validations", kValidations + 1)});
  const ExpectedLoss expected = expected_loss(facts, config);
  if (expected.bits_per_byte > 0)
    table.row({"expected", fmt::format("{:.2f} bits per byte", expected.bits_per_byte),
               fmt::format("{:.2f} to {:.2f} in nine of ten runs", expected.low, expected.high)});
  return table.text();
}

namespace {

constexpr double kSecondsPerCandidate = 0.3, kSecondsToMeasure = 2;
constexpr double kSecondsToEnd = 2;  // the first program, the last checkpoint, the report
constexpr std::size_t kEncodedBytes = std::size_t{256} << 10;
constexpr std::size_t kSampledTokens = 300'000;  // of shards
constexpr double kOfNgrams = 0.94;               // difficulty over the n-gram model's bits per byte, +-6 %
constexpr double kReferenceShare = 0.05;         // of the time, to train the reference model
constexpr std::size_t kReferenceBytes = std::size_t{1} << 20, kReferenceHeldOut = 100'000;
constexpr double kUsualBytesPerToken = 3;  // of shards without a manifest

// The beginning of each shard as text, at most `tokens` tokens in total.
std::string text_of(const DataFolder& folder, DataSplit split, const Tokenizer& tokenizer,
                    std::size_t tokens) {
  std::string text;
  const auto& files = folder.files(split);
  for (const std::filesystem::path& file : files) {
    const ShardReader shard(file);
    std::vector<TokenId> ids(std::min<std::uint64_t>(tokens / files.size(), shard.tokens()));
    shard.copy(0, ids);
    if (shard.format() == ShardFormat::marked) std::ranges::transform(ids, ids.begin(), without_marks);
    std::erase_if(ids, [&](TokenId id) { return !tokenizer.contains(id); });
    text += tokenizer.decode(ids);
  }
  return text;
}

double tokens_of(const DataFolder& folder, DataSplit split) {
  double tokens = 0;
  for (const std::filesystem::path& file : folder.files(split))
    tokens += static_cast<double>(ShardReader(file).tokens());
  return tokens;
}

PlanFacts facts_of_shards(const DataFolder& folder) {
  PlanFacts facts{.kind = folder.kind(), .bytes_per_token = kUsualBytesPerToken};
  const double train = tokens_of(folder, DataSplit::train), val = tokens_of(folder, DataSplit::val);
  if (folder.manifest)
    facts.bytes_per_token = static_cast<double>(folder.manifest->train.bytes) / std::max(1.0, train);
  facts.train_bytes = train * facts.bytes_per_token;
  facts.val_bytes = val * facts.bytes_per_token;
  if (!folder.manifest || val == 0) return facts;
  const auto tokenizer = load_tokenizer_of(folder);
  facts.difficulty =
      kOfNgrams * ngram_bits_per_byte(text_of(folder, DataSplit::train, *tokenizer, kSampledTokens),
                                      text_of(folder, DataSplit::val, *tokenizer, kSampledTokens / 4));
  facts.difficulty_is_estimated = true;
  return facts;
}

PlanFacts facts_of(const DataSettings& data, const Interrupt& interrupt, SampledText& sample) {
  if (is_data_folder(data.data)) return facts_of_shards(open_data_folder(data.data));
  PlanFacts facts{.kind = data.kind};
  const ReadOptions read = data.read_options();
  sample = sample_text(find_source(data.data.string(), read), read, interrupt);
  check(sample.bytes > 0, Hint{"pass a file or folder that contains text"}, "{} contains nothing to train on",
        data.data.string());
  if (data.val_data.empty()) {
    facts.val_bytes = data.val_fraction * sample.bytes;
    facts.train_bytes = sample.bytes - facts.val_bytes;
  } else {
    SampledText other = sample_text(find_source(data.val_data.string(), read), read, interrupt);
    facts.train_bytes = sample.bytes;
    facts.val_bytes = other.bytes;
    sample.held_out = std::move(other.train);
  }
  if (!sample.held_out.empty())
    facts.difficulty = kOfNgrams * ngram_bits_per_byte(sample.train, sample.held_out);
  facts.difficulty_is_estimated = true;
  return facts;
}

// Pieces of the text, at most `bytes` in total, spread over it.
std::string thinned(std::string_view text, std::size_t bytes) {
  constexpr std::size_t kPieces = 16;
  if (text.size() <= bytes) return std::string(text);
  std::string thin;
  for (std::size_t i = 0; i < kPieces; ++i) thin += text.substr(text.size() / kPieces * i, bytes / kPieces);
  return thin;
}

// The reference model: small enough to train in seconds.
Config reference_config(std::int64_t vocab_size) {
  ConfigBuilder settings;
  settings.preset("quick");
  settings.derive("vocab_size", vocab_size);
  for (const auto& [key, value] : {std::pair{"layers", 2},
                                   {"dim", 64},
                                   {"heads", 2},
                                   {"kv_heads", 2},
                                   {"mlp_hidden", 192},
                                   {"context", 256},
                                   {"batch_tokens", 2048},
                                   {"steps", 120},
                                   {"warmup_steps", 10},
                                   {"val_every", 0}})
    settings.derive(key, std::int64_t{value});
  return settings.resolve();
}

}  // namespace

RunPlanner::RunPlanner(const DataSettings& data, double minutes, std::shared_ptr<DeviceRuntime> device,
                       ProgressOutput progress, const Interrupt& interrupt)
    : started_(seconds_now()),
      minutes_(minutes),
      device_(std::move(device)),
      progress_(std::move(progress)),
      interrupt_(interrupt),
      facts_(facts_of(data, interrupt, sample_)) {
  facts_.gpu = device_->device() == Device::cuda;
}

double RunPlanner::seconds_left() const {
  return std::max(0.5, 60 * minutes_ - (seconds_now() - started_) - kSecondsToEnd);
}

// Trains the reference model on the sample if that takes a small part of the time.
void RunPlanner::measure_difficulty(const std::shared_ptr<const Tokenizer>& tokenizer) {
  const Config config = reference_config(tokenizer->vocab_size());
  const double left = seconds_left(), share = kReferenceShare * left;
  if (facts_.kind == DataKind::chat || sample_.held_out.size() < kReferenceHeldOut / 10 || share < 2) return;
  const double step = step_timer(device_, share / 20, ProgressOutput::nowhere(), interrupt_)(config);
  if (step * static_cast<double>(config.train.steps) > share) return;
  const TemporaryFolder folder;
  const std::filesystem::path text = folder.path() / "train.txt", held_out = folder.path() / "val.txt";
  PosixFileOps ops;
  write_file(ops, text, thinned(sample_.train, kReferenceBytes), Existing::replace);
  write_file(ops, held_out, thinned(sample_.held_out, kReferenceHeldOut), Existing::replace);
  const TrainResult result = train({.config = config,
                                    .tokenizer = tokenizer,
                                    .source = {.data = text, .val_data = held_out},
                                    .run = folder.path() / "run",
                                    .device = device_,
                                    .validate_first = false},
                                   Log::nowhere(), ProgressOutput::nowhere(), interrupt_);
  if (result.status == RunStatus::interrupted) throw Interrupted();
  if (!is_finished(result.status) || result.val_bpb <= 0) return;
  facts_.difficulty = result.val_bpb;
  facts_.difficulty_is_estimated = false;
}

void RunPlanner::plan(bool everything, const std::shared_ptr<const Tokenizer>& tokenizer,
                      ConfigBuilder& settings) {
  if (tokenizer && !sample_.train.empty()) {
    const std::string text = thinned(sample_.train, kEncodedBytes);
    facts_.bytes_per_token = static_cast<double>(text.size()) /
                             static_cast<double>(std::max<std::size_t>(1, tokenizer->encode(text).size()));
    measure_difficulty(tokenizer);
  }
  facts_.seconds = seconds_left();
  facts_.step_seconds =
      step_timer(device_, std::min(kSecondsPerCandidate, facts_.seconds / 50), progress_, interrupt_);
  if (everything) choose_model(facts_, settings);
  const double measuring = std::min(kSecondsToMeasure, facts_.seconds / 20);
  facts_.step_seconds = step_timer(device_, measuring, progress_, interrupt_);
  facts_.seconds = std::max(0.5, seconds_left() - measuring);
  const RunLength length = choose_length(facts_, !everything, settings);
  table_ = plan_table(facts_, length, settings);
  expected_ = expected_loss(facts_, settings.resolve());
  if (!settings.given("steps") && !settings.given("epochs")) most_seconds_ = facts_.seconds;
}

}  // namespace thimble
