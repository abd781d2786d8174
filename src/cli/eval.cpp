#include "cli/option.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/signals.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "cli/train_inputs.h"
#include "data/data_folder.h"
#include "data/sources.h"
#include "data/text_files.h"
#include "eval/check.h"
#include "eval/eval_data.h"
#include "eval/exact.h"
#include "eval/multiple_choice.h"
#include "eval/score.h"
#include "formats/model_file.h"
#include "train/train_data.h"

namespace thimble {

namespace {

constexpr std::size_t kWrongShown = 5;
constexpr std::size_t kShownBytes = 400;  // of a turn

namespace fs = std::filesystem;

// What is measured on.
struct EvalData {
  SpooledInput named;  // --data
  fs::path path;       // --data, or the held-out data of the run
  bool is_training_data = false;

  EvalData(const Arguments& arguments, const Interrupt& interrupt)
      : named(arguments.text("data"), &interrupt), path(named.name()) {
    const fs::path run = run_named(arguments.path("MODEL"));
    if (!arguments.given("data")) {
      if (arguments.flag("exact") || arguments.flag("multiple-choice"))
        throw UsageError("--data is missing", Hint{"pass a file of questions"});
      if (arguments.given("check")) throw UsageError("--data is missing", Hint{"pass a file of prompts"});
      if (run.empty())
        throw UsageError(fmt::format("--data is missing, and {} is not a run with data of its own",
                                     arguments.text("MODEL")),
                         Hint{"pass a text, chats or a folder of shards"});
      path = held_out_data(run);
      check(is_data_folder(path), Hint{"pass data with --data"}, "the held-out data of {} is missing: {}",
            run.string(), path.string());
    } else if (!run.empty() && fs::exists(path)) {
      is_training_data = thimble::is_training_data(run, path);
    }
  }
};

// Arguments of every kind of evaluation.
struct Measured {
  const Arguments& arguments;
  const EvalData& data;
  Console& console;
  const ModelFile& file;
  const Tokenizer& tokenizer;
  Model& model;
  const Interrupt& interrupt;
  const std::optional<Output>& scores;  // --scores
};

// One line for each document or block, for paired comparisons.
void write_scores(const ScoreParts& parts, const Output& output) {
  const std::string_view unit = parts.are_documents() ? "document" : "block";
  const std::vector<Score> scores = parts.scores();
  std::string lines;
  for (std::size_t i = 0; i < scores.size(); ++i)
    if (scores[i].tokens > 0)
      lines += Json::object()
                   .set(std::string(unit), i)
                   .set("nats", scores[i].nats)
                   .set("tokens", scores[i].tokens)
                   .set("bytes", scores[i].bytes)
                   .dump() +
               "\n";
  PosixFileOps ops;
  make_folders(ops, folder_of(output.path));
  write_file(ops, output.path, lines, output.existing);
}

Json as_json(const Score& score) {
  return Json::object()
      .set("val_loss", score.loss())
      .set("val_bpb", score.bytes > 0 ? Json(score.bits_per_byte()) : Json())
      .set("nats_per_character", score.characters > 0 ? Json(score.nats_per_character()) : Json())
      .set("tokens", score.tokens)
      .set("bytes", score.bytes)
      .set("characters", score.characters);
}

std::string as_text(const Score& score) {
  std::string bits = score.bytes > 0 ? fmt::format("{:.4f} bits per byte, ", score.bits_per_byte()) : "";
  if (score.characters > 0) bits += fmt::format("{:.4f} nats per character, ", score.nats_per_character());
  return fmt::format("{}{:.4f} nats per token ({} tokens, {} bytes", bits, score.loss(),
                     with_commas(score.tokens),
                     score.bytes > 0 ? with_commas(static_cast<long long>(score.bytes)) : "no");
}

void bits_per_byte(const Measured& m) {
  const std::string protocol = m.arguments.text("protocol");
  const std::int64_t longest = m.model.config().context;
  ScoreOptions options{.context = m.arguments.integer("context", {.least = 0, .most = longest}),
                       .val_tokens = m.arguments.integer("val-tokens", {.least = 0}),
                       .isolate = protocol == "auto" ? m.model.config().isolate : protocol == "documents"};
  if (options.context == 0) options.context = longest;
  options.stride = m.arguments.integer("stride", {.least = 0, .most = options.context});
  if (options.stride == 0) options.stride = options.context;
  const ByteTable bytes(m.tokenizer, static_cast<TokenId>(m.model.config().vocab_size));
  ReadOptions read = read_options_from(m.arguments);
  read.layout = layout_for_training(m.file);
  const TokenSet set = open_eval_set(m.data.path, m.tokenizer, m.console.progress(), &m.interrupt, read);
  std::optional<ScoreParts> parts;
  if (m.scores) {
    parts.emplace(set);
    options.on_target = [&](std::uint64_t input, double nats, std::uint64_t scored_bytes) {
      parts->add(input, nats, scored_bytes);
    };
  }
  const double started = seconds_now();
  const Score score = score_set(m.model, bytes, set, options, m.console.progress(), &m.interrupt);
  if (parts) write_scores(*parts, *m.scores);
  if (m.console.json())
    return m.console.print_json(as_json(score)
                                    .set("context", options.context)
                                    .set("stride", options.stride)
                                    .set("protocol", options.isolate ? "documents" : "golf")
                                    .set("training_data", m.data.is_training_data)
                                    .set("dtype", dtype_name(m.model.dtype()))
                                    .set("seconds", seconds_now() - started));
  m.console.print(
      fmt::format("{}, context {}{}{})\n", as_text(score), options.context,
                  options.stride < options.context ? fmt::format(", stride {}", options.stride) : "",
                  options.isolate ? "" : ", one stream as in parameter-golf"));
}

void llama_perplexity(const Measured& m) {
  const PerplexityOptions options{
      .context = m.arguments.integer("context", {.least = 0, .most = m.model.config().context}),
      .val_tokens = m.arguments.integer("val-tokens", {.least = 0})};
  std::vector<std::int32_t> tokens =
      read_stream(m.data.path, m.tokenizer, m.console.progress(), &m.interrupt);
  const double started = seconds_now();
  const Perplexity result =
      perplexity(m.model, m.tokenizer, std::move(tokens), options, m.console.progress(), &m.interrupt);
  if (m.console.json())
    return m.console.print_json(as_json(result.score)
                                    .set("context", result.context)
                                    .set("stride", result.context)
                                    .set("protocol", "llama.cpp")
                                    .set("perplexity", result.value())
                                    .set("perplexity_stderr", result.standard_error())
                                    .set("chunks", result.chunks)
                                    .set("dtype", dtype_name(m.model.dtype()))
                                    .set("seconds", seconds_now() - started));
  m.console.print(fmt::format("PPL = {:.4f} +/- {:.5f}\n{}, second halves of {} chunks of {})\n",
                              result.value(), result.standard_error(), as_text(result.score),
                              with_commas(result.chunks), result.context));
}

// The conversation, with the model's answer at the end.
std::string as_text(const Answered& answered) {
  const auto shown = [](const std::string& content) { return shortened(content, kShownBytes); };
  std::string text;
  for (const Turn& turn : std::span(answered.conversation).first(answered.conversation.size() - 1))
    text += fmt::format("  {}{}\n", turn.role == ChatRole::assistant ? "> " : "", shown(turn.content));
  text += fmt::format("  > {}\n", shown(answered.found));
  if (!answered.right) text += fmt::format("    expected: {}\n", shown(answered.conversation.back().content));
  return text + "\n";
}

void print(const ExactScore& score, Console& console) {
  if (console.json())
    return console.print_json(Json::object()
                                  .set("exact_match", score.rate())
                                  .set("right", score.right)
                                  .set("total", score.total)
                                  .set("too_long", score.too_long));
  for (const Answered& answered : score.first) console.print_foreign(as_text(answered));
  if (!score.wrong.empty()) console.print("some wrong answers:\n\n");
  for (const Answered& answered : score.wrong) console.print_foreign(as_text(answered));
  if (score.too_long > 0)
    console.print(fmt::format("{} questions are longer than the context\n", with_commas(score.too_long)));
  console.print(fmt::format("{:.1f} % exact: {} of {} answers\n", 100 * score.rate(),
                            with_commas(score.right), with_commas(score.total)));
}

std::uint64_t limit_of(const Measured& m) {
  return static_cast<std::uint64_t>(m.arguments.integer("limit", {.least = 0}));
}

void exact_answers(const Measured& m) {
  const auto conversations = read_conversations(m.data.path, limit_of(m), read_options_from(m.arguments));
  const std::int64_t show = m.arguments.integer("show", {.least = 0, .most = 1000});
  const ExactOptions options{.keep_first = static_cast<std::size_t>(show),
                             .keep_wrong = show > 0 ? 0 : kWrongShown};
  print(score_answers(m.model, open_chat_layout(m.file, m.tokenizer), conversations, options,
                      m.console.progress(), &m.interrupt),
        m.console);
}

void multiple_choice(const Measured& m) {
  const auto questions = read_choice_questions(m.data.path, limit_of(m));
  const ChoiceScore score =
      score_choices(m.model, m.tokenizer, questions, m.console.progress(), &m.interrupt);
  const double acc = score.accuracy(), acc_norm = score.normalized_accuracy();
  const double acc_error = ChoiceScore::standard_error(acc, score.total),
               acc_norm_error = ChoiceScore::standard_error(acc_norm, score.total);
  if (m.console.json()) {
    Json groups = Json::object();
    for (const auto& [name, group] : score.groups)
      groups.set(name, Json::object().set("acc", group.accuracy()).set("total", group.total));
    Json result = Json::object()
                      .set("acc", acc)
                      .set("acc_stderr", acc_error)
                      .set("acc_norm", acc_norm)
                      .set("acc_norm_stderr", acc_norm_error)
                      .set("total", score.total)
                      .set("chance", score.chance)
                      .set("cut", score.cut)
                      .set("dtype", dtype_name(m.model.dtype()));
    if (!score.groups.empty()) result.set("groups", groups);
    return m.console.print_json(result);
  }
  if (!score.groups.empty()) {
    Table table({"group", "acc", "+/-", "questions"});
    for (const auto& [name, group] : score.groups)
      table.row({name, fmt::format("{:.1f} %", 100 * group.accuracy()),
                 fmt::format("{:.1f}", 100 * ChoiceScore::standard_error(group.accuracy(), group.total)),
                 with_commas(group.total)});
    m.console.print(table.text() + "\n");
  }
  if (score.cut > 0)
    m.console.print(
        fmt::format("{} prompts were cut at the start to fit the context\n", with_commas(score.cut)));
  m.console.print(fmt::format(
      "acc {:.2f} % +/- {:.2f}, acc_norm {:.2f} % +/- {:.2f} of {} questions (chance {:.2f} %)\n", 100 * acc,
      100 * acc_error, 100 * acc_norm, 100 * acc_norm_error, with_commas(score.total), 100 * score.chance));
}

CheckOptions check_options_from(const Arguments& arguments) {
  CheckOptions options{
      .sampling = {.temperature =
                       static_cast<float>(arguments.number("temperature", {.least = 0, .most = 100})),
                   .seed = static_cast<std::uint64_t>(arguments.integer("seed", {.least = 0}))},
      .samples = static_cast<int>(arguments.integer("samples", {.least = 1, .most = 1000})),
      .max_tokens = arguments.integer("max-tokens", {.least = 1}),
      .stops = arguments.list("stop")};
  if (trim(arguments.text("check")).empty())
    throw UsageError("--check expects a command, found an empty text");
  if (options.samples > 1 && options.sampling.temperature == 0)
    throw UsageError("--samples needs a temperature above 0; at 0 all completions are the same");
  return options;
}

// --pass-at 1,10
std::vector<std::int64_t> pass_at_from(const Arguments& arguments, std::int64_t samples) {
  std::vector<std::int64_t> values;
  std::string_view rest = arguments.text("pass-at");
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    more = comma != rest.npos;
    const auto k = parse_number<std::int64_t>(rest.substr(0, comma));
    if (!k || *k < 1 || *k > samples)
      throw UsageError(fmt::format("--pass-at expects numbers from 1 to --samples ({}), found '{}'", samples,
                                   rest.substr(0, comma)));
    values.push_back(*k);
    rest.remove_prefix(more ? comma + 1 : rest.size());
  }
  return values;
}

CheckLimits check_limits_from(const Arguments& arguments) {
  return {.seconds = arguments.number("check-seconds", {.least = 0.01, .most = 86400}),
          .memory_bytes = static_cast<std::uint64_t>(arguments.integer("check-memory", {.least = 1 << 20})),
          .jobs = max_threads()};
}

// --check: what is checked and how, known before the model is read.
struct CheckPlan {
  CheckOptions options;
  std::vector<std::int64_t> pass_at;  // values of k
  CheckLimits limits;
  std::vector<CheckPrompt> prompts;
  Checker checker;

