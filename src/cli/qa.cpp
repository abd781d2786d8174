#include "cli/option.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/signals.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "cli/train_inputs.h"
#include "data/data_folder.h"
#include "data/document.h"
#include "data/shard.h"
#include "data/text_files.h"
#include "eval/eval_data.h"
#include "eval/memorization.h"
#include "qa/gates.h"
#include "train/train_data.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostTokens = 1'000'000;  // sampled by --memorized

Json as_json(const QaRequest& request, const QaReport& report) {
  Json gates = Json::array();
  for (const GateResult& gate : report.gates)
    gates.push(Json::object()
                   .set("name", gate.name)
                   .set("status", name_of(gate.status))
                   .set("detail", gate.detail)
                   .set("seconds", gate.seconds));
  return Json::object()
      .set("model", request.model.string())
      .set("passed", report.passed())
      .set("executed", report.executed())
      .set("skipped", report.count(GateStatus::skipped))
      .set("required", report.required)
      .set("gates", gates);
}

std::string as_text(const QaReport& report) {
  Table table;
  for (const GateResult& gate : report.gates)
    table.row({std::string(name_of(gate.status)), std::string(gate.name), gate.detail});
  std::string text = table.text(page_width(0));
  text += fmt::format("{}: {} passed, {} failed, {} skipped\n", report.passed() ? "passed" : "failed",
                      report.count(GateStatus::passed), report.count(GateStatus::failed),
                      report.count(GateStatus::skipped));
  if (report.executed() < report.required)
    text += fmt::format("{} checks ran, {} are required\n", report.executed(), report.required);
  return text;
}

// The data whose training split is searched: those of the run, or those of --data.
struct SearchedData {
  std::optional<TrainData> shards;
  std::optional<TokenSet> val;  // of --val-data, for a text
  MemorizationData data;
};

void search_text(const fs::path& text, const Arguments& arguments, const std::string& layout,
                 const Tokenizer& tokenizer, Console& console, const Interrupt& interrupt,
                 SearchedData& searched) {
  ReadOptions read = read_options_from(arguments);
  read.layout = layout;
  if (!arguments.text("val-data").empty())
    searched.val = open_eval_set(arguments.path("val-data"), tokenizer, console.progress(), &interrupt, read);
  else
    console.log().warning("without --val-data there is no held-out text to compare with");
  searched.data.chats = detect_kind(find_source(text.string()), read.text_field) == DataKind::chat;
  searched.data.layout = layout;
  searched.data.held_out = searched.val ? &*searched.val : nullptr;
  searched.data.read_training = [text, read, &tokenizer, &console, &interrupt](const TokenSink& sink) {
    const auto without = [&](std::span<const TokenId> ids) {
      std::vector<TokenId> plain(ids.begin(), ids.end());
      std::ranges::transform(plain, plain.begin(), without_marks);
      sink(plain);
    };
    encode_data(text, tokenizer, without, console.progress(), &interrupt, read);
  };
}

void open_searched(const Arguments& arguments, const std::string& named, const std::string& layout,
                   const Tokenizer& tokenizer, Console& console, const Interrupt& interrupt,
                   SearchedData& searched) {
  const fs::path run = run_named(arguments.path("MODEL"));
  const bool of_run = named.empty() || (!run.empty() && is_training_data(run, named));
  if (of_run && run.empty())
    throw UsageError(
        fmt::format("--data is missing, and {} is not a run with data of its own", arguments.text("MODEL")),
        Hint{"pass the text, chats or folder of shards that the model was trained on"});
  if (!of_run && !is_data_folder(named))
    return search_text(named, arguments, layout, tokenizer, console, interrupt, searched);
  for (const std::string_view option : {"documents", "text-field", "assistant", "val-data"})
    if (arguments.given(option) && (of_run || option != "val-data"))
      throw UsageError(fmt::format("--{} applies to a text given with --data", option));
  searched.shards =
      of_run ? open_data_of(run, tokenizer) : open_shards(named, arguments.path("val-data"), tokenizer);
  searched.data = memorization_data(*searched.shards, console.progress(), &interrupt);
}

