#include "qa/gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/rng.h"
#include "base/table.h"
#include "base/text.h"
#include "eval/eval_data.h"
#include "eval/score.h"
#include "formats/artifact.h"
#include "formats/export.h"
#include "formats/safetensors.h"
#include "infer/chat_context.h"
#include "infer/generate.h"
#include "model/model.h"
#include "model/rows.h"
#include "qa/checks.h"
#include "qa/model_facts.h"
#include "qa/speed.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/tokenizer.h"
#include "train/validation.h"

namespace thimble {

namespace {

constexpr Gate kGates[] = {
    {"integrity", "the file is complete and all digests match", integrity_gate},
    {"metadata", "the file contains all metadata needed to use it", metadata_gate},
    {"tokenizer", "it exists, and encoding and decoding preserve text", tokenizer_gate},
    {"tensors", "no NaN, no infinity, no tensor of zeros", tensors_gate},
    {"logits", "finite for random tokens", logits_gate},
    {"decode", "decoding gives the same logits as scoring", decode_gate},
    {"chat", "conversations are laid out as in training", chat_gate},
    {"golden", "greedy output is the same as when the model was saved", golden_gate},
    {"bpb", "bits per byte of --data are not worse than recorded", bpb_gate},
    {"export", "exported and read back, the model gives the same logits", export_gate},
    {"throughput", "decoding reaches at least --min-tps tokens per second", throughput_gate},
};

void check_names(const QaRequest& request) {
  std::vector<std::string_view> names;
  for (const Gate& gate : kGates) names.push_back(gate.name);
  for (const std::string& name : request.skipped) {
    if (std::ranges::count(names, name) > 0) continue;
    const std::string_view best = nearest(name, names);
    fail(best.empty() ? Hint{} : Hint{fmt::format("did you mean '{}'?", best)}, "there is no gate '{}'",
         name);
  }
}

GateOutcome run_gate(const Gate& gate, Subject& subject) {
  try {
    return gate.run(subject);
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    return {GateStatus::failed, error.what()};
  }
}

// Returns nullptr and sets `problem` if the file cannot be read.
std::unique_ptr<Subject> open_subject(const QaRequest& request, const ProgressOutput& progress,
                                      const Interrupt* interrupt, std::string& problem) {
  try {
    return std::make_unique<Subject>(request, progress, interrupt);
  } catch (const Error& error) {
    problem = error.what();
    return nullptr;
  }
}

}  // namespace

std::string_view name_of(GateStatus status) {
  return status == GateStatus::passed ? "passed" : status == GateStatus::failed ? "failed" : "skipped";
}

std::span<const Gate> all_gates() {
  return kGates;
}

std::int64_t QaReport::count(GateStatus status) const {
  return std::ranges::count(gates, status, &GateResult::status);
}

QaReport run_gates(const QaRequest& request, const ProgressOutput& progress, const Interrupt* interrupt) {
  check_names(request);
  check(std::filesystem::exists(request.model), "{} does not exist", request.model.string());
  std::string problem;
  const auto subject = open_subject(request, progress, interrupt, problem);
  QaReport report{.gates = {}, .required = request.require};
  ProgressBar bar(progress, "checking", "gates", std::size(kGates));
  for (const Gate& gate : kGates) {
    if (interrupt) interrupt->throw_if_interrupted();
    bar.update(report.gates.size(), {std::string(gate.name)});
    const double start = seconds_now();
    GateOutcome outcome;
    if (!subject)
      outcome = report.gates.empty() ? failed("{}", problem) : skipped("the model could not be opened");
    else if (std::ranges::count(request.skipped, gate.name) > 0)
      outcome = skipped("by request");
    else
      outcome = run_gate(gate, *subject);
    report.gates.push_back({gate.name, outcome.status, std::move(outcome.detail), seconds_now() - start});
  }
  return report;
}

const Tokenizer* Subject::tokenizer() {
  if (!tokenizer_) tokenizer_ = open_tokenizer(file);
  return tokenizer_.get();
}

Model& Subject::f32_model() {
  if (!f32_model_) f32_model_.emplace(make_model(file, context_, DType::f32));
  return *f32_model_;
}

Model& Subject::default_model() {
  const DType dtype = compute_dtype(ComputeDType::automatic, context_.device());
  if (dtype == DType::f32) return f32_model();
  if (default_model_) return *default_model_;
  // Adapters were trained beside the weights of their base; merging would round the sum to bf16.
  const bool adapted = find_metadata(kBaseKey) || !request.adapters.empty();
  default_model_.emplace(
      make_model(adapted ? open_adapted(request.model, request.adapters, WeightsAs::stored, progress) : file,
                 context_, dtype));
  return *default_model_;
}

namespace {

constexpr std::int64_t kRowTokens = 48;
constexpr std::int64_t kSpeedTokens = 128, kSpeedRepeats = 3;

// Tolerance for rounding differences between bf16 and f32. Measured: below 0.05 %.
constexpr double kBpbTolerance = 0.002;

// The same for the mean nats of the golden output, relative to 1 + the nats. Measured: 0.0013.
constexpr double kGoldenTolerance = 0.005;

std::vector<std::int32_t> random_tokens(const ModelConfig& config) {
  Rng random(7);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(std::min(kRowTokens, config.context)));
  for (std::int32_t& token : tokens)
    token = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(config.vocab_size)));
  return tokens;
}

