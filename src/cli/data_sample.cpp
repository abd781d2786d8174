#include "cli/data_sample.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/number.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "data/sample/corpus.h"

namespace thimble {

namespace {

constexpr std::string_view kDefaultSize = "2M";

// "500k", "2M", "1G": as data is sold, in thousands.
std::uint64_t bytes_in(std::string_view text) {
  std::uint64_t unit = 1;
  std::string_view digits = text;
  if (!digits.empty()) {
    constexpr std::string_view kUnits = "kMG";
    for (std::size_t i = 0, size = 1000; i < kUnits.size(); ++i, size *= 1000)
      if (digits.back() == kUnits[i]) unit = size;
    if (unit > 1) digits.remove_suffix(1);
  }
  const auto count = number_in<std::uint64_t>(digits);
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
  if (!count || *count == 0 || *count > kMost / unit)
    throw UsageError(fmt::format("--size: expected bytes such as 500k, 2M or 1G, found '{}'", text));
  return *count * unit;
}

sample::CorpusOptions corpus_options(const Arguments& arguments) {
  sample::CorpusOptions options;
  if (arguments.text("kind") == "tales") options.kind = sample::CorpusKind::tales;
  if (arguments.text("split") == "heldout") options.split = sample::Split::heldout;
  options.seed = static_cast<std::uint64_t>(arguments.integer("seed", {.least = 0}));
  if (arguments.given("count"))
    options.count = static_cast<std::uint64_t>(arguments.integer("count", {.least = 1}));
  if (arguments.given("size") || options.count == 0)
    options.bytes = bytes_in(arguments.given("size") ? arguments.text("size") : kDefaultSize);
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
    interrupt.throw_if_asked();
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
  return {
      .name = "data sample",
      .summary = "write the built-in corpus: tales or chats of a small world",
      .options = {{.name = "kind",
                   .initial = "chat",
                   .help = "questions with answers as JSON lines, or text",
                   .choices = {"chat", "tales"}},
                  {.name = "split",
                   .initial = "train",
                   .help = "heldout: combinations that never occur in train",
                   .choices = {"train", "heldout"}},
                  {.name = "size", .value = "BYTES", .help = "about how much: 500k, 2M, 1G (default: 2M)"},
                  {.name = "count", .value = "N", .help = "or how many chats or tales"},
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
