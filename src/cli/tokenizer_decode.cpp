#include "cli/tokenizer_decode.h"

#include "base/error.h"
#include "base/json.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "tokenizer/line_codec.h"

namespace thimble {

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
  return {
      .name = "tokenizer decode",
      .summary = "token ids to text, one line of text per line of ids",
      .arguments =
          {{.name = "TOKENIZER", .help = "tokenizer.json, tokenizer.model, a folder with one, or \"bytes\""},
           {.name = "FILE", .help = "lines of ids; default: standard input", .count = Count::optional}},
      .options = {{.name = "text", .letter = 't', .value = "IDS", .help = "these ids instead of a file"},
                  {.name = "whole", .help = "no line end after each text"},
                  {.name = "keep-special", .help = "show special tokens as their text"},
                  common::json(),
                  common::quiet()},
      .examples = {"thimble tokenizer decode tokenizer.json --text \"15496 995\""},
      .run = run_tokenizer_decode};
}

}  // namespace thimble