int print_memorization(const Arguments& arguments, const std::string& data, Console& console,
                       const Interrupt& interrupt) {
  for (const std::string_view option : {"min-tps", "skip", "require"})
    if (arguments.given(option))
      throw UsageError(fmt::format("--{} applies to the checks, which --memorized does not run", option));
  const MemorizationOptions options{
      .tokens = arguments.integer("tokens", {.least = 1, .most = kMostTokens}),
      .seed = static_cast<std::uint64_t>(arguments.integer("seed", {.least = 0}))};
  const ModelFile file = model_from(arguments, WeightsAs::stored);
  const auto tokenizer = open_tokenizer(file);
  check(tokenizer != nullptr, "{} has no tokenizer, which --memorized needs", file.path.string());
  SearchedData searched;
  open_searched(arguments, data, layout_for_training(file), *tokenizer, console, interrupt, searched);
  const Context context(device_from(arguments, console.log()), console.log());
  Model model = make_model(file, context, compute_dtype(file.config.train.dtype, context.device()));
  const Memorization result =
      measure_memorization(model, *tokenizer, searched.data, options, console.progress(), &interrupt);
  if (console.json())
    console.print_json(
        Json::object().set("model", arguments.text("MODEL")).set("memorization", result.to_json()));
  else
    console.print_foreign(result.text(page_width(0)));
  return 0;
}

int run_qa(const Arguments& arguments, Console& console) {
  const Interrupt interrupt;
  const SpooledInput data(arguments.text("data"), &interrupt);
  if (arguments.flag("memorized")) return print_memorization(arguments, data.name(), console, interrupt);
  for (const std::string_view option : {"val-data", "documents", "text-field", "assistant", "tokens", "seed"})
    if (arguments.given(option)) throw UsageError(fmt::format("--{} applies only to --memorized", option));
  QaRequest request{.model = arguments.path("MODEL"),
                    .adapters = adapters_from(arguments),
                    .data = data.name(),
                    .skipped = arguments.list("skip"),
                    .require = arguments.integer("require", {.least = 0}),
                    .device = device_from(arguments, console.log())};
  if (arguments.given("min-tps")) request.min_tokens_per_second = arguments.number("min-tps", {.least = 0});
  const QaReport report = run_gates(request, console.progress(), &interrupt);
  if (console.json())
    console.print_json(as_json(request, report));
  else
    console.print_foreign(as_text(report));
  return report.passed() ? 0 : 1;
}

std::vector<std::string_view> gate_names() {
  std::vector<std::string_view> names;
  for (const Gate& gate : all_gates()) names.push_back(gate.name);
  return names;
}

// Options of --memorized alone.
std::vector<Option> memorization_options() {
  std::vector<Option> options = {
      {.name = "memorized",
       .help = "instead of the checks, measure how much of the text that the model generates occurs verbatim "
               "in the training data of the run, or in --data"},
      {.name = "val-data",
       .value = "PATH",
       .help = "held-out text or chats, to compare with",
       .shown_default = "the validation split of the data"},
      documents_option(),
      text_field_option(),
      assistant_option(),
      {.name = "tokens", .value = "N", .initial = "16384", .help = "number of tokens to sample"},
      common::seed()};
  for (Option& option : options) {
    option.group = "memorization";
    option.common = false;
  }
  return options;
}

}  // namespace

Command qa_command() {
  std::vector<Option> options = {
      {.name = "data",
       .value = "X",
       .help =
           "text, chats or shards to score; the check fails if bits per byte are worse than recorded. With "
           "--memorized: the training data"},
      {.name = "min-tps", .value = "F", .help = "minimum decoding speed, in tokens per second"},
      {.name = "skip", .help = "skip this check", .choices = gate_names(), .repeated = true},
      {.name = "require",
       .value = "N",
       .initial = "1",
       .help = "fail if fewer checks ran; skipped checks do not count"}};
  for (const Option& option : memorization_options()) options.push_back(option);
  for (const Option& option : {device_option(), common::threads(), common::json(), common::quiet()})
    options.push_back(option);
  return {.name = "qa",
          .summary = "check that a model is complete, finite, and still produces its recorded output",
          .arguments = {model_argument()},
          .options = std::move(options),
          .examples = {"thimble qa runs/book", "thimble qa runs/book --data runs/book/data --require 9",
                       "thimble qa book.thimble --min-tps 100 --json", "thimble qa runs/chat --memorized",
                       "thimble qa chat.thimble --memorized --data chats.jsonl --val-data other.jsonl"},
          .run = run_qa};
}

}  // namespace thimble