std::vector<float> scored(Model& model, const std::vector<std::int32_t>& tokens) {
  const auto T = static_cast<std::int64_t>(tokens.size());
  return model.score(grid_rows(model.config(), T, tokens), true).logits;
}

// The logits of all tokens, computed one by one through the KV cache.
std::vector<float> decoded(Model& model, const std::vector<std::int32_t>& tokens) {
  std::vector<float> all;
  std::size_t read = 0;
  generate_tokens(model, {tokens.front()}, [&](std::span<const float> logits) -> std::optional<TokenId> {
    all.insert(all.end(), logits.begin(), logits.end());
    if (++read == tokens.size()) return std::nullopt;
    return tokens[read];
  });
  return all;
}

std::optional<double> recorded(const Subject& subject, std::string_view key) {
  const std::string* text = subject.find_metadata(key);
  if (!text) return std::nullopt;
  const auto value = parse_number<double>(*text);
  check(value && std::isfinite(*value), "metadata {} is '{}', expected a number", key, text->substr(0, 40));
  return value;
}

}  // namespace

GateOutcome logits_gate(Subject& subject) {
  const std::vector<float> logits = scored(subject.f32_model(), random_tokens(subject.file.config.model));
  const auto bad = std::ranges::count_if(logits, [](float logit) { return !std::isfinite(logit); });
  if (bad > 0) return failed("{} of {} logits are not finite", bad, logits.size());
  return passed("{} finite logits", logits.size());
}

GateOutcome decode_verdict(std::span<const float> scored, std::span<const float> decoded, std::size_t V) {
  const LogitComparison same = compare_logits(scored, decoded, V);
  if (!same.equal())
    return failed("at position {} decoding and scoring differ by {:.2g} of the largest logit", same.worst_row,
                  same.largest);
  return passed("{} positions differ by at most {:.2g} of the largest logit", scored.size() / V,
                same.largest);
}

GateOutcome decode_gate(Subject& subject) {
  const std::vector<std::int32_t> tokens = random_tokens(subject.file.config.model);
  return decode_verdict(scored(subject.f32_model(), tokens), decoded(subject.f32_model(), tokens),
                        static_cast<std::size_t>(subject.file.config.model.vocab_size));
}

GateOutcome golden_gate(Subject& subject) {
  const std::string *ids = subject.find_metadata(kGoldenKey), *nats = subject.find_metadata(kGoldenNatsKey);
  if (!ids || !nats)
    return skipped("the file has no golden output; only checkpoints and their f32 copies have one");
  const Tokenizer* tokenizer = subject.tokenizer();
  if (!tokenizer) return failed("the file has a golden output but no tokenizer");
  const GoldenOutput golden = golden_from(*ids, *nats, tokenizer->vocab_size());
  if (golden.ids.empty() || std::cmp_greater(golden.ids.size(), subject.file.config.model.context))
    return failed("invalid golden output of {} tokens", golden.ids.size());
  // A bf16 model is computed in this machine's default dtype, so that on the same kind of machine
  // rounding is the same as when it was saved.
  const bool bf16 = subject.file.config.train.dtype == ComputeDType::bf16;
  const auto allowed = static_cast<std::size_t>(tokenizer->vocab_size());
  GoldenOutput now;
  std::optional<GateOutcome> failure;
  // Feed the recorded ids, not those that are most likely now: a single near tie would change all
  // later tokens.
  const auto next = [&](std::span<const float> logits) -> std::optional<TokenId> {
    const std::size_t at = now.ids.size();
    const TokenId id = golden.ids[at];
    const auto choices = logits.first(allowed);
    if (stats_of(logits).not_finite > 0) {
      failure = failed("the logits of token {} of {} are not finite", at + 1, golden.ids.size());
    } else if (!is_as_likely(choices, id)) {
      failure = failed("token {} of {} is {}, but was {} when the model was saved", at + 1, golden.ids.size(),
                       likeliest_id(choices), id);
    } else {
      now.ids.push_back(id);
      now.nats += nats_of(logits, id);
    }
    return failure || now.ids.size() == golden.ids.size() ? std::nullopt : std::optional(id);
  };
  generate_tokens(bf16 ? subject.default_model() : subject.f32_model(), {bos_of(*tokenizer)}, next);
  if (failure) return *failure;
  const std::string figures = fmt::format("{} tokens with {:.4f} nats, {:.4f} when the model was saved",
                                          now.ids.size(), now.mean_nats(), golden.mean_nats());
  const bool same =
      std::abs(now.mean_nats() - golden.mean_nats()) <= kGoldenTolerance * (1 + golden.mean_nats());
  return {same ? GateStatus::passed : GateStatus::failed, figures};
}

