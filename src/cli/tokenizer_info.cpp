#include "cli/tokenizer_info.h"

#include <fmt/format.h>

#include <optional>

#include "base/interrupt.h"
#include "base/json.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "tokenizer/line_codec.h"

namespace thimble {

namespace {

constexpr std::uint64_t kPieceBytes = 1 << 20;  // long documents are measured by all threads

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
          .summary = "what a tokenizer is, and how well it fits a text",
          .arguments = {{.name = "TOKENIZER",
                         .help = "tokenizer.json, tokenizer.model, a folder with one, or \"bytes\""},
                        {.name = "FILE",
                         .help = "a text, or a folder of texts, to measure it on",
                         .count = Count::optional}},
          .options = {common::threads(), common::json(), common::quiet()},
          .examples = {"thimble tokenizer info tokenizer.json book.txt"},
          .run = run_tokenizer_info};
}

}  // namespace thimble
