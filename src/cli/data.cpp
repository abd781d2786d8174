#include <fmt/format.h>

#include <deque>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/signals.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/console.h"
#include "cli/option.h"
#include "cli/parse.h"
#include "cli/train_inputs.h"
#include "data/build.h"
#include "data/data_folder.h"
#include "data/describe.h"
#include "data/sample/corpus.h"
#include "formats/model_file.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

namespace {

constexpr std::string_view kDefaultFraction = "0.1";

std::string count(std::uint64_t value) {
  return with_commas(static_cast<long long>(value));
}

double ratio(std::uint64_t a, std::uint64_t b) {
  return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b);
}

// The inputs; those that are pipes are copied to temporary files, which `pipes` owns.
std::vector<std::string> inputs_from(const Arguments& arguments, std::string_view name,
                                     std::deque<SpooledInput>& pipes, const Interrupt& interrupt) {
  std::vector<std::string> inputs;
  for (const std::string& input : arguments.list(name))
    inputs.push_back(pipes.emplace_back(input, &interrupt).name());
  return inputs;
}

void choose_validation(const Arguments& arguments, BuildRequest& request) {
  const int given =
      arguments.given("val-docs") + arguments.given("val-fraction") + !request.val_inputs.empty();
  if (given > 1) throw UsageError("expected one of --val-docs, --val-fraction and --val-data, found several");
  if (arguments.given("val-docs"))
    request.val_documents = static_cast<std::uint64_t>(arguments.integer("val-docs", {.least = 0}));
  else if (request.val_inputs.empty())
    request.val_fraction = arguments.number("val-fraction", {.least = 0, .most = 0.999});
}

// The layout of --layout: a name, or that of a template or model.
std::string layout_from(const std::string& text) {
  for (const std::string_view name : {"roles", "chatml", "llama3"})
    if (text == name) return text;
  const std::filesystem::path path = text;
  constexpr std::uint64_t kMaxTemplateBytes = 1 << 20;
  if (path.extension() == ".jinja") return layout_of_template(read_file(path, kMaxTemplateBytes));
  const ModelFile file = open_model(path, WeightsAs::none);
  check(!file.layout.empty(), Hint{"pass --layout roles, chatml, llama3 or a file TEMPLATE.jinja"},
        "{} has no chat template", text);
  return file.layout;
}

BuildRequest request_from(const Arguments& arguments, std::deque<SpooledInput>& pipes,
                          const Interrupt& interrupt) {
  BuildRequest request;
  request.inputs = inputs_from(arguments, "INPUTS", pipes, interrupt);
  request.val_inputs = inputs_from(arguments, "val-data", pipes, interrupt);
  choose_validation(arguments, request);
  request.folder = arguments.path("output");
  request.name = arguments.text("name");
  request.read = {.kind = arguments.flag("chat") ? DataKind::chat : DataKind::text,
                  .split = documents_from(arguments),
                  .text_field = arguments.text("text-field"),
                  .strip_markdown = arguments.flag("strip-markdown"),
                  .assistant = arguments.text("assistant")};
  if (arguments.given("assistant") && !arguments.flag("chat")) throw UsageError("--assistant needs --chat");
  const bool limited = arguments.given("context") || arguments.flag("skip-long");
  if (limited && !arguments.flag("chat")) throw UsageError("--context and --skip-long need --chat");
  if (arguments.flag("skip-long") && !arguments.given("context"))
    throw UsageError("--skip-long needs --context N");
  if (arguments.given("context"))
    request.limits.context = static_cast<std::uint64_t>(arguments.integer("context", {.least = 4}));
  request.limits.skip_long = arguments.flag("skip-long");
  request.dedup = arguments.flag("dedup");
  request.skip_bad = arguments.flag("skip-bad");
  request.shard_tokens = static_cast<std::uint64_t>(
      arguments.integer("shard-tokens", {.least = 1, .most = static_cast<std::int64_t>(kMaxShardTokens)}));
  if (arguments.flag("force")) request.if_built = IfBuilt::replace;
  request.tokenizer = load_tokenizer(arguments.path("tokenizer"));
  if (arguments.given("layout") && !arguments.flag("chat")) throw UsageError("--layout needs --chat");
  if (arguments.given("layout")) request.read.layout = layout_from(arguments.text("layout"));
  return request;
}

