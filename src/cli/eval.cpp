#include "cli/option.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/signals.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "cli/train_inputs.h"
#include "data/data_folder.h"
#include "data/sources.h"
#include "data/text_files.h"
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
  const TokenSet set = open_eval_set(m.data.path, m.tokenizer, m.console.progress(), &m.interrupt,
                                     read_options_from(m.arguments));
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

void check_together(const Arguments& arguments) {
  const bool exact = arguments.flag("exact"), choice = arguments.flag("multiple-choice");
  const bool llama = arguments.text("protocol") == "llama.cpp";
  if (exact && choice) throw UsageError("--exact and --multiple-choice cannot be combined");
  const auto only = [&](std::string_view name, bool allowed, std::string_view what) {
    if (arguments.given(name) && !allowed)
      throw UsageError(fmt::format("--{} applies only to {}", name, what));
  };
  only("limit", exact || choice, "--exact and --multiple-choice");
  only("show", exact, "--exact");
  for (std::string_view name : {"context", "val-tokens", "protocol"})
    only(name, !exact && !choice, "bits per byte");
  only("stride", !exact && !choice && !llama, "bits per byte with sliding windows");
  only("scores", !exact && !choice && !llama, "bits per byte with sliding windows");
  for (std::string_view name : {"documents", "text-field"})
    only(name, !exact && !choice && !llama && arguments.given("data"), "bits per byte of a text");
  only("assistant", !choice && !llama && arguments.given("data"), "chats");
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
  const ModelFile file = open_model(arguments.path("MODEL"), WeightsAs::stored, console.progress());
  const auto tokenizer = open_tokenizer(file);
  check(tokenizer != nullptr, "{} has no tokenizer, which eval needs", file.path.string());
  const Context context(device_from(arguments, console.log()));
  Model model = make_model(file, context, dtype_from(arguments, context.device(), console.log()));
  const Measured measured{arguments, data, console, file, *tokenizer, model, interrupt, scores};
  if (arguments.flag("exact"))
    exact_answers(measured);
  else if (arguments.flag("multiple-choice"))
    multiple_choice(measured);
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
      .summary = "measure bits per byte, perplexity, exact answers or multiple choice",
      .arguments = {model_argument()},
      .options =
          {{.name = "data",
            .value = "X",
            .help = "text, chats or questions in JSONL, or a folder of shards (its validation split)",
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
           {.name = "limit", .value = "N", .initial = "0", .help = "maximum number of questions; 0: all"},
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
      .examples = {"thimble eval runs/book", "thimble eval runs/book --data other.txt",
                   "thimble eval golf.thimble --data shards --stride 64",
                   "thimble eval runs/chat --data questions.jsonl --exact",
                   "thimble eval model.thimble --data hellaswag_val.jsonl --multiple-choice"},
      .run = run_eval};
}

}  // namespace thimble
