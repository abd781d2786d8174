// Arbitrary bytes, read as a chat template and rendered. A template ends within its limits, gives
// the same text twice, and rejects what it cannot do with the fields of jinja.h.
#include "base/error.h"
#include "base/json.h"
#include "targets.h"
#include "tokenizer/jinja.h"

namespace thimble {

namespace {

const Json& variables() {
  static const Json kVariables = parse_json(
      R"({"bos_token": "<s>", "add_generation_prompt": true, "n": null,
          "messages": [{"role": "system", "content": "Gr\u00fc\u00dfe"}, {"role": "user", "content": " a\n\nb "},
                       {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5}}}]}],
          "tools": [{"function": {"name": "f", "parameters": {"properties": {"x": {"type": "number"}}}}}]})",
      "variables");
  return kVariables;
}

}  // namespace

void fuzz_jinja(FuzzBytes bytes) {
  const JinjaOptions small = {.now = 1750000000, .steps = 20'000, .bytes = 1 << 20};
  try {
    const JinjaTemplate chat(text_of(bytes));
    const std::string text = chat.render(variables(), small);
    require(text.size() <= small.bytes, "a text is within the limit");
    require(chat.render(variables(), small) == text, "rendering twice gives the same text");
  } catch (const Error& error) {
    require(error.field() == "chat_template" || error.field() == "messages", "an error names its field");
  }
}

}  // namespace thimble
