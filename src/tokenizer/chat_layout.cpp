#include "tokenizer/chat_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"

namespace thimble {

namespace {

struct NamedToken {
  std::string_view name;
  TokenId ChatTokens::*id;
};
constexpr std::array<NamedToken, 5> kTokens = {{{"<bos>", &ChatTokens::bos},
                                                {"<user>", &ChatTokens::user},
                                                {"<assistant>", &ChatTokens::assistant},
                                                {"<end_turn>", &ChatTokens::end_turn},
                                                {"<system>", &ChatTokens::system}}};

std::optional<TokenId> find(const Tokenizer& tokenizer, std::string_view name) {
  if (name == "<bos>" && tokenizer.special().bos)
    return tokenizer.special().bos;  // SentencePiece calls it <s>
  return special_with_name(tokenizer, name);
}

}  // namespace

TokenId bos_of(const Tokenizer& tokenizer) {
  const auto bos = tokenizer.special().bos;
  check(bos.has_value(), Hint{"train a tokenizer with `thimble tokenizer train`, or pass --tokenizer bytes"},
        "the tokenizer has no bos token, which must begin every document");
  return *bos;
}

std::optional<TokenId> special_with_name(const Tokenizer& tokenizer, std::string_view name) {
  const auto id = tokenizer.id_of(name);
  if (!id || tokenizer.token_type(*id) != TokenType::control) return std::nullopt;
  return id;
}

ChatTokens ChatTokens::of(const Tokenizer& tokenizer) {
  ChatTokens tokens;
  for (const NamedToken& token : kTokens) {
    const auto id = find(tokenizer, token.name);
    check(id.has_value(),
          Hint{"train a tokenizer with `thimble tokenizer train --chat`, or pass --tokenizer bytes:chat"},
          "the tokenizer has no special token {}, which is required for chats", token.name);
    tokens.*token.id = *id;
  }
  return tokens;
}

bool ChatTokens::in(const Tokenizer& tokenizer) {
  for (const NamedToken& token : kTokens)
    if (!find(tokenizer, token.name)) return false;
  return true;
}

TokenId ChatTokens::id_of(ChatRole role) const {
  switch (role) {
    case ChatRole::system:
      return system;
    case ChatRole::user:
      return user;
    case ChatRole::assistant:
      return assistant;
  }
  return -1;
}

namespace {

constexpr std::string_view kBosMark = "+bos";

constexpr std::array<std::string_view, 2> kChatmlTokens = {"<|im_start|>", "<|im_end|>"};
constexpr std::array<std::string_view, 3> kLlama3Tokens = {"<|start_header_id|>", "<|end_header_id|>",
                                                           "<|eot_id|>"};

void append(std::vector<TokenId>& to, std::span<const TokenId> ids) {
  to.insert(to.end(), ids.begin(), ids.end());
}

}  // namespace

ChatLayoutText ChatLayoutText::parse(std::string_view text) {
  ChatLayoutText out;
  const std::size_t colon = text.find(':');
  std::string_view name = text.substr(0, colon);
  if (colon != std::string_view::npos)
    (name == kJinjaLayout ? out.jinja : out.default_system) = text.substr(colon + 1);
  out.bos = name.ends_with(kBosMark);
  if (out.bos) name.remove_suffix(kBosMark.size());
  out.name = name;
  return out;
}

std::string ChatLayoutText::text() const {
  const std::string& rest = name == kJinjaLayout ? jinja : default_system;
  return name + (bos ? std::string(kBosMark) : "") + (rest.empty() ? "" : ":" + rest);
}

ChatLayout::ChatLayout(const Tokenizer& tokenizer, std::string_view text)
    : tokenizer_(&tokenizer), text_(ChatLayoutText::parse(text)) {
  if (text_.name == kJinjaLayout && !text_.jinja.empty()) {
    use_template(text_.jinja);
  } else if (text_.name == kRolesLayout) {
    kind_ = Kind::roles;
    roles_ = ChatTokens::of(tokenizer);
    end_ = roles_.end_turn;
    start_ = {roles_.bos};
    answer_start_ = {roles_.assistant};
  } else if (text_.name == "chatml") {
    if (!has_tokens(kChatmlTokens)) {
      use_template(jinja_template(text_));
      return;
    }
    kind_ = Kind::chatml;
    open_ = special("<|im_start|>");
    end_ = special("<|im_end|>");
    if (text_.bos) start_ = {bos_of(tokenizer)};
    newline_ = tokenizer.encode("\n");
    answer_start_ = {open_};
    tokenizer.encode("assistant\n", answer_start_);
  } else if (text_.name == "llama3") {
    if (!has_tokens(kLlama3Tokens)) {
      use_template(jinja_template(text_));
      return;
    }
    kind_ = Kind::llama3;
    open_ = special("<|start_header_id|>");
    close_header_ = special("<|end_header_id|>");
    end_ = special("<|eot_id|>");
    start_ = {bos_of(tokenizer)};
    answer_start_ = {open_};
    tokenizer.encode("assistant", answer_start_);
    answer_start_.push_back(close_header_);
    tokenizer.encode("\n\n", answer_start_);
  } else {
    fail(Hint{"use `thimble generate`, which needs no chat layout"},
         "expected the chat layout roles, chatml or llama3, found '{}'", text_.name);
  }
}

bool ChatLayout::has_tokens(std::span<const std::string_view> names) {
  for (const std::string_view name : names)
    if (!special_with_name(*tokenizer_, name)) missing_.emplace_back(name);
  return missing_.empty();
}

std::string ChatLayout::warning() const {
  if (missing_.empty()) return "";
  return fmt::format(
      "the chat template uses {}, which the tokenizer lacks: encoded as ordinary text, the answers may be "
      "poor",
      joined(missing_, ", "));
}

TokenId ChatLayout::special(std::string_view name) const {
  const auto id = special_with_name(*tokenizer_, name);
  check(id.has_value(), "the tokenizer has no special token {}, which the chat layout {} requires", name,
        text_.name);
  return *id;
}

// The text after a special token is encoded in one call, the same as encoding a rendered template:
// "\n" and a content that begins with a newline may become one token.
void ChatLayout::append_turn(const Turn& turn, std::vector<TokenId>& ids) const {
  switch (kind_) {
    case Kind::roles:
      ids.push_back(roles_.id_of(turn.role));
      tokenizer_->encode(turn.content, ids);
      ids.push_back(end_);
      return;
    case Kind::chatml:
      ids.push_back(open_);
      tokenizer_->encode(fmt::format("{}\n{}", name_of(turn.role), turn.content), ids);
      ids.push_back(end_);
      append(ids, newline_);
      return;
    case Kind::llama3:
      ids.push_back(open_);
      tokenizer_->encode(name_of(turn.role), ids);
      ids.push_back(close_header_);
      tokenizer_->encode(fmt::format("\n\n{}", trim(turn.content)), ids);
      ids.push_back(end_);
      return;
    case Kind::jinja:
      fail("a chat template renders whole conversations, not turns");
  }
}

std::vector<TokenId> ChatLayout::turn(const Turn& turn) const {
  std::vector<TokenId> ids;
  append_turn(turn, ids);
  return ids;
}

Conversation ChatLayout::completed(std::span<const Turn> turns) const {
  Conversation out;
  if (!text_.default_system.empty() && (turns.empty() || turns.front().role != ChatRole::system))
    out.push_back({ChatRole::system, text_.default_system});
  out.insert(out.end(), turns.begin(), turns.end());
  return out;
}

std::vector<TokenId> ChatLayout::conversation(std::span<const Turn> turns) const {
  if (is_template()) return rendered_ids(messages_json(turns), {}, false);
  std::vector<TokenId> ids = start_;
  if (text_.default_system.empty())
    for (const Turn& turn : turns) append_turn(turn, ids);
  else
    for (const Turn& turn : completed(turns)) append_turn(turn, ids);
  return ids;
}

std::vector<TokenId> ChatLayout::prompt(std::span<const Turn> turns) const {
  if (is_template()) return rendered_ids(messages_json(turns), {}, true);
  std::vector<TokenId> ids = conversation(turns);
  append(ids, answer_start_);
  return ids;
}

namespace {

// The layout whose marks a template contains; empty if there is none.
std::string_view layout_with_marks_of(std::string_view jinja) {
  const auto has = [&](std::string_view mark) { return jinja.find(mark) != jinja.npos; };
  if (has("<|im_start|>") && has("<|im_end|>")) return "chatml";
  if (has("<|start_header_id|>") && has("<|eot_id|>")) return "llama3";
  if (has("<assistant>") && has("<end_turn>")) return kRolesLayout;
  return "";
}

// The content of a Jinja string literal after its opening quote, with escapes resolved.
struct Literal {
  std::string text;
  bool closed = false;  // has a closing quote
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

// The system prompt used if the conversation has none. Searches '<|im_start|>system\nYou are a
// helpful assistant.<|im_end|>' in a single literal; a literal that ends earlier is concatenated
// with other text and is not a default. Also searches LLaMA-Factory's {% set system_message = 'You
// are a helpful assistant.' %}.
std::string default_system(std::string_view jinja) {
  constexpr std::string_view kBegin = "<|im_start|>system\\n", kEnd = "<|im_end|>",
                             kSet = "set system_message = ";
  for (std::size_t at = jinja.find(kBegin); at != jinja.npos; at = jinja.find(kBegin, at + 1)) {
    const std::string_view behind = jinja.substr(at + kBegin.size());
    if (at == 0 || !is_quote(jinja[at - 1]) || behind.find(kEnd) == behind.npos) continue;
    const Literal literal = literal_in(behind.substr(0, behind.find(kEnd)), jinja[at - 1]);
    if (!literal.closed && !literal.text.empty()) return literal.text;
  }
  for (std::size_t at = jinja.find(kSet); at != jinja.npos; at = jinja.find(kSet, at + 1)) {
    const std::string_view behind = jinja.substr(at + kSet.size());
    if (behind.empty() || !is_quote(behind.front())) continue;
    const Literal literal = literal_in(behind.substr(1), behind.front());
    if (literal.closed) return literal.text;
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

// Builds a template from a prefix, the expression for one message, and the start of an answer.
std::string template_of(std::string_view before, std::string_view message, std::string_view answer) {
  return fmt::format(
      "{}{{% for message in messages %}}"
      "{{% if message['role'] not in ['system', 'user', 'assistant'] %}}"
      "{{{{ raise_exception('expected the role system, user or assistant') }}}}{{% endif %}}"
      "{{{{ {} }}}}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ {} }}}}{{% endif %}}",
      before, message, answer);
}

}  // namespace

namespace {

// Whether two templates render some typical conversations to the same text.
bool render_the_same(const JinjaTemplate& a, const JinjaTemplate& b) {
  const Turn system{ChatRole::system, " S\n"}, user{ChatRole::user, "\nU 1 "},
      answer{ChatRole::assistant, "A\n"};
  const std::vector<Conversation> conversations = {
      {user}, {system, user}, {user, answer, user}, {system, user, answer, user, answer}};
  for (const Conversation& turns : conversations)
    for (const bool prompt : {true, false}) {
      const Json variables = Json::object()
                                 .set("messages", messages_json(turns))
                                 .set("bos_token", "<bos>")
                                 .set("eos_token", "<eos>")
                                 .set("add_generation_prompt", prompt);
      if (a.render(variables) != b.render(variables)) return false;
    }
  return true;
}

}  // namespace

std::string layout_of_template(std::string_view jinja) {
  ChatLayoutText layout{.name = std::string(layout_with_marks_of(jinja))};
  const ChatLayoutText own{.name = std::string(kJinjaLayout), .jinja = std::string(jinja)};
  if (layout.name.empty()) return own.text();
  if (layout.name == "chatml") {
    layout.bos = jinja.find("bos_token") != jinja.npos;
    layout.default_system = default_system(jinja);
  }
  std::optional<JinjaTemplate> parsed;
  try {
    parsed.emplace(jinja);
  } catch (const Error&) {
    return layout.text();
  }
  if (jinja.find("tools") != jinja.npos) return own.text();
  try {
    return render_the_same(*parsed, JinjaTemplate(jinja_template(layout))) ? layout.text() : own.text();
  } catch (const Error&) {
    return own.text();
  }
}

std::string layout_summary(std::string_view text) {
  const ChatLayoutText layout = ChatLayoutText::parse(text);
  if (layout.name != kJinjaLayout) return std::string(text);
  return fmt::format("jinja (a template of {} bytes)", layout.jinja.size());
}

std::string jinja_template(const ChatLayoutText& layout) {
  constexpr std::string_view kBos = "{{ bos_token }}";
  if (layout.name == kJinjaLayout) return layout.jinja;
  if (layout.name == kRolesLayout)
    return template_of(kBos, "'<' + message['role'] + '>' + message['content'] + '<end_turn>'",
                       "'<assistant>'");
  if (layout.name == "llama3")
    return template_of(
        kBos,
        "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + "
        "'<|eot_id|>'",
        "'<|start_header_id|>assistant<|end_header_id|>\\n\\n'");
  check(layout.name == "chatml", "the chat layout '{}' has no Jinja template", layout.name);
  std::string before = layout.bos ? std::string(kBos) : "";
  if (!layout.default_system.empty())
    before +=
        fmt::format("{{% if not messages or messages[0]['role'] != 'system' %}}{{{{ {} }}}}{{% endif %}}",
                    jinja_literal("<|im_start|>system\n" + layout.default_system + "<|im_end|>\n"));
  return template_of(before,
                     "'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n'",
                     "'<|im_start|>assistant\\n'");
}

}  // namespace thimble
