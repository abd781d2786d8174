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
    {"integrity", "every byte is the one that was written", integrity_gate},
    {"metadata", "the file says all that is needed to use it", metadata_gate},
    {"tokenizer", "there is one, and texts and ids come back through it", tokenizer_gate},
    {"tensors", "no NaN, no infinity, no tensor of zeros", tensors_gate},
    {"logits", "finite for random tokens", logits_gate},
    {"decode", "token by token it computes what it computes at once", decode_gate},
    {"chat", "conversations are laid out as in training", chat_gate},
    {"golden", "it says greedily what it said when it was saved", golden_gate},
    {"bpb", "bits per byte of --data are not worse than recorded", bpb_gate},
    {"export", "written for others and read back, it computes the same", export_gate},
    {"throughput", "it decodes at least --min-tps tokens a second", throughput_gate},
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

// Nothing, and why, if the file cannot be read.
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
    if (interrupt) interrupt->throw_if_asked();
    bar.update(report.gates.size(), {std::string(gate.name)});
    const double start = seconds_now();
    GateOutcome outcome;
    if (!subject)
      outcome = report.gates.empty() ? failed("{}", problem) : skipped("the model could not be opened");
    else if (std::ranges::count(request.skipped, gate.name) > 0)
      outcome = skipped("as asked");
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

Model& Subject::exact() {
  if (!exact_) exact_.emplace(make_model(file, context_, DType::f32));
  return *exact_;
}

Model& Subject::usual() {
  const DType dtype = compute_dtype(ComputeDType::automatic, context_.device());
  if (dtype == DType::f32) return exact();
  if (!usual_) usual_.emplace(make_model(file, context_, dtype));
  return *usual_;
}

namespace {

constexpr std::int64_t kRowTokens = 48;
constexpr std::int64_t kSpeedTokens = 128, kSpeedRepeats = 3;

// bf16 and f32 round differently: so much worse is the same. (Seen: below 0.05 %.)
constexpr double kBpbTolerance = 0.002;

// The same for the mean of the golden output's nats, as a part of 1 + the nats. (Seen: 0.0013.)
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

// One after the other through the cache, all logits.
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
  const auto value = number_in<double>(*text);
  check(value && std::isfinite(*value), "metadata {} is '{}', expected a number", key, text->substr(0, 40));
  return value;
}

}  // namespace

GateOutcome logits_gate(Subject& subject) {
  const std::vector<float> logits = scored(subject.exact(), random_tokens(subject.file.config.model));
  const auto bad = std::ranges::count_if(logits, [](float logit) { return !std::isfinite(logit); });
  if (bad > 0) return failed("{} of {} logits are not finite", bad, logits.size());
  return passed("{} finite logits", logits.size());
}

GateOutcome decode_verdict(std::span<const float> at_once, std::span<const float> one_by_one, std::size_t V) {
  const LogitComparison same = compare_logits(at_once, one_by_one, V);
  if (!same.equal())
    return failed("at position {} decoding and scoring differ by {:.2g} of the largest logit", same.worst_row,
                  same.largest);
  return passed("{} positions, at most {:.2g} of the largest logit apart", at_once.size() / V, same.largest);
}

GateOutcome decode_gate(Subject& subject) {
  const std::vector<std::int32_t> tokens = random_tokens(subject.file.config.model);
  return decode_verdict(scored(subject.exact(), tokens), decoded(subject.exact(), tokens),
                        static_cast<std::size_t>(subject.file.config.model.vocab_size));
}

