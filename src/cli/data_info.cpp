#include "cli/data_info.h"

#include <fmt/format.h>

#include "base/interrupt.h"
#include "base/json.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "data/describe.h"

namespace thimble {

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
  if (!data.first_document.empty()) text += "\nfirst document\n" + data.first_document + "\n";
  return text;
}

int run_data_info(const Arguments& arguments, Console& console) {
  const Interrupt interrupt;
  DescribeOptions options;
  if (arguments.given("tokenizer")) options.tokenizer = load_tokenizer(arguments.path("tokenizer"));
  options.read.split = document_split_with_name(arguments.text("documents")).value();
  options.read.text_field = arguments.text("text-field");
  const DataDescription data = describe_data(arguments.text("X"), options, console.progress(), &interrupt);
  if (console.json())
    console.print_json(as_json(data));
  else
    console.print_foreign(as_text(data));
  return 0;
}

}  // namespace

Command data_info_command() {
  return {.name = "data info",
          .summary = "what a data set, a shard, a text or a file of chats holds",
          .arguments = {{.name = "X", .help = "a folder of shards, a shard, or anything `data build` reads"}},
          .options = {{.name = "tokenizer",
                       .letter = 't',
                       .value = "T",
                       .help = "counts the tokens of a text, decodes a shard without a manifest"},
                      {.name = "documents",
                       .initial = "endoftext",
                       .help = "what a document of a text is",
                       .choices = {"line", "blank-line", "file", "endoftext"}},
                      {.name = "text-field",
                       .value = "KEY",
                       .initial = "text",
                       .help = "where .jsonl and .json hold the text"},
                      common::threads(),
                      common::json(),
                      common::quiet()},
          .examples = {"thimble data info data/books", "thimble data info chats.jsonl --json"},
          .run = run_data_info};
}

}  // namespace thimble
