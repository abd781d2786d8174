#include "cli/tokenizer_train.h"

#include <fmt/format.h>

#include <chrono>

#include "base/error.h"
#include "base/files.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/sentencepiece.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

// OUT names the file, or the folder that gets it under its usual name.
fs::path output_file(const Arguments& arguments) {
  const fs::path out = arguments.path("output");
  const bool pieces = arguments.text("kind") == "sentencepiece";
  if (out.extension() == ".json" || out.extension() == ".model") {
    const fs::path wanted = pieces ? ".model" : ".json";
    if (out.extension() != wanted)
      throw UsageError(fmt::format("a {} tokenizer is a {} file, found '{}'", arguments.text("kind"),
                                   wanted.string(), out.string()));
    return out;
  }
  return out / (pieces ? "tokenizer.model" : "tokenizer.json");
}

TextSourceOptions source_options(const Arguments& arguments) {
  return {.split = document_split_with_name(arguments.text("documents")).value(), .keep_line_end = true};
}

std::vector<std::string> special_tokens(const Arguments& arguments) {
  std::vector<std::string> tokens = special_tokens_for(arguments.flag("chat"));
  const auto& more = arguments.list("special");
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

std::unique_ptr<Tokenizer> trained(const Arguments& arguments, TextSource& source, Console& console,
                                   const Interrupt& interrupt) {
  const auto vocab_size =
      static_cast<TokenId>(arguments.integer("vocab-size", {.least = 1, .most = 1 << 22}));
  if (arguments.text("kind") == "sentencepiece") {
    SentencePieceOptions options{
        .vocab_size = vocab_size, .normalization = arguments.text("normalization"), .threads = max_threads()};
    options.control_tokens = special_tokens(arguments);
    options.control_tokens.erase(options.control_tokens.begin());  // it has a bos of its own
    if (!arguments.given("normalization") && arguments.flag("chat")) options.normalization = "identity";
    console.log().info("training SentencePiece on {} files", source.files().size());
    return load_sentencepiece(train_sentencepiece(source, options, &interrupt), "the trained model");
  }
  const BpeTrainOptions options{
      .vocab_size = vocab_size,
      .min_frequency = static_cast<std::uint64_t>(arguments.integer("min-frequency", {.least = 1})),
      .pattern = pattern_with_name(arguments.text("pattern")).value(),
      .special_tokens = special_tokens(arguments),
      .ties = arguments.text("ties") == "greater" ? Ties::greater_bytes : Ties::smaller_ids};
  return make_bpe_tokenizer(train_bpe(source, options, console.progress(), &interrupt).spec);
}

int run_tokenizer_train(const Arguments& arguments, Console& console) {
  const Interrupt interrupt;
  const auto start = std::chrono::steady_clock::now();
  const fs::path output = output_file(arguments);
  if (fs::exists(output) && !arguments.flag("force"))
    fail(Hint{"name another place with -o, or pass --force"}, "{} exists already", output.string());
  const auto& files = arguments.list("FILES");
  TextSource source({files.begin(), files.end()}, source_options(arguments));
  const auto tokenizer = trained(arguments, source, console, interrupt);

  PosixFileOps ops;
  if (output.has_parent_path()) make_folders(ops, output.parent_path());
  write_file(ops, output, tokenizer->serialized(),
             arguments.flag("force") ? Existing::replace : Existing::refuse);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  if (tokenizer->vocab_size() < arguments.integer("vocab-size"))
    console.log().warning("the text gave only {} tokens of the {} asked for", tokenizer->vocab_size(),
                          arguments.text("vocab-size"));
  if (console.json())
    console.print_json(Json::object()
                           .set("kind", name_of(tokenizer->kind()))
                           .set("vocab_size", tokenizer->vocab_size())
                           .set("bytes", source.text_bytes())
                           .set("seconds", seconds)
                           .set("file", output.string())
                           .set("digest", tokenizer->digest().hex()));
  else
    console.print(fmt::format("{}: {} tokens from {} of text in {}\n", output.string(),
                              tokenizer->vocab_size(), in_bytes(static_cast<double>(source.text_bytes())),
                              in_seconds(seconds)));
  return 0;
}

}  // namespace

Command tokenizer_train_command() {
  return {
      .name = "tokenizer train",
      .summary = "learn a tokenizer from text",
      .arguments = {{.name = "FILES",
                     .help = "text files (also .zst, .gz) and folders of them",
                     .count = Count::many}},
      .options =
          {{.name = "output",
            .letter = 'o',
            .value = "OUT",
            .help = "tokenizer.json, tokenizer.model, or a folder",
            .required = true},
           {.name = "kind",
            .initial = "bpe",
            .help = "byte-level BPE, or SentencePiece with parameter-golf's settings",
            .choices = {"bpe", "sentencepiece"}},
           {.name = "vocab-size", .value = "N", .initial = "4096", .help = "tokens, special ones included"},
           {.name = "chat", .help = "add <user> <assistant> <end_turn> <system> after <bos>"},
           {.name = "special", .value = "TOKEN", .help = "another special token", .repeated = true},
           {.name = "pattern",
            .initial = "qwen2",
            .help = "how text is cut into words (bpe)",
            .choices = {"qwen2", "gpt2", "llama3", "o200k"}},
           {.name = "min-frequency",
            .value = "N",
            .initial = "2",
            .help = "pairs seen less often are not merged (bpe)"},
           {.name = "ties",
            .initial = "huggingface",
            .help = "which of two equally frequent pairs comes first (bpe)",
            .choices = {"huggingface", "greater"}},
           {.name = "normalization",
            .initial = "nmt_nfkc",
            .help = "of text (sentencepiece; with --chat: identity)",
            .choices = {"nmt_nfkc", "identity"}},
           {.name = "documents",
            .initial = "endoftext",
            .help = "what a document is; words never cross its ends",
            .choices = {"line", "blank-line", "file", "endoftext"}},
           common::threads(),
           common::force(),
           common::json(),
           common::quiet()},
      .examples = {"thimble tokenizer train --vocab-size 8192 books/ -o tokenizer.json",
                   "thimble tokenizer train --chat chats.txt -o runs/chat"},
      .run = run_tokenizer_train};
}

}  // namespace thimble
