#include "tokenizer/chat_layout.h"

#include <fmt/format.h>

#include <array>

#include "base/error.h"
#include "base/text.h"

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
  if (name == "<bos>" && tokenizer.special().bos) return tokenizer.special().bos;  // SentencePiece says <s>
  return special_with_name(tokenizer, name);
}

}  // namespace

TokenId bos_of(const Tokenizer& tokenizer) {
  const auto bos = tokenizer.special().bos;
  check(bos.has_value(), Hint{"train a tokenizer with `thimble tokenizer train`, or use --tokenizer bytes"},
        "the tokenizer has no bos token, with which documents begin");
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
    check(id.has_value(), Hint{"train one with `thimble tokenizer train --chat`, or use bytes:chat"},
          "the tokenizer has no special token {}, which chats need", token.name);
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

void append(std::vector<TokenId>& to, std::span<const TokenId> ids) {
  to.insert(to.end(), ids.begin(), ids.end());
}

}  // namespace

ChatLayoutText ChatLayoutText::parse(std::string_view text) {
  ChatLayoutText out;
  const std::size_t colon = text.find(':');
  if (colon != std::string_view::npos) out.default_system = text.substr(colon + 1);
  std::string_view name = text.substr(0, colon);
  out.bos = name.ends_with(kBosMark);
  if (out.bos) name.remove_suffix(kBosMark.size());
  out.name = name;
  return out;
}

std::string ChatLayoutText::text() const {
  return name + (bos ? std::string(kBosMark) : "") + (default_system.empty() ? "" : ":" + default_system);
}

ChatLayout::ChatLayout(const Tokenizer& tokenizer, std::string_view text)
    : tokenizer_(&tokenizer), text_(ChatLayoutText::parse(text)) {
  if (text_.name == kRolesLayout) {
    kind_ = Kind::roles;
    roles_ = ChatTokens::of(tokenizer);
    end_ = roles_.end_turn;
    start_ = {roles_.bos};
    answer_start_ = {roles_.assistant};
  } else if (text_.name == "chatml") {
    kind_ = Kind::chatml;
    open_ = special("<|im_start|>");
    end_ = special("<|im_end|>");
    if (text_.bos) start_ = {bos_of(tokenizer)};
    newline_ = tokenizer.encode("\n");
    answer_start_ = {open_};
    tokenizer.encode("assistant\n", answer_start_);
  } else if (text_.name == "llama3") {
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
    fail(Hint{"`thimble generate` continues a text without any layout"},
         "chats laid out as '{}' are not supported: expected roles, chatml or llama3", text_.name);
  }
}

TokenId ChatLayout::special(std::string_view name) const {
  const auto id = special_with_name(*tokenizer_, name);
  check(id.has_value(), "the tokenizer has no special token {}, which the chat layout {} needs", name,
        text_.name);
  return *id;
}

// The text behind a special token is encoded in one piece, as whoever renders a template and encodes it does:
// "\n" and a content that begins with a newline may be one token.
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
      tokenizer_->encode(fmt::format("\n\n{}", without_blanks(turn.content)), ids);
      ids.push_back(end_);
      return;
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
  std::vector<TokenId> ids = start_;
  if (text_.default_system.empty())
    for (const Turn& turn : turns) append_turn(turn, ids);
  else
    for (const Turn& turn : completed(turns)) append_turn(turn, ids);
  return ids;
}

std::vector<TokenId> ChatLayout::prompt(std::span<const Turn> turns) const {
  std::vector<TokenId> ids = conversation(turns);
  append(ids, answer_start_);
  return ids;
}

}  // namespace thimble