Json as_json(const BuildResult& built, const std::filesystem::path& folder) {
  const Manifest& m = built.manifest;
  Json dropped = Json::object();
  for (const auto& [reason, documents] : m.dropped) dropped.set(reason, documents);
  Json left_out = Json::array();
  for (const LeftOut& file : built.left_out)
    left_out.push(Json::object().set("file", file.file.string()).set("reason", file.reason));
  return Json::object()
      .set("folder", folder.string())
      .set("kind", name_of(m.kind))
      .set("train_tokens", m.train.tokens)
      .set("val_tokens", m.val.tokens)
      .set("documents", m.train.documents + m.val.documents)
      .set("train_documents", m.train.documents)
      .set("val_documents", m.val.documents)
      .set("bytes", m.train.bytes + m.val.bytes)
      .set("train_bytes", m.train.bytes)
      .set("val_bytes", m.val.bytes)
      .set("bytes_per_token", ratio(m.train.bytes + m.val.bytes, m.train.tokens + m.val.tokens))
      .set("shards", m.train.shards.size() + m.val.shards.size())
      .set("dropped", std::move(dropped))
      .set("files_left_out", std::move(left_out))
      .set("resumed", built.resumed)
      .set("seconds", built.seconds);
}

std::string as_text(const BuildResult& built, const std::filesystem::path& folder) {
  const Manifest& m = built.manifest;
  const bool chat = m.kind == DataKind::chat;
  Table table({"", chat ? "conversations" : "documents", "tokens", "bytes", "bytes per token", "shards"});
  for (const auto& [name, split] : {std::pair{"train", &m.train}, std::pair{"val", &m.val}})
    table.row({name, count(split->documents), count(split->tokens), count(split->bytes),
               fmt::format("{:.3f}", ratio(split->bytes, split->tokens)), count(split->shards.size())});
  std::string text = table.text(page_width(0));
  text += validation_text(m) + "\n";
  if (const std::string dropped = dropped_text(m, page_width(0)); !dropped.empty())
    text += "\nleft out or cut\n" + dropped;
  const double bytes = static_cast<double>(m.train.bytes + m.val.bytes);
  text += fmt::format("\n{}: {} of text", folder.string(), in_bytes(bytes));
  if (built.seconds > 0)
    text += fmt::format(" in {}, {}/s", in_seconds(built.seconds), in_bytes(bytes / built.seconds));
  return text + "\n";
}

BuildResult build_with_resume_hint(const BuildRequest& request, const Console& console,
                                   const Interrupt& interrupt) {
  try {
    return build_dataset(request, console.log(), console.progress(), &interrupt);
  } catch (const Interrupted&) {
    console.log().info("run the same command again to continue");
    throw;
  }
}

int run_data_build(const Arguments& arguments, Console& console) {
  const Interrupt interrupt;
  std::deque<SpooledInput> pipes;
  const BuildRequest request = request_from(arguments, pipes, interrupt);
  const BuildResult built = build_with_resume_hint(request, console, interrupt);
  if (built.manifest.val.tokens == 0)
    console.log().warning("no validation data: all documents are used for training");
  if (console.json())
    console.print_json(as_json(built, request.folder));
  else
    console.print(as_text(built, request.folder));
  return 0;
}

}  // namespace

Command data_build_command() {
  return {
      .name = "data build",
      .summary = "build tokenized shards from texts or chats",
      .arguments = {{.name = "INPUTS",
                     .help = "files (text, .jsonl, .json, .csv, .tsv, .parquet, .md, .html, exports of "
                             "messengers), folders "
                             "and glob patterns; FILE:2.5 gives a file a weight",
                     .count = Count::many}},
      .options =
          {{.name = "output", .letter = 'o', .value = "DIR", .help = "folder to write", .required = true},
           {.name = "tokenizer",
            .letter = 't',
            .value = "T",
            .help = "tokenizer.json, tokenizer.model, a folder that contains one, bytes or bytes:chat",
            .required = true},
           {.name = "name",
            .value = "NAME",
            .initial = "data",
            .help = "prefix of shard files: NAME_train_000000.bin"},
           documents_option(),
           text_field_option(),
           {.name = "chat", .help = "read the inputs as conversations"},
           {.name = "layout",
            .value = "L",
            .initial = "roles",
            .help = "with --chat: roles (thimble's own), chatml, llama3, a model or a file ending in .jinja "
                    "whose chat template lays the conversations out"},
           assistant_option(),
           {.name = "val-fraction",
            .value = "F",
            .initial = std::string(kDefaultFraction),
            .help = "fraction of the text for validation, in bytes: documents selected by a hash of their "
                    "content, and the ends of long ones"},
           {.name = "val-docs", .value = "N", .help = "use the last N documents for validation"},
           {.name = "val-data",
            .value = "INPUT",
            .help = "use these inputs for validation",
            .repeated = true},
           {.name = "dedup", .help = "drop duplicate documents"},
           {.name = "strip-markdown", .help = "remove Markdown markup"},
           {.name = "skip-bad", .help = "skip and count records that cannot be read"},
           {.name = "context", .value = "N", .help = "with --chat: cut conversations to N tokens"},
           {.name = "skip-long", .help = "with --context: drop longer conversations instead of cutting them"},
           {.name = "shard-tokens", .value = "N", .initial = "10000000", .help = "tokens per shard"},
           common::threads(),
           common::force(),
           common::json(),
           common::quiet()},
      .examples = {"thimble data build books/ --tokenizer tokenizer.json --dedup -o data/books",
                   "thimble data build chats.jsonl --chat --tokenizer bytes:chat -o data/chats",
                   "thimble data build wiki.txt:2 web.jsonl:0.5 --tokenizer tokenizer.json -o data/mix"},
      .run = run_data_build};
}

