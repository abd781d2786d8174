#include "cli/bench_tokenize.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/parallel.h"
#include "cli/bench.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "data/sample/corpus.h"
#include "model/config_builder.h"
#include "model/presets.h"
#include "tokenizer/text_source.h"

namespace thimble {

namespace {

constexpr std::uint64_t kSampleBytes = 4 << 20, kMostBytes = 256 << 20;
constexpr std::size_t kLearnedBytes = 1 << 20;

std::string text_from(const Arguments& arguments) {
  std::string text;
  if (arguments.given("data")) {
    text = read_text_file(arguments.text("data"), kMostBytes);
    check(!text.empty(), "{} is empty", arguments.text("data"));
    return text;
  }
  sample::write_corpus({.kind = sample::CorpusKind::tales, .bytes = kSampleBytes},
                       [&](std::string_view more) { text += more; });
  return text;
}

// A MODEL, a tokenizer by itself, or one that is learned from the text.
std::unique_ptr<Tokenizer> tokenizer_from(const Arguments& arguments, const std::string& text,
                                          Console& console, const Interrupt& interrupt) {
  if (!arguments.given("MODEL")) {
    ConfigBuilder settings;
    settings.preset(arguments.text("preset"));
    const auto vocab_size = static_cast<TokenId>(settings.resolve().model.vocab_size);
    return learned_from(text.substr(0, kLearnedBytes), vocab_size, console.progress(), interrupt);
  }
  if (arguments.given("preset")) throw UsageError("expected MODEL or --preset, found both");
  const std::filesystem::path path = arguments.path("MODEL");
  const std::string extension = path.extension().string();
  if (path == "bytes" || path == "bytes:chat" || extension == ".json" || extension == ".model")
    return load_tokenizer(path);
  auto tokenizer = open_tokenizer(open_model(path));
  check(tokenizer != nullptr, "{} has no tokenizer", path.string());
  return tokenizer;
}

int run_bench_tokenize(const Arguments& arguments, Console& console) {
  const Interrupt interrupt;
  std::string text = text_from(arguments);
  const auto tokenizer = tokenizer_from(arguments, text, console, interrupt);
  if (arguments.given("max-tokens")) {
    const std::vector<TokenId> ids = tokenizer->encode(text);
    const auto most = static_cast<std::size_t>(arguments.integer("max-tokens", {.least = 1}));
    text = tokenizer->decode(std::span(ids).first(std::min(ids.size(), most)));
  }
  const TokenizerSpeed result =
      tokenizer_speed(*tokenizer, text, arguments.integer("iterations", {.least = 1, .most = 100000}),
                      console.progress(), &interrupt);
  const Verdict verdict = verdict_of(arguments, result.speed.mean());
  const double bytes_per_token = static_cast<double>(result.bytes) / static_cast<double>(result.tokens);
  if (console.json())
    console.print_json(as_json(result.speed)
                           .set("passed", verdict.passed)
                           .set("kind", name_of(tokenizer->kind()))
                           .set("vocab_size", tokenizer->vocab_size())
                           .set("tokens", result.tokens)
                           .set("bytes", result.bytes)
                           .set("bytes_per_token", bytes_per_token)
                           .set("megabytes_per_second", result.bytes_per_second() / 1e6)
                           .set("threads", 1)
                           .set("usable_threads", max_threads()));
  else
    console.print(fmt::format("{}, {:.2f} MB/s in one thread of {} ({}, {} tokens, {:.2f} bytes each)\n",
                              as_text(result.speed), result.bytes_per_second() / 1e6, max_threads(),
                              name_of(tokenizer->kind()), tokenizer->vocab_size(), bytes_per_token));
  return exit_code(verdict, console);
}

}  // namespace

Command bench_tokenize_command() {
  return {
      .name = "bench tokenize",
      .summary = "how fast text is encoded here, by one thread",
      .arguments = {{.name = "MODEL",
                     .help = "a model with a tokenizer, a tokenizer's file, or bytes",
                     .count = Count::optional}},
      .options = with_bench_options(
          {{.name = "preset",
            .initial = "golf",
            .help = "without MODEL: a BPE as large as the vocabulary of this preset, learned from the text",
            .choices = preset_names()},
           {.name = "data", .value = "FILE", .help = "text to encode (default: 4 MiB of the built-in tales)"},
           {.name = "max-tokens", .value = "N", .help = "only so much of the text as gives N tokens"}},
          "5", "repeats, after a warm-up; mean and deviation are shown"),
      .examples = {"thimble bench tokenize runs/book",
                   "thimble bench tokenize tokenizer.json --data book.txt"},
      .run = run_bench_tokenize};
}

}  // namespace thimble