GateOutcome golden_gate(Subject& subject) {
  const std::string *ids = subject.find_metadata(kGoldenKey), *nats = subject.find_metadata(kGoldenNatsKey);
  if (!ids || !nats)
    return skipped("the file holds no golden output: checkpoints of `thimble train` and their f32 copies do");
  const Tokenizer* tokenizer = subject.tokenizer();
  if (!tokenizer) return failed("there is a golden output, but no tokenizer");
  const GoldenOutput golden = golden_from(*ids, *nats, tokenizer->vocab_size());
  if (golden.ids.empty() || std::cmp_greater(golden.ids.size(), subject.file.config.model.context))
    return failed("a golden output of {} tokens", golden.ids.size());
  // As it was trained, where this machine can: then not even rounding is left between then and now.
  const bool bf16 = subject.file.config.train.dtype == ComputeDType::bf16;
  const auto allowed = static_cast<std::size_t>(tokenizer->vocab_size());
  GoldenOutput now;
  std::optional<GateOutcome> failure;
  // What was recorded is read, not what is the likeliest now: one near tie must not change all that follows.
  const auto next = [&](std::span<const float> logits) -> std::optional<TokenId> {
    const std::size_t at = now.ids.size();
    const TokenId id = golden.ids[at];
    const auto choices = logits.first(allowed);
    if (stats_of(logits).not_finite > 0) {
      failure = failed("the logits of token {} of {} are not finite", at + 1, golden.ids.size());
    } else if (!is_as_likely(choices, id)) {
      failure = failed("token {} of {} is {}, when it was saved the model said {}", at + 1, golden.ids.size(),
                       likeliest_id(choices), id);
    } else {
      now.ids.push_back(id);
      now.nats += nats_of(logits, id);
    }
    return failure || now.ids.size() == golden.ids.size() ? std::nullopt : std::optional(id);
  };
  generate_tokens(bf16 ? subject.usual() : subject.exact(), {bos_of(*tokenizer)}, next);
  if (failure) return *failure;
  const std::string figures = fmt::format("{} tokens of {:.4f} nats, {:.4f} when it was saved",
                                          now.ids.size(), now.mean_nats(), golden.mean_nats());
  const bool same =
      std::abs(now.mean_nats() - golden.mean_nats()) <= kGoldenTolerance * (1 + golden.mean_nats());
  return {same ? GateStatus::passed : GateStatus::failed, figures};
}

GateOutcome bpb_gate(Subject& subject) {
  if (subject.request.data.empty()) return skipped("no data: --data X");
  const Tokenizer* tokenizer = subject.tokenizer();
  if (!tokenizer) return failed("there is no tokenizer to read the data with");
  const TokenSet set = open_eval_set(subject.request.data, *tokenizer, subject.progress, subject.interrupt);
  const Config& config = subject.file.config;
  const ByteTable bytes(*tokenizer, static_cast<TokenId>(config.model.vocab_size));
  const auto most = recorded(subject, kValTokensKey);
  const ScoreOptions options{.val_tokens = most ? static_cast<std::int64_t>(*most) : config.train.val_tokens,
                             .isolate = config.model.isolate};
  const Score score = score_set(subject.usual(), bytes, set, options, subject.progress, subject.interrupt);
  if (score.bytes == 0) return failed("the {} tokens that were scored stand for no bytes", score.tokens);
  // Whoever names data gets its figure, also where there is nothing to hold it to.
  const double bits = score.bits_per_byte();
  const auto record = recorded(subject, kValBpbKey);
  if (!record) return skipped("{:.4f}, but the file records none to compare with", bits);
  const std::string* known = subject.find_metadata(kValSetKey);
  if (!known || *known != set.fingerprint())
    return skipped("{:.4f}, but the recorded {:.4f} is of other data", bits, *record);
  return {bits <= *record * (1 + kBpbTolerance) ? GateStatus::passed : GateStatus::failed,
          fmt::format("{:.4f}, recorded {:.4f}", bits, *record)};
}

GateOutcome throughput_gate(Subject& subject) {
  if (!subject.request.least_tokens_per_second) return skipped("not asked for: --min-tps N");
  const double least = *subject.request.least_tokens_per_second;
  const Speed speed = decode_speed(
      subject.usual(),
      {.tokens = std::min(kSpeedTokens, subject.file.config.model.context), .repeats = kSpeedRepeats},
      subject.progress, subject.interrupt);
  const std::string figures =
      fmt::format("{} {:.1f} tokens/s, asked for {}", speed.name, speed.mean(), least);
  return {speed.mean() >= least ? GateStatus::passed : GateStatus::failed, figures};
}

namespace {

namespace fs = std::filesystem;

// Empty: written. Else why the format does not take this model.
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
    return failed("{}: what is read back computes other logits: {:.2g} apart", format, difference);
  if (const std::string wrong = tokenizer_difference(subject.file, back); !wrong.empty())
    return failed("{}: {}", format, wrong);
  return passed("{}: logits {:.2g} apart{}", format, difference,
                back.tokenizer ? ", same ids of a text" : "");
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
      reasons += fmt::format("; {} refused: {}", name, reason);
    }
  return failed("it cannot be written in any format{}", reasons);
}