namespace {

Json number_json(const std::optional<std::uint64_t>& value) {
  return value ? Json(*value) : Json();
}

std::string number_text(const std::optional<std::uint64_t>& value) {
  return value ? with_commas(static_cast<long long>(*value)) : "?";
}

std::optional<double> bytes_per_token(const SplitDescription& split) {
  if (!split.bytes || !split.tokens || *split.tokens == 0) return std::nullopt;
  return static_cast<double>(*split.bytes) / static_cast<double>(*split.tokens);
}

Json split_json(const SplitDescription& split) {
  const auto rate = bytes_per_token(split);
  return Json::object()
      .set("name", split.name)
      .set("documents", number_json(split.documents))
      .set("tokens", number_json(split.tokens))
      .set("bytes", number_json(split.bytes))
      .set("bytes_per_token", rate ? Json(*rate) : Json())
      .set("shards", split.shards);
}

Json as_json(const DataDescription& data) {
  Json splits = Json::array();
  for (const SplitDescription& split : data.splits) splits.push(split_json(split));
  Json report = Json::object()
                    .set("form", data.form)
                    .set("kind", data.manifest ? Json(name_of(data.manifest->kind)) : Json())
                    .set("splits", std::move(splits))
                    .set("bad", data.bad)
                    .set("empty", data.empty)
                    .set("without_answer", data.without_answer)
                    .set("turns_after_last_answer", data.with_turns_cut)
                    .set("first_document", data.first_document);
  if (data.manifest) report.set("manifest", data.manifest->to_json());
  return report;
}

void add_facts(const DataDescription& data, Table& facts) {
  facts.row({"form", data.form});
  if (data.manifest) {
    const ManifestTokenizer& tokenizer = data.manifest->tokenizer;
    facts.row({"kind", std::string(name_of(data.manifest->kind))});
    facts.row({"tokenizer", fmt::format("{}, {} tokens, {}", tokenizer.kind,
                                        with_commas(tokenizer.vocab_size), tokenizer.digest)});
    for (const ManifestSource& source : data.manifest->sources)
      facts.row({"source", fmt::format("{}, {}", source.path, in_bytes(static_cast<double>(source.bytes)))});
    for (const auto& [reason, documents] : data.manifest->dropped)
      if (documents > 0) facts.row({reason, with_commas(static_cast<long long>(documents))});
  }
  const std::pair<std::string_view, std::uint64_t> counts[] = {
      {"bad", data.bad},
      {"empty", data.empty},
      {"without_answer", data.without_answer},
      {"turns_after_last_answer", data.with_turns_cut}};
  for (const auto& [name, value] : counts)
    if (value > 0) facts.row({std::string(name), with_commas(static_cast<long long>(value))});
  if (!data.first_problem.empty()) facts.row({"first problem", data.first_problem});
  if (!data.assistant.empty()) facts.row({"assistant", data.assistant});
}

std::string as_text(const DataDescription& data) {
  Table facts, splits({"", "documents", "tokens", "bytes", "bytes per token", "shards"});
  add_facts(data, facts);
  for (const SplitDescription& split : data.splits) {
    const auto rate = bytes_per_token(split);
    splits.row({split.name.empty() ? "all" : split.name, number_text(split.documents),
                number_text(split.tokens), number_text(split.bytes),
                rate ? fmt::format("{:.3f}", *rate) : "?",
                with_commas(static_cast<long long>(split.shards))});
  }
  std::string text = facts.text(page_width(0)) + "\n" + splits.text(page_width(0));
  if (!data.inputs.empty()) text += "\n" + data.inputs;
  if (!data.first_document.empty()) text += "\nfirst document\n" + data.first_document + "\n";
  return text;
}

// Checks the digests of a data set. Throws if they differ from the manifest.
void verify(const std::string& input, const Console& console, const Interrupt& interrupt) {
  check(is_data_folder(input), Hint{"pass a folder made by `thimble data build`"},
        "--verify needs a folder of shards, found {}", input);
  const DataFolder folder = open_data_folder(input);
  check(folder.manifest.has_value(), Hint{"build the data with `thimble data build`"},
        "{} has no manifest with digests to compare", input);
  verify_shards(folder, std::vector{DataSplit::train, DataSplit::val}, console.progress(), &interrupt);
}

int run_data_info(const Arguments& arguments, Console& console) {
  const Interrupt interrupt;
  DescribeOptions options;
  if (arguments.given("tokenizer")) options.tokenizer = load_tokenizer(arguments.path("tokenizer"));
  options.read = read_options_from(arguments);
  if (arguments.flag("chat")) options.read.kind = DataKind::chat;
  const SpooledInput input(arguments.text("X"), &interrupt);
  if (arguments.flag("verify")) verify(input.name(), console, interrupt);
  const DataDescription data = describe_data(input.name(), options, console.progress(), &interrupt);
  const bool verified = arguments.flag("verify");
  if (console.json())
    console.print_json(as_json(data).set("verified", verified));
  else
    console.print_foreign(as_text(data) + (verified ? "\nall digests match the manifest\n" : ""));
  return 0;
}

}  // namespace