GateOutcome bpb_gate(Subject& subject) {
  if (subject.request.data.empty()) return skipped("no data; pass --data");
  const Tokenizer* tokenizer = subject.tokenizer();
  if (!tokenizer) return failed("the model has no tokenizer to encode the data");
  const TokenSet set = open_eval_set(subject.request.data, *tokenizer, subject.progress, subject.interrupt,
                                     {.layout = layout_for_training(subject.file)});
  const Config& config = subject.file.config;
  const ByteTable bytes(*tokenizer, static_cast<TokenId>(config.model.vocab_size));
  const auto most = recorded(subject, kValTokensKey);
  const ScoreOptions options{.val_tokens = most ? static_cast<std::int64_t>(*most) : config.train.val_tokens,
                             .isolate = config.model.isolate};
  const Score score =
      score_set(subject.default_model(), bytes, set, options, subject.progress, subject.interrupt);
  if (score.bytes == 0) return failed("the {} scored tokens contain no bytes of text", score.tokens);
  // The figure is reported even if there is no recorded one to compare with.
  const double bits = score.bits_per_byte();
  const auto record = recorded(subject, kValBpbKey);
  if (!record) return skipped("{:.4f}, but the file has no recorded figure to compare with", bits);
  const std::string* known = subject.find_metadata(kValSetKey);
  if (!known || *known != set.fingerprint())
    return skipped("{:.4f}, but the recorded {:.4f} was measured on other data", bits, *record);
  return {bits <= *record * (1 + kBpbTolerance) ? GateStatus::passed : GateStatus::failed,
          fmt::format("{:.4f}, recorded {:.4f}", bits, *record)};
}

GateOutcome throughput_gate(Subject& subject) {
  if (!subject.request.min_tokens_per_second) return skipped("no minimum; pass --min-tps");
  const double least = *subject.request.min_tokens_per_second;
  const Speed speed = decode_speed(
      subject.default_model(),
      {.tokens = std::min(kSpeedTokens, subject.file.config.model.context), .repeats = kSpeedRepeats},
      subject.progress, subject.interrupt);
  const std::string figures = fmt::format("{} {:.1f} tokens/s, required {}", speed.name, speed.mean(), least);
  return {speed.mean() >= least ? GateStatus::passed : GateStatus::failed, figures};
}