// Opening read the whole file and checked its digests, sizes and shapes; what is left is to say what that proves.
GateOutcome integrity_gate(Subject& subject) {
  const ModelFile& file = subject.file;
  const std::string read = fmt::format("{} tensors, {} parameters", file.tensors.size(),
                                       with_commas(ParamTable(file.config.model).count()));
  if (file.format == "thimble") return passed("{}: the digest of the file is right", read);
  if (std::ranges::count(file.tensors, kDigestTensor, &StoredTensor::name) > 0)
    return passed("{}: the digests of the header and of every tensor are right", read);
  return passed("{}: read in full; the file carries no digests", read);
}

// Files of ours carry all of these; of others' formats the reader has refused what it could not find.
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
    if (end_ids(*tokenizer).empty()) missing.emplace_back("an id that begins or ends a text (bos, eos)");
  if (!missing.empty()) return failed("missing: {}", joined(missing, ", "));
  const ModelConfig& c = file.config.model;
  return passed("{}, {} x {}, context {}, vocabulary {}", file.architecture, c.layers, c.dim, c.context,
                c.vocab_size);
}

GateOutcome tokenizer_gate(Subject& subject) {
  const Tokenizer* tokenizer = subject.tokenizer();
  if (!tokenizer) return failed("the model has none: its tokens mean nothing");
  const RoundTrip done = check_round_trip(*tokenizer);
  return passed("{}: {} ids and {} random texts come back{}", name_of(tokenizer->kind()),
                with_commas(done.ids), with_commas(done.texts),
                done.exact ? "" : ", as far as it does not normalise them");
}

GateOutcome tensors_gate(Subject& subject) {
  const ParamTable table(subject.file.config.model);
  for (const Param& param : table.all()) {
    const TensorStats stats = stats_of(values_of(subject.file, param));
    if (stats.not_finite > 0)
      return failed("{}: {} of {} values are not finite", param.name, with_commas(stats.not_finite),
                    with_commas(stats.count));
    // A bias of zeros is a choice, and a gate of zeros lets half of it through; a matrix or a norm of zeros is dead.
    const bool may_be_zero =
        param.name.ends_with(".bias") || param.role == Role::skip_gates || param.role == Role::smear_gate;
    if (stats.all_zero() && !may_be_zero) return failed("{} is all zeros", param.name);
    const bool matrix = param.rows > 1 && param.cols > 1 && !param.control;
    if (matrix && stats.deviation == 0) return failed("{}: every value is {}", param.name, stats.mean);
  }
  return passed("{} tensors of finite numbers, none dead", table.all().size());
}

GateOutcome chat_gate(Subject& subject) {
  if (subject.file.layout.empty()) return skipped("the model was not trained on chats");
  const Tokenizer* tokenizer = subject.tokenizer();
  if (!tokenizer) return failed("the model chats as {}, but has no tokenizer", subject.file.layout);
  const ChatLayout layout = open_chat_layout(subject.file, *tokenizer);
  Conversation turns = {{ChatRole::system, "be kind"}, {ChatRole::user, "hello"}};
  const std::vector<TokenId> prompt = layout.prompt(turns);
  turns.push_back({ChatRole::assistant, "hi"});
  const std::vector<TokenId> whole = layout.conversation(turns);
  if (whole.size() <= prompt.size() || !std::ranges::equal(prompt, std::span(whole).first(prompt.size())))
    return failed("the prompt of a conversation is not how it begins in training");
  if (std::ranges::count(end_ids(*tokenizer), layout.end_id()) == 0)
    return failed("token {} closes a turn, but does not end an answer", layout.end_id());
  // Whoever types the text of a control token must get its letters.
  const std::string typed = tokenizer->token_text(layout.end_id());
  const auto ends = [&](const std::string& content) {
    return std::ranges::count(layout.prompt(Conversation{{ChatRole::user, content}}), layout.end_id());
  };
  if (ends(typed) != ends("x")) return failed("a user who types {} ends the turn", typed);
  return passed("{}: prompts begin conversations, token {} ends answers", layout.text().text(),
                layout.end_id());
}

}  // namespace thimble
