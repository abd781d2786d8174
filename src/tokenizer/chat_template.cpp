#include "tokenizer/chat_template.h"

#include <fmt/format.h>

#include <array>

#include "base/error.h"

namespace thimble {

namespace {

// The first row of which all marks occur tells. Marks of variants stand before what they vary.
struct Recognised {
  std::string_view name;
  std::array<std::string_view, 2> marks;
};
constexpr std::array<Recognised, 21> kTemplates = {{
    {"phi4", {"<|im_start|>", "<|im_sep|>"}},
    {"chatml", {"<|im_start|>", "<|im_end|>"}},
    {"llama3", {"<|start_header_id|>", "<|eot_id|>"}},
    {kRolesLayout, {"<assistant>", "<end_turn>"}},
    {"llama4", {"<|header_start|>", "<|header_end|>"}},
    {"gemma", {"<start_of_turn>", "<end_of_turn>"}},
    {"gpt-oss", {"<|start|>", "<|channel|>"}},
    {"command-r", {"<|START_OF_TURN_TOKEN|>", ""}},
    {"granite", {"<|start_of_role|>", ""}},
    {"deepseek", {"<｜Assistant｜>", ""}},
    {"falcon3", {"<|user|>", "<|endoftext|>"}},
    {"phi3", {"<|user|>", "<|end|>"}},
    {"zephyr", {"<|user|>", ""}},
    {"exaone", {"[|user|]", ""}},
    {"chatglm", {"[gMASK]", ""}},
    {"mistral", {"[INST]", ""}},
    {"vicuna", {"USER:", "ASSISTANT:"}},
    {"deepseek-coder", {"### Instruction:", "<|EOT|>"}},
    {"alpaca", {"### Instruction:", ""}},
    {"openchat", {"GPT4 Correct User", ""}},
    {"minicpm", {"<用户>", ""}},
}};

std::string_view name_of_template(std::string_view jinja) {
  for (const Recognised& known : kTemplates)
    if (jinja.find(known.marks[0]) != jinja.npos && jinja.find(known.marks[1]) != jinja.npos)
      return known.name;
  return "unknown";
}

// A string literal of Jinja behind its first quote, escapes undone.
struct Literal {
  std::string text;
  bool closed = false;  // by its second quote
};

Literal literal_in(std::string_view jinja, char quote) {
  Literal out;
  for (std::size_t i = 0; i < jinja.size(); ++i) {
    if (jinja[i] == quote) return {out.text, true};
    if (jinja[i] != '\\' || i + 1 == jinja.size()) {
      out.text += jinja[i];
      continue;
    }
    const char escaped = jinja[++i];
    out.text += escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped;
  }
  return out;
}

bool is_quote(char c) {
  return c == '\'' || c == '"';
}

// '<|im_start|>system\nYou are a helpful assistant.<|im_end|>' in one literal: what is said when nobody gives
// a system prompt. One that closes before is put together from pieces, and nobody's default; but LLaMA-Factory's
// {% set system_message = 'You are a helpful assistant.' %} is one of those.
std::string default_system(std::string_view jinja) {
  constexpr std::string_view kBegin = "<|im_start|>system\\n", kEnd = "<|im_end|>",
                             kSet = "set system_message = ";
  for (std::size_t at = jinja.find(kBegin); at != jinja.npos; at = jinja.find(kBegin, at + 1)) {
    const std::string_view behind = jinja.substr(at + kBegin.size());
    if (at == 0 || !is_quote(jinja[at - 1]) || behind.find(kEnd) == behind.npos) continue;
    const Literal said = literal_in(behind.substr(0, behind.find(kEnd)), jinja[at - 1]);
    if (!said.closed && !said.text.empty()) return said.text;
  }
  for (std::size_t at = jinja.find(kSet); at != jinja.npos; at = jinja.find(kSet, at + 1)) {
    const std::string_view behind = jinja.substr(at + kSet.size());
    if (behind.empty() || !is_quote(behind.front())) continue;
    const Literal said = literal_in(behind.substr(1), behind.front());
    if (said.closed) return said.text;
  }
  return "";
}

std::string jinja_literal(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

// `before`, what one message prints, and what makes the assistant speak.
std::string joined(std::string_view before, std::string_view message, std::string_view answer) {
  return fmt::format(
      "{}{{% for message in messages %}}"
      "{{% if message['role'] not in ['system', 'user', 'assistant'] %}}"
      "{{{{ raise_exception('expected the role system, user or assistant') }}}}{{% endif %}}"
      "{{{{ {} }}}}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ {} }}}}{{% endif %}}",
      before, message, answer);
}

}  // namespace

std::string layout_of_template(std::string_view jinja) {
  ChatLayoutText layout{.name = std::string(name_of_template(jinja))};
  if (layout.name == "chatml") {
    layout.bos = jinja.find("bos_token") != jinja.npos;
    layout.default_system = default_system(jinja);
  }
  return layout.text();
}

std::string jinja_template(const ChatLayoutText& layout) {
  constexpr std::string_view kBos = "{{ bos_token }}";
  if (layout.name == kRolesLayout)
    return joined(kBos, "'<' + message['role'] + '>' + message['content'] + '<end_turn>'", "'<assistant>'");
  if (layout.name == "llama3")
    return joined(
        kBos,
        "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + "
        "'<|eot_id|>'",
        "'<|start_header_id|>assistant<|end_header_id|>\\n\\n'");
  check(layout.name == "chatml", "there is no template for the chat layout '{}'", layout.name);
  std::string before = layout.bos ? std::string(kBos) : "";
  if (!layout.default_system.empty())
    before +=
        fmt::format("{{% if not messages or messages[0]['role'] != 'system' %}}{{{{ {} }}}}{{% endif %}}",
                    jinja_literal("<|im_start|>system\n" + layout.default_system + "<|im_end|>\n"));
  return joined(before, "'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n'",
                "'<|im_start|>assistant\\n'");
}

}  // namespace thimble