  CheckPlan(const Arguments& arguments, const EvalData& data, const Interrupt& interrupt)
      : options(check_options_from(arguments)),
        pass_at(pass_at_from(arguments, options.samples)),
        limits(check_limits_from(arguments)),
        prompts(read_check_prompts(data.path,
                                   static_cast<std::uint64_t>(arguments.integer("limit", {.least = 0})))),
        checker(arguments.text("check"), limits, &interrupt) {}
};

constexpr std::array kCheckResults = {CheckResult::passed, CheckResult::failed, CheckResult::timed_out,
                                      CheckResult::out_of_memory};

Json as_json(const CheckScore& score, const CheckPlan& plan) {
  Json pass = Json::object(), failed = Json::array();
  for (const std::int64_t k : plan.pass_at) pass.set(std::to_string(k), score.pass_at(k));
  for (const CheckedCompletion& completion : score.failed)
    failed.push(Json::object()
                    .set("prompt", plan.prompts[completion.prompt].where)
                    .set("completion", completion.text)
                    .set("result", name_of(completion.outcome.result))
                    .set("exit_code", completion.outcome.exit_code)
                    .set("stderr", completion.outcome.error));
  Json json =
      Json::object().set("pass_at", pass).set("prompts", plan.prompts.size()).set("samples", score.samples);
  for (const CheckResult result : kCheckResults) {
    std::string name(name_of(result));
    std::ranges::replace(name, ' ', '_');
    json.set(name, score.count(result));
  }
  return json.set("too_long", score.too_long)
      .set("seed", plan.options.sampling.seed)
      .set("network", !plan.checker.cuts_network())
      .set("examples", failed);
}

void check_completions(const Measured& m, const CheckPlan& plan) {
  if (!plan.checker.cuts_network())
    m.console.log().warning(
        "this system does not let programs give up the network: the command of --check can use it");
  const CheckScore score = score_checks(m.model, m.tokenizer, plan.prompts, plan.checker, plan.options,
                                        m.console.progress(), &m.interrupt);
  if (m.console.json())
    return m.console.print_json(as_json(score, plan).set("dtype", dtype_name(m.model.dtype())));
  if (!score.failed.empty()) m.console.print("some completions that did not pass:\n\n");
  for (const CheckedCompletion& completion : score.failed) {
    const auto& [result, exit_code, error] = completion.outcome;
    const std::string_view message = trim(error);  // its last line says what is wrong
    m.console.print_foreign(
        fmt::format("  {}, {}{}\n  > {}\n    {}\n\n", plan.prompts[completion.prompt].where, name_of(result),
                    result == CheckResult::timed_out ? "" : fmt::format(", exit code {}", exit_code),
                    shortened(completion.text, kShownBytes), message.substr(message.rfind('\n') + 1)));
  }
  Table table({"completions", "number"});
  for (const CheckResult result : kCheckResults)
    table.row({std::string(name_of(result)), with_commas(score.count(result))});
  m.console.print(table.text() + "\n");
  if (score.too_long > 0)
    m.console.print(fmt::format("{} prompts are longer than the context\n", with_commas(score.too_long)));
  for (const std::int64_t k : plan.pass_at)
    m.console.print(fmt::format("pass@{} {:.2f} % (prompts: {}, completions of each: {})\n", k,
                                100 * score.pass_at(k), with_commas(std::ssize(score.passed)),
                                score.samples));
}

void check_together(const Arguments& arguments) {
  const bool exact = arguments.flag("exact"), choice = arguments.flag("multiple-choice");
  const bool checks = arguments.given("check"), scores = !exact && !choice && !checks;
  const bool llama = arguments.text("protocol") == "llama.cpp";
  if (exact + choice + checks > 1)
    throw UsageError("--exact, --multiple-choice and --check cannot be combined");
  const auto only = [&](std::string_view name, bool allowed, std::string_view what) {
    if (arguments.given(name) && !allowed)
      throw UsageError(fmt::format("--{} applies only to {}", name, what));
  };
  only("limit", !scores, "--exact, --multiple-choice and --check");
  only("show", exact, "--exact");
  for (std::string_view name : {"context", "val-tokens", "protocol"}) only(name, scores, "bits per byte");
  only("stride", scores && !llama, "bits per byte with sliding windows");
  only("scores", scores && !llama, "bits per byte with sliding windows");
  for (std::string_view name : {"documents", "text-field"})
    only(name, scores && !llama && arguments.given("data"), "bits per byte of a text");
  for (std::string_view name :
       {"samples", "pass-at", "max-tokens", "stop", "temperature", "seed", "check-seconds", "check-memory"})
    only(name, checks, "--check");
  only("assistant", !choice && !checks && !llama && arguments.given("data"), "chats");
}

int run_eval(const Arguments& arguments, Console& console) {
  check_together(arguments);
  std::optional<Output> scores;
  if (arguments.given("scores")) {
    PosixFileOps ops;
    scores = output_from(arguments, ops, Writes::file, "scores");
  } else if (arguments.flag("force")) {
    throw UsageError("--force applies only to --scores");
  }
  const Interrupt interrupt;
  const EvalData data(arguments, interrupt);
  for (const std::string_view name : {"documents", "text-field", "assistant"})
    if (arguments.given(name) && is_data_folder(data.path))
      throw UsageError(fmt::format("--{} applies to text and chats, but {} is a folder of shards", name,
                                   data.path.string()));
  if (!is_data_folder(data.path))
    if (const DataSource source = find_source(data.path.string()); !source.left_out.empty())
      console.log().info("reading\n{}", inputs_text(std::span(&source, 1)));
  if (data.is_training_data)
    console.log().warning("the model was trained on this data; leave out --data to score the held-out part");
  std::optional<CheckPlan> checks;
  if (arguments.given("check")) checks.emplace(arguments, data, interrupt);
  const ModelFile file = model_from(arguments, WeightsAs::stored, console.progress());
  const auto tokenizer = open_tokenizer(file);
  check(tokenizer != nullptr, "{} has no tokenizer, which eval needs", file.path.string());
  const Context context(device_from(arguments, console.log()));
  Model model = make_model(file, context, dtype_from(arguments, context.device(), console.log()));
  const Measured measured{arguments, data, console, file, *tokenizer, model, interrupt, scores};
  if (arguments.flag("exact"))
    exact_answers(measured);
  else if (arguments.flag("multiple-choice"))
    multiple_choice(measured);
  else if (checks)
    check_completions(measured, *checks);
  else if (arguments.text("protocol") == "llama.cpp")
    llama_perplexity(measured);
  else
    bits_per_byte(measured);
  return 0;
}

}  // namespace

