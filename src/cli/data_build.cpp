#include "cli/data_build.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "data/build.h"

namespace thimble {

namespace {

constexpr std::string_view kDefaultFraction = "0.1";

std::string count(std::uint64_t value) {
  return with_commas(static_cast<long long>(value));
}

double ratio(std::uint64_t a, std::uint64_t b) {
  return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b);
}

void choose_validation(const Arguments& arguments, BuildRequest& request) {
  request.val_inputs = arguments.list("val-data");
  const int given =
      arguments.given("val-docs") + arguments.given("val-fraction") + !request.val_inputs.empty();
  if (given > 1)
    throw UsageError("--val-docs, --val-fraction and --val-data choose validation: expected one of them");
  if (arguments.given("val-docs"))
    request.val_documents = static_cast<std::uint64_t>(arguments.integer("val-docs", {.least = 0}));
  else if (request.val_inputs.empty())
    request.val_fraction = arguments.number("val-fraction", {.least = 0, .most = 0.999});
}

BuildRequest request_from(const Arguments& arguments) {
  BuildRequest request;
  request.inputs = arguments.list("INPUTS");
  choose_validation(arguments, request);
  request.folder = arguments.path("output");
  request.name = arguments.text("name");
  request.read = {.kind = arguments.flag("chat") ? DataKind::chat : DataKind::text,
                  .split = document_split_with_name(arguments.text("documents")).value(),
                  .text_field = arguments.text("text-field"),
                  .strip_markdown = arguments.flag("strip-markdown")};
  const bool limited = arguments.given("context") || arguments.flag("skip-long");
  if (limited && !arguments.flag("chat")) throw UsageError("--context and --skip-long are for --chat");
  if (arguments.flag("skip-long") && !arguments.given("context"))
    throw UsageError("--skip-long needs to know what is long: add --context N");
  if (arguments.given("context"))
    request.limits.context = static_cast<std::uint64_t>(arguments.integer("context", {.least = 4}));
  request.limits.skip_long = arguments.flag("skip-long");
  request.dedup = arguments.flag("dedup");
  request.skip_bad = arguments.flag("skip-bad");
  request.shard_tokens = static_cast<std::uint64_t>(
      arguments.integer("shard-tokens", {.least = 1, .most = static_cast<std::int64_t>(kMaxShardTokens)}));
  if (arguments.flag("force")) request.if_built = IfBuilt::replace;
  request.tokenizer = load_tokenizer(arguments.path("tokenizer"));
  return request;
}

Json as_json(const BuildResult& built, const std::filesystem::path& folder) {
  const Manifest& m = built.manifest;
  Json dropped = Json::object();
  for (const auto& [reason, documents] : m.dropped) dropped.set(reason, documents);
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
      .set("resumed", built.resumed)
      .set("seconds", built.seconds);
}

// In words, what was left out or cut.
std::string dropped_text(const Manifest& manifest) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"bad", "bad records"},
      {"empty", "empty documents"},
      {"without_answer", "conversations without an answer"},
      {"turns_after_last_answer", "conversations cut behind their last answer"},
      {"duplicates", "duplicates"},
      {"in_validation", "training documents that are in validation too"},
      {"too_long", "conversations too long"},
      {"truncated", "conversations cut to the context"}};
  Table table;
  for (const auto& [reason, words] : kWords)
    for (const auto& [found, documents] : manifest.dropped)
      if (found == reason && documents > 0) table.row({std::string(words), count(documents)});
  return table.text(page_width(0));
}

std::string as_text(const BuildResult& built, const std::filesystem::path& folder) {
  const Manifest& m = built.manifest;
  const bool chat = m.kind == DataKind::chat;
  Table table({"", chat ? "conversations" : "documents", "tokens", "bytes", "bytes per token", "shards"});
  for (const auto& [name, split] : {std::pair{"train", &m.train}, std::pair{"val", &m.val}})
    table.row({name, count(split->documents), count(split->tokens), count(split->bytes),
               fmt::format("{:.3f}", ratio(split->bytes, split->tokens)), count(split->shards.size())});
  std::string text = table.text(page_width(0));
  if (const std::string dropped = dropped_text(m); !dropped.empty()) text += "\nleft out or cut\n" + dropped;
  const double bytes = static_cast<double>(m.train.bytes + m.val.bytes);
  text += fmt::format("\n{}: {} of text", folder.string(), in_bytes(bytes));
  if (built.seconds > 0)
    text += fmt::format(" in {}, {}/s", in_seconds(built.seconds), in_bytes(bytes / built.seconds));
  return text + "\n";
}

BuildResult build_or_say_how_to_go_on(const BuildRequest& request, const Console& console,
                                      const Interrupt& interrupt) {
  try {
    return build_dataset(request, console.log(), console.progress(), &interrupt);
  } catch (const Interrupted&) {
    console.log().info("the same command goes on with the shards that are done");
    throw;
  }
}

int run_data_build(const Arguments& arguments, Console& console) {
  const Interrupt interrupt;
  const BuildRequest request = request_from(arguments);
  const BuildResult built = build_or_say_how_to_go_on(request, console, interrupt);
  if (built.manifest.val.tokens == 0)
    console.log().warning("there is no validation data: every document is for training");
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
      .summary = "turn texts or chats into shards of tokens to train on",
      .arguments = {{.name = "INPUTS",
                     .help =
                         "files (.txt, .jsonl, .json, also .zst, .gz), folders and patterns; FILE:2.5 mixes "
                         "them by weight",
                     .count = Count::many}},
      .options =
          {{.name = "output", .letter = 'o', .value = "DIR", .help = "the folder to build", .required = true},
           {.name = "tokenizer",
            .letter = 't',
            .value = "T",
            .help = "tokenizer.json, tokenizer.model, a folder with one, \"bytes\" or \"bytes:chat\"",
            .required = true},
           {.name = "name", .value = "NAME", .initial = "data", .help = "shards are NAME_train_000000.bin"},
           {.name = "documents",
            .initial = "endoftext",
            .help = "what a document of a text is",
            .choices = {"line", "blank-line", "file", "endoftext"}},
           {.name = "text-field",
            .value = "KEY",
            .initial = "text",
            .help = "where .jsonl and .json hold the text"},
           {.name = "chat", .help = "the inputs are conversations, one a line or one big JSON array"},
           {.name = "val-fraction",
            .value = "F",
            .initial = kDefaultFraction,
            .help = "of documents for validation, chosen by their content"},
           {.name = "val-docs", .value = "N", .help = "the last N documents for validation instead"},
           {.name = "val-data",
            .value = "INPUT",
            .help = "inputs of their own for validation instead",
            .repeated = true},
           {.name = "dedup", .help = "drop documents that occurred before"},
           {.name = "strip-markdown", .help = "keep the text, drop the marks"},
           {.name = "skip-bad", .help = "leave out records that cannot be read, and count them"},
           {.name = "context", .value = "N", .help = "cut conversations to N tokens (with --chat)"},
           {.name = "skip-long", .help = "leave out longer conversations instead of cutting them"},
           {.name = "shard-tokens", .value = "N", .initial = "10000000", .help = "tokens of a shard"},
           common::threads(),
           common::force(),
           common::json(),
           common::quiet()},
      .examples = {"thimble data build books/ --tokenizer tokenizer.json --dedup -o data/books",
                   "thimble data build chats.jsonl --chat --tokenizer bytes:chat -o data/chats",
                   "thimble data build wiki.txt:2 web.jsonl:0.5 --tokenizer tokenizer.json -o data/mix"},
      .run = run_data_build};
}

}  // namespace thimble
