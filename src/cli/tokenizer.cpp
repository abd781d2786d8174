#include <fmt/format.h>

#include <chrono>
#include <deque>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/signals.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/console.h"
#include "cli/option.h"
#include "cli/parse.h"
#include "cli/train_inputs.h"
#include "data/document.h"
#include "data/encode.h"
#include "data/records.h"
#include "tokenizer/bpe_train.h"
#include "tokenizer/jinja.h"
#include "tokenizer/sentencepiece.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

// OUT is the file, or a folder for a file with the usual name.
fs::path output_file(const Arguments& arguments) {
  const fs::path out = arguments.path("output");
  const bool pieces = arguments.text("kind") == "sentencepiece";
  if (out.extension() == ".json" || out.extension() == ".model") {
    const fs::path expected = pieces ? ".model" : ".json";
    if (out.extension() != expected)
      throw UsageError(fmt::format("a {} tokenizer is saved as a {} file, found '{}'", arguments.text("kind"),
                                   expected.string(), out.string()));
    return out;
  }
  const fs::path file = out / (pieces ? "tokenizer.model" : "tokenizer.json");
  const fs::path foreign = foreign_entry(
      out, [&](const fs::directory_entry& entry) { return entry.path().filename() == file.filename(); });
  check(foreign.empty(),
        Hint{fmt::format("choose a new or empty folder, or name the file: -o {}", file.string())},
        "{} is not empty: it contains {}", out.string(), foreign.filename().string());
  return file;
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

std::unique_ptr<Tokenizer> trained(const Arguments& arguments, TextStream& source, Console& console,
                                   const Interrupt& interrupt) {
  const auto vocab_size =
      static_cast<TokenId>(arguments.integer("vocab-size", {.least = 1, .most = 1 << 22}));
  if (arguments.text("kind") == "sentencepiece") {
    SentencePieceOptions options{
        .vocab_size = vocab_size, .normalization = arguments.text("normalization"), .threads = max_threads()};
    options.control_tokens = special_tokens(arguments);
    options.control_tokens.erase(options.control_tokens.begin());  // SentencePiece adds its own bos
    if (!arguments.given("normalization") && arguments.flag("chat")) options.normalization = "identity";
    console.log().info("training SentencePiece on {} files", source.file_count());
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

// Reports files of a folder that are not read.
std::vector<fs::path> files_of(const std::string& input, const Arguments& arguments, const Console& console) {
  DataSource source = find_source(input);
  if (arguments.flag("chat"))
    source = find_source(input, {.kind = DataKind::chat, .text_field = arguments.text("text-field")});
  if (!source.left_out.empty()) console.log().info("reading\n{}", inputs_text(std::span(&source, 1)));
  return source.files;
}

int run_tokenizer_train(const Arguments& arguments, Console& console) {
  const Interrupt interrupt;
  const auto start = std::chrono::steady_clock::now();
  const fs::path output = output_file(arguments);
  if (fs::exists(output) && !arguments.flag("force"))
    fail(Hint{"choose another name with -o, or pass --force to overwrite it"}, "{} already exists",
         output.string());
  std::deque<SpooledInput> pipes;
  std::vector<fs::path> files;
  for (const std::string& input : arguments.list("FILES"))
    for (const fs::path& file : files_of(pipes.emplace_back(input, &interrupt).name(), arguments, console))
      files.push_back(file);
  ContentsStream source(files, arguments.flag("chat") ? std::optional(DataKind::chat) : std::nullopt,
                        source_options(arguments), &interrupt, arguments.text("text-field"));
  const auto tokenizer = trained(arguments, source, console, interrupt);
  if (source.has_conversations() && !arguments.flag("chat"))
    console.log().warning("the files contain chats; pass --chat to add the special tokens of chats");

  PosixFileOps ops;
  if (output.has_parent_path()) make_folders(ops, output.parent_path());
  write_file(ops, output, tokenizer->serialized(),
             arguments.flag("force") ? Existing::replace : Existing::refuse);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  if (tokenizer->vocab_size() < arguments.integer("vocab-size"))
    console.log().warning("the text yields a vocabulary of {} tokens, fewer than the requested {}",
                          tokenizer->vocab_size(), arguments.text("vocab-size"));
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
      .summary = "train a tokenizer on text or chats",
      .arguments = {{.name = "FILES",
                     .help = "files (text, .jsonl, .json, .csv, .tsv, .parquet, .md, .html, exports of "
                             "messengers), folders and glob patterns",
                     .count = Count::many}},
      .options = {{.name = "output",
                   .letter = 'o',
                   .value = "OUT",
                   .help = "file to write: tokenizer.json, tokenizer.model, or a folder",
                   .required = true},
                  {.name = "kind",
                   .initial = "bpe",
                   .help = "byte-level BPE, or SentencePiece with the settings of parameter-golf",
                   .choices = {"bpe", "sentencepiece"}},
                  {.name = "vocab-size",
                   .value = "N",
                   .initial = "4096",
                   .help = "vocabulary size, including special tokens"},
                  {.name = "chat",
                   .help = "add the special tokens <user>, <assistant>, <end_turn> and <system>"},
                  {.name = "special", .value = "TOKEN", .help = "another special token", .repeated = true},
                  {.name = "pattern",
                   .initial = "qwen2",
                   .help = "for bpe: pattern that splits text into words",
                   .choices = {"qwen2", "gpt2", "llama3", "o200k"}},
                  {.name = "min-frequency",
                   .value = "N",
                   .initial = "2",
                   .help = "for bpe: do not merge pairs that occur less often"},
                  {.name = "ties",
                   .initial = "huggingface",
                   .help = "for bpe: order of equally frequent pairs",
                   .choices = {"huggingface", "greater"}},
                  {.name = "normalization",
                   .initial = "nmt_nfkc",
                   .help = "for sentencepiece: Unicode normalization; identity with --chat",
                   .choices = {"nmt_nfkc", "identity"}},
                  {.name = "documents",
                   .initial = "endoftext",
                   .help = "unit that is a document; tokens never cross documents",
                   .choices = {"line", "blank-line", "file", "endoftext"}},
                  text_field_option(),
                  common::threads(),
                  common::force(),
                  common::json(),
                  common::quiet()},
      .examples = {"thimble tokenizer train --vocab-size 8192 books/ -o tokenizer.json",
                   "thimble tokenizer train --chat chats.jsonl -o chat.json"},
      .run = run_tokenizer_train};
}

namespace {

Json as_json(const std::vector<TokenId>& ids) {
  return Json::array(Json::Array(ids.begin(), ids.end()));
}

int run_tokenizer_encode(const Arguments& arguments, Console& console) {
  if (arguments.given("text") && arguments.given("FILE"))
    throw UsageError("expected --text or FILE, found both");
  const Interrupt interrupt;
  const auto tokenizer = load_tokenizer(arguments.path("TOKENIZER"));
  const EncodeOptions options{.trusted = arguments.flag("parse-special"),
                              .add_special = arguments.flag("add-special")};
  Json tokens = Json::array(), lines = Json::array();
  auto use = [&](const std::vector<TokenId>& ids) {
    if (!console.json()) return console.print(format_ids(ids) + "\n");
    for (const TokenId id : ids) tokens.push(id);
    lines.push(as_json(ids));
  };
  const std::string file = arguments.given("FILE") ? arguments.text("FILE") : "-";
  if (arguments.given("text"))
    use(tokenizer->encode(arguments.text("text"), options));
  else if (arguments.flag("whole"))
    use(tokenizer->encode(read_text_file(file), options));
  else
    encode_lines(*tokenizer, *open_byte_stream(file), options, use, &interrupt);
  if (console.json()) console.print_json(Json::object().set("tokens", tokens).set("lines", lines));
  return 0;
}

}  // namespace

Command tokenizer_encode_command() {
  return {.name = "tokenizer encode",
          .summary = "encode text, one line of token ids per line of text",
          .arguments = {{.name = "TOKENIZER",
                         .help = "tokenizer.json, tokenizer.model, a folder that contains one, or bytes"},
                        {.name = "FILE",
                         .help = "text file (also .zst and .gz); default: standard input",
                         .count = Count::optional}},
          .options =
              {{.name = "text", .letter = 't', .value = "TEXT", .help = "encode this text instead of a file"},
               {.name = "whole", .help = "encode the whole file as one text, including newlines"},
               {.name = "parse-special", .help = "encode special tokens that occur in the text"},
               {.name = "add-special", .help = "add the special tokens around a text, such as <bos>"},
               common::threads(),
               common::json(),
               common::quiet()},
          .examples = {"thimble tokenizer encode tokenizer.json --text \"Hello, world\"",
                       "thimble tokenizer encode tokenizer.json book.txt > ids.txt"},
          .run = run_tokenizer_encode};
}

namespace {

int run_tokenizer_decode(const Arguments& arguments, Console& console) {
  if (arguments.given("text") && arguments.given("FILE"))
    throw UsageError("expected --text or FILE, found both");
  const auto tokenizer = load_tokenizer(arguments.path("TOKENIZER"));
  const DecodeOptions options{.keep_special = arguments.flag("keep-special")};
  Json tokens = Json::array();
  std::string all;
  auto use = [&](std::string_view line) {
    const std::vector<TokenId> ids = parse_ids(line, *tokenizer);
    const std::string text = tokenizer->decode(ids, options) + (arguments.flag("whole") ? "" : "\n");
    if (!console.json()) return console.print_foreign(text);
    for (const TokenId id : ids) tokens.push(id);
    all += text;
  };
  if (arguments.given("text"))
    use(arguments.text("text"));
  else
    for_each_line(*open_byte_stream(arguments.given("FILE") ? arguments.text("FILE") : "-"), use);
  if (console.json()) {
    if (all.ends_with('\n')) all.pop_back();
    console.print_json(Json::object().set("tokens", tokens).set("text", all));
  }
  return 0;
}

}  // namespace

Command tokenizer_decode_command() {
  return {.name = "tokenizer decode",
          .summary = "decode token ids, one line of text per line of ids",
          .arguments = {{.name = "TOKENIZER",
                         .help = "tokenizer.json, tokenizer.model, a folder that contains one, or bytes"},
                        {.name = "FILE",
                         .help = "file of ids; default: standard input",
                         .count = Count::optional}},
          .options =
              {{.name = "text", .letter = 't', .value = "IDS", .help = "decode these ids instead of a file"},
               {.name = "whole", .help = "do not print a newline after each text"},
               {.name = "keep-special", .help = "print special tokens"},
               common::json(),
               common::quiet()},
          .examples = {"thimble tokenizer decode tokenizer.json --text \"15496 995\""},
          .run = run_tokenizer_decode};
}

namespace {

// A line of the input: an object of variables, or an array of messages.
Json variables_in(std::string_view line, bool generation_prompt) {
  Json given = parse_json(line, "the variables");
  Json variables = given.is_array() ? Json::object().set("messages", std::move(given)) : std::move(given);
  if (!variables.is_object())
    throw UsageError("expected a JSON object of variables, or an array of messages, in each line");
  if (!variables.find("add_generation_prompt")) variables.set("add_generation_prompt", generation_prompt);
  return variables;
}

int run_tokenizer_render(const Arguments& arguments, Console& console) {
  constexpr std::uint64_t kMaxTemplateBytes = 1 << 20;
  const JinjaTemplate chat(read_text_file(arguments.text("TEMPLATE"), kMaxTemplateBytes));
  Json prompts = Json::array();
  const auto use = [&](std::string_view line) {
    if (trim(line).empty()) return;
    const std::string text = chat.render(variables_in(line, !arguments.flag("no-prompt")));
    if (console.json())
      prompts.push(text);
    else
      console.print_foreign(text + "\n");
  };
  if (arguments.given("text"))
    use(arguments.text("text"));
  else
    for_each_line(*open_byte_stream(arguments.given("FILE") ? arguments.text("FILE") : "-"), use);
  if (console.json()) console.print_json(Json::object().set("prompts", prompts));
  return 0;
}

}  // namespace

Command tokenizer_render_command() {
  return {
      .name = "tokenizer render",
      .summary = "render conversations with a Jinja chat template",
      .arguments = {{.name = "TEMPLATE", .help = "file with a template, such as chat_template.jinja"},
                    {.name = "FILE",
                     .help = "JSON lines: an array of messages, or an object with messages, tools and other "
                             "variables; default: standard input",
                     .count = Count::optional}},
      .options = {{.name = "text", .letter = 't', .value = "JSON", .help = "render this instead of a file"},
                  {.name = "no-prompt",
                   .help = "set add_generation_prompt to false unless the input sets it"},
                  common::json(),
                  common::quiet()},
      .examples = {"thimble tokenizer render chat_template.jinja chats.jsonl"},
      .run = run_tokenizer_render};
}

namespace {

constexpr std::uint64_t kPieceBytes = 1 << 20;  // splits long documents among threads

Json id_json(const std::optional<TokenId>& id) {
  return id ? Json(*id) : Json();
}

Json as_json(const Tokenizer& tokenizer, const std::optional<TextMeasure>& measure) {
  Json special = Json::object();
  for (const auto& [text, id] : tokenizer.special_tokens()) special.set(text, id);
  Json report = Json::object()
                    .set("kind", name_of(tokenizer.kind()))
                    .set("vocab_size", tokenizer.vocab_size())
                    .set("special_tokens", special)
                    .set("bos", id_json(tokenizer.special().bos))
                    .set("eos", id_json(tokenizer.special().eos))
                    .set("digest", tokenizer.digest().hex());
  if (measure)
    report.set("bytes", measure->bytes)
        .set("tokens", measure->tokens)
        .set("documents", measure->documents)
        .set("bytes_per_token", measure->bytes_per_token());
  return report;
}

std::string special_text(const Tokenizer& tokenizer) {
  constexpr std::size_t kShown = 8;
  const auto tokens = tokenizer.special_tokens();
  std::string text;
  for (std::size_t i = 0; i < tokens.size() && i < kShown; ++i)
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", tokens[i].first, tokens[i].second);
  if (tokens.size() > kShown) text += fmt::format(", and {} more", tokens.size() - kShown);
  return text.empty() ? "none" : text;
}

std::string as_text(const Tokenizer& tokenizer, const std::optional<TextMeasure>& measure) {
  auto name = [&](const std::optional<TokenId>& id) {
    return id ? fmt::format("{} {}", tokenizer.token_text(*id), *id) : "none";
  };
  Table table;
  table.row({"kind", std::string(name_of(tokenizer.kind()))});
  table.row({"tokens", with_commas(tokenizer.vocab_size())});
  table.row({"special", special_text(tokenizer)});
  table.row({"bos", name(tokenizer.special().bos)});
  table.row({"eos", name(tokenizer.special().eos)});
  table.row({"digest", tokenizer.digest().hex()});
  if (measure)
    table.row({"text",
               fmt::format("{} tokens for {} bytes: {:.3f} bytes per token",
                           with_commas(static_cast<long long>(measure->tokens)),
                           with_commas(static_cast<long long>(measure->bytes)), measure->bytes_per_token())});
  return table.text(page_width(0));
}

int run_tokenizer_info(const Arguments& arguments, Console& console) {
  const auto tokenizer = load_tokenizer(arguments.path("TOKENIZER"));
  std::optional<TextMeasure> measure;
  if (arguments.given("FILE")) {
    const Interrupt interrupt;
    TextSource source({arguments.path("FILE")}, {.max_piece_bytes = kPieceBytes});
    measure = measure_text(*tokenizer, source, console.progress(), &interrupt);
  }
  if (console.json())
    console.print_json(as_json(*tokenizer, measure));
  else
    console.print_foreign(as_text(*tokenizer, measure));
  return 0;
}

}  // namespace

Command tokenizer_info_command() {
  return {.name = "tokenizer info",
          .summary = "describe a tokenizer, and measure it on a text",
          .arguments = {{.name = "TOKENIZER",
                         .help = "tokenizer.json, tokenizer.model, a folder that contains one, or bytes"},
                        {.name = "FILE",
                         .help = "text file or folder to measure it on",
                         .count = Count::optional}},
          .options = {common::threads(), common::json(), common::quiet()},
          .examples = {"thimble tokenizer info tokenizer.json book.txt"},
          .run = run_tokenizer_info};
}

}  // namespace thimble