Command eval_command() {
  return {
      .name = "eval",
      .summary = "measure bits per byte, exact answers, multiple choice or checked completions",
      .arguments = {model_argument()},
      .options =
          {{.name = "data",
            .value = "X",
            .help =
                "text; chats, questions or prompts in JSONL; or a folder of shards (its validation split)",
            .shown_default = "the held-out data of the run"},
           documents_option(),
           text_field_option(),
           assistant_option(),
           {.name = "context",
            .value = "N",
            .initial = "0",
            .help = "window size in tokens; 0: the context of the model"},
           {.name = "stride",
            .value = "N",
            .initial = "0",
            .help = "tokens between window starts; each token is scored once; 0: the context"},
           {.name = "val-tokens",
            .value = "N",
            .initial = "0",
            .help = "maximum number of tokens to score; 0: all"},
           {.name = "protocol",
            .initial = "auto",
            .help = "documents: each on its own; golf: one stream, as parameter-golf; llama.cpp: chunks, as "
                    "llama-perplexity; auto: as in training",
            .choices = {"auto", "documents", "golf", "llama.cpp"}},
           {.name = "exact", .help = "count final answers that match exactly"},
           {.name = "multiple-choice",
            .help = "score multiple-choice questions such as HellaSwag (cleaned as in lm-eval), ARC, PIQA "
                    "or BLiMP, zero-shot"},
           {.name = "check",
            .value = "CMD",
            .help = "complete prompts, pass each completion to `/bin/sh -c CMD` on standard input, and count "
                    "those for which it exits with 0"},
           {.name = "samples",
            .letter = 'n',
            .value = "N",
            .initial = "1",
            .help = "with --check: number of completions of each prompt"},
           {.name = "pass-at",
            .value = "K,..",
            .initial = "1",
            .help = "with --check: print pass@K, the probability that one of K completions passes"},
           {.name = "max-tokens",
            .value = "N",
            .initial = "256",
            .help = "with --check: maximum length of a completion, in tokens"},
           {.name = "stop",
            .value = "TEXT",
            .help = "with --check: end a completion before this text",
            .repeated = true},
           {.name = "temperature",
            .value = "F",
            .initial = "0.8",
            .help = "with --check: sampling temperature; 0: always the most probable token"},
           {.name = "seed",
            .value = "N",
            .initial = "1337",
            .help = "with --check: seed of the random numbers"},
           {.name = "check-seconds",
            .value = "F",
            .initial = "3",
            .help = "with --check: time limit of a check"},
           {.name = "check-memory",
            .value = "BYTES",
            .initial = "4G",
            .help = "with --check: limit of the address space of each process of a check"},
           {.name = "limit",
            .value = "N",
            .initial = "0",
            .help = "maximum number of questions or prompts; 0: all"},
           {.name = "show",
            .value = "N",
            .initial = "0",
            .help = "print the first N answers; 0: print some wrong answers"},
           {.name = "scores",
            .value = "FILE",
            .help = "also write the score of each document to FILE, in JSONL; of blocks of text if there are "
                    "fewer than 20 documents"},
           common::force(),
           device_option(),
           {.name = "dtype",
            .initial = "auto",
            .help = "number format of the computation; auto: as in training",
            .choices = {"auto", "f32", "bf16", "f16"}},
           common::threads(),
           common::json(),
           common::quiet()},
      .examples =
          {"thimble eval runs/book", "thimble eval runs/book --data other.txt",
           "thimble eval golf.thimble --data shards --stride 64",
           "thimble eval runs/chat --data questions.jsonl --exact",
           "thimble eval model.thimble --data hellaswag_val.jsonl --multiple-choice",
           "thimble eval model.thimble --data HumanEval.jsonl --check 'python3 -' -n 20 --pass-at 1,10"},
      .run = run_eval};
}

}  // namespace thimble