Command data_info_command() {
  return {
      .name = "data info",
      .summary = "describe a data set, a shard, a text or a file of chats",
      .arguments = {{.name = "X", .help = "a folder of shards, a shard, or an input of `data build`"}},
      .options = {{.name = "tokenizer",
                   .letter = 't',
                   .value = "T",
                   .help =
                       "tokenizer to count the tokens of a text, or to decode a shard without a manifest"},
                  documents_option(),
                  text_field_option(),
                  {.name = "chat", .help = "describe only the chats of a folder that also contains text"},
                  assistant_option(),
                  {.name = "verify", .help = "read every shard and compare its digest with the manifest"},
                  common::threads(),
                  common::json(),
                  common::quiet()},
      .examples = {"thimble data info data/books --verify", "thimble data info chats.jsonl --json"},
      .run = run_data_info};
}

namespace {

sample::CorpusOptions corpus_options(const Arguments& arguments) {
  sample::CorpusOptions options;
  if (arguments.text("kind") == "tales") options.kind = sample::CorpusKind::tales;
  if (arguments.text("split") == "heldout") options.split = sample::Split::heldout;
  options.seed = static_cast<std::uint64_t>(arguments.integer("seed", {.least = 0}));
  if (arguments.given("count"))
    options.count = static_cast<std::uint64_t>(arguments.integer("count", {.least = 1}));
  if (arguments.given("size") || options.count == 0)
    options.bytes =
        static_cast<std::uint64_t>(arguments.integer("size", {.least = 1, .most = std::int64_t{1} << 40}));
  return options;
}

int run_data_sample(const Arguments& arguments, Console& console) {
  const Interrupt interrupt;
  const sample::CorpusOptions options = corpus_options(arguments);
  PosixFileOps ops;
  const Output output = output_from(arguments, ops);
  make_folders(ops, folder_of(output.path));
  AtomicFile file(ops, output.path, output.existing);
  const sample::CorpusSize size = write_corpus(options, [&](std::string_view text) {
    interrupt.throw_if_interrupted();
    file.write(text);
  });
  file.commit();
  if (console.json())
    console.print_json(Json::object()
                           .set("kind", arguments.text("kind"))
                           .set("split", arguments.text("split"))
                           .set("seed", options.seed)
                           .set("documents", size.documents)
                           .set("bytes", size.bytes)
                           .set("file", output.path.string()));
  else
    console.print(fmt::format("{}: {} {} of the {} split, {}\n", output.path.string(),
                              with_commas(static_cast<long long>(size.documents)),
                              options.kind == sample::CorpusKind::tales ? "tales" : "chats",
                              options.split == sample::Split::train ? "training" : "held-out",
                              in_bytes(static_cast<double>(size.bytes))));
  return 0;
}

}  // namespace

Command data_sample_command() {
  return {.name = "data sample",
          .summary = "write a synthetic corpus of tales or chats",
          .options = {{.name = "kind",
                       .initial = "chat",
                       .help = "chat: questions and answers in JSONL; tales: text",
                       .choices = {"chat", "tales"}},
                      {.name = "split",
                       .initial = "train",
                       .help = "heldout has combinations that never occur in train",
                       .choices = {"train", "heldout"}},
                      {.name = "size",
                       .value = "BYTES",
                       .initial = "2M",
                       .help = "approximate size, such as 500k, 2M or 1G"},
                      {.name = "count", .value = "N", .help = "number of chats or tales, instead of --size"},
                      output_option("file to write"),
                      common::seed(),
                      common::force(),
                      common::json(),
                      common::quiet()},
          .examples = {"thimble data sample --kind chat -o chats.jsonl",
                       "thimble data sample --split heldout --count 1000 -o questions.jsonl",
                       "thimble data sample --kind tales --size 10M -o tales.txt"},
          .run = run_data_sample};
}

}  // namespace thimble
