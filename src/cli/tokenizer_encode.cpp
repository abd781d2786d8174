#include "cli/tokenizer_encode.h"

#include "base/error.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "tokenizer/line_codec.h"

namespace thimble {

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
          .summary = "text to token ids, one line of ids per line of text",
          .arguments = {{.name = "TOKENIZER",
                         .help = "tokenizer.json, tokenizer.model, a folder with one, or \"bytes\""},
                        {.name = "FILE",
                         .help = "the text (also .zst, .gz); default: standard input",
                         .count = Count::optional}},
          .options = {{.name = "text",
                       .letter = 't',
                       .value = "TEXT",
                       .help = "this text instead of a file, as one"},
                      {.name = "whole", .help = "take the file as one text, line ends and all"},
                      {.name = "parse-special", .help = "special strings in the text become their ids"},
                      {.name = "add-special", .help = "add what the tokenizer puts around a text (<bos>)"},
                      common::threads(),
                      common::json(),
                      common::quiet()},
          .examples = {"thimble tokenizer encode tokenizer.json --text \"Hello, world\"",
                       "thimble tokenizer encode tokenizer.json book.txt > ids.txt"},
          .run = run_tokenizer_encode};
}

}  // namespace thimble