namespace {

namespace fs = std::filesystem;

// Exports the model. Returns an empty string, or the reason why the format cannot express this
// model.
std::string refusal(const ExportFormat& format, const ModelFile& model, const fs::path& path) {
  PosixFileOps ops;
  try {
    format.write(ops, model, {.path = path, .type = GgufType::f32});
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

GateOutcome export_verdict(std::string_view format, Subject& subject, const fs::path& path) {
  const ModelFile back = open_model(path);
  const double difference = logit_difference(subject.file, back);
  if (!(difference <= kExactDifference))
    return failed("{}: the logits of the exported model differ by {:.2g}", format, difference);
  if (const std::string wrong = tokenizer_difference(subject.file, back); !wrong.empty())
    return failed("{}: {}", format, wrong);
  return passed("{}: logits differ by {:.2g}{}", format, difference,
                back.tokenizer ? ", same token ids" : "");
}

GateOutcome export_gate(Subject& subject) {
  const TemporaryFolder folder;
  std::string reasons;
  for (const std::string_view name : {"gguf", "safetensors"})
    for (const ExportFormat& format : export_formats()) {
      if (format.name != name) continue;
      const fs::path path = folder.path() / name;
      const std::string reason = refusal(format, subject.file, path);
      if (reason.empty()) {
        GateOutcome outcome = export_verdict(name, subject, path);
        outcome.detail += reasons;
        return outcome;
      }
      reasons += fmt::format("; no {} export: {}", name, reason);
    }
  return failed("no format can express the model{}", reasons);
}

// Opening the model has already read the complete file and checked its digests, sizes and shapes.
// This gate only reports what was checked.
GateOutcome integrity_gate(Subject& subject) {
  const ModelFile& file = subject.file;
  const std::string read = fmt::format("{} tensors, {} parameters", file.tensors.size(),
                                       with_commas(ParamTable(file.config.model).count()));
  if (file.format == "thimble") return passed("{}: the digest of the file matches", read);
  if (std::ranges::count(file.tensors, kDigestTensor, &StoredTensor::name) > 0)
    return passed("{}: the digests of the header and of every tensor match", read);
  return passed("{}: read completely; the file has no digests", read);
}

// Our own formats must contain all of these keys. For other formats the reader has already rejected
// files with missing metadata.
GateOutcome metadata_gate(Subject& subject) {
  std::vector<std::string> missing;
  const auto require = [&](std::string_view key) {
    if (!subject.find_metadata(key)) missing.emplace_back(key);
  };
  const ModelFile& file = subject.file;
  if (file.format == "safetensors" || file.format == "thimble") {
    require(kConfigKey);
    require(kVersionKey);
  }
  if (file.format == "thimble") require(kRuleKey);
  if (file.architecture.empty()) missing.emplace_back("architecture");
  if (const Tokenizer* tokenizer = subject.tokenizer())
    if (end_ids(*tokenizer).empty()) missing.emplace_back("a bos or eos id");
  if (!missing.empty()) return failed("missing: {}", joined(missing, ", "));
  const ModelConfig& c = file.config.model;
  return passed("{}, {} x {}, context {}, vocabulary {}", file.architecture, c.layers, c.dim, c.context,
                c.vocab_size);
}

GateOutcome tokenizer_gate(Subject& subject) {
  const Tokenizer* tokenizer = subject.tokenizer();
  if (!tokenizer) return failed("the model has no tokenizer");
  const RoundTrip done = check_round_trip(*tokenizer);
  return passed("{}: {} ids and {} random texts are preserved{}", name_of(tokenizer->kind()),
                with_commas(done.ids), with_commas(done.texts),
                done.exact ? "" : ", apart from normalization");
}

GateOutcome tensors_gate(Subject& subject) {
  const ParamTable table(subject.file.config.model);
  for (const Param& param : table.all()) {
    const TensorStats stats = stats_of(values_of(subject.file, param));
    if (stats.not_finite > 0)
      return failed("{}: {} of {} values are not finite", param.name, with_commas(stats.not_finite),
                    with_commas(stats.count));
    // Biases may be zero, and a gate of zero passes half of its input. A matrix or norm of zeros
    // blocks its input completely.
    const bool may_be_zero =
        param.name.ends_with(".bias") || param.role == Role::skip_gates || param.role == Role::smear_gate;
    if (stats.all_zero() && !may_be_zero) return failed("{} is all zeros", param.name);
    const bool matrix = param.rows > 1 && param.cols > 1 && !param.control;
    if (matrix && stats.deviation == 0) return failed("{}: every value is {}", param.name, stats.mean);
  }
  return passed("{} tensors, all finite and none constant", table.all().size());
}

GateOutcome chat_gate(Subject& subject) {
  if (subject.file.layout.empty()) return skipped("the model was not trained on chats");
  const Tokenizer* tokenizer = subject.tokenizer();
  if (!tokenizer) return failed("the model has the chat layout {} but no tokenizer", subject.file.layout);
  const ChatLayout layout = open_chat_layout(subject.file, *tokenizer);
  Conversation turns = {{ChatRole::user, "hello"}};
  if (!layout.is_template()) turns.insert(turns.begin(), {ChatRole::system, "be kind"});
  const std::vector<TokenId> prompt = layout.prompt(turns);
  turns.push_back({ChatRole::assistant, "hi"});
  const std::vector<TokenId> complete = layout.conversation(turns);
  // A template may add to a prompt what it leaves out of complete conversations, such as <think>.
  if (!layout.is_template() && (complete.size() <= prompt.size() ||
                                !std::ranges::equal(prompt, std::span(complete).first(prompt.size()))))
    return failed("the prompt of a conversation is not a prefix of its layout in training");
  if (std::ranges::count(chat_stop_ids(layout), layout.end_id()) == 0)
    return failed("token {} ends a turn but is not a stop token", layout.end_id());
  // The text of a control token in a message must be encoded as plain text.
  const std::string typed = tokenizer->token_text(layout.end_id());
  const auto ends = [&](const std::string& content) {
    return std::ranges::count(layout.prompt(Conversation{{ChatRole::user, content}}), layout.end_id());
  };
  if (ends(typed) != ends("x")) return failed("a message that contains {} ends the turn", typed);
  return passed("{}: prompts match the training layout, token {} ends answers",
                layout_summary(subject.file.layout), layout.end_id());
}

}  // namespace thimble
