// The part of ChatLayout that renders a model's own Jinja template: prompts, tools, and which
// tokens of a conversation are learned.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "base/utf8.h"
#include "tokenizer/chat_layout.h"

namespace thimble {

Json messages_json(std::span<const Turn> turns) {
  Json messages = Json::array();
  for (const Turn& turn : turns)
    messages.push(Json::object().set("role", name_of(turn.role)).set("content", turn.content));
  return messages;
}

namespace {

constexpr std::string_view kProbe = "thimble7probe";

// Noncharacters of Unicode, which no text needs, mark places in contents.
constexpr std::string_view kTyped = "\xEF\xB7\x90";      // U+FDD0, in a control token that was typed
constexpr std::string_view kBegin = "\xEF\xB7\x91";      // U+FDD1, before an answer
constexpr std::string_view kEnd = "\xEF\xB7\x92";        // U+FDD2, after it
constexpr std::string_view kNumberEnd = "\xEF\xB7\x93";  // U+FDD3, after the number of an answer
constexpr char32_t kDigits = 0xFDE0;                     // to U+FDEF

void append_ids(std::vector<TokenId>& to, std::span<const TokenId> ids) {
  to.insert(to.end(), ids.begin(), ids.end());
}

std::string replaced_text(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (std::size_t found; (found = text.find(from)) != text.npos; text.remove_prefix(found + from.size()))
    out.append(text.substr(0, found)).append(to);
  return out.append(text);
}

// A copy with every text and key replaced by use(text), except roles, which templates compare.
Json with_texts(const Json& value, const std::function<std::string(const std::string&)>& use) {
  if (value.is_string()) return use(value.as_string());
  if (value.is_array()) {
    Json out = Json::array();
    for (const Json& item : value.as_array()) out.push(with_texts(item, use));
    return out;
  }
  if (!value.is_object()) return value;
  Json out = Json::object();
  for (const auto& [key, member] : value.as_object())
    out.set(use(key), key == "role" ? member : with_texts(member, use));
  return out;
}

bool any_text(const Json& value, const std::function<bool(std::string_view)>& is) {
  if (value.is_string()) return is(value.as_string());
  if (value.is_array())
    return std::ranges::any_of(value.as_array(), [&](const Json& item) { return any_text(item, is); });
  if (!value.is_object()) return false;
  const Json::Object& members = value.as_object();
  return std::any_of(members.begin(), members.end(), [&](const JsonObject::Member& member) {
    return is(member.first) || any_text(member.second, is);
  });
}

// Removes marks that were typed, before anything else: without them, the text may be a token.
Json without_typed_marks(const Json& input) {
  if (!any_text(input, [](std::string_view text) { return text.find(kTyped) != text.npos; })) return input;
  return with_texts(input, [](const std::string& text) { return replaced_text(text, kTyped, ""); });
}

// The part between angle brackets with bars, such as <|im_start|>, at or after `from`; empty if
// there is none. Published templates write special tokens like this.
std::string_view token_like(std::string_view text, std::size_t from) {
  for (std::size_t open = text.find("<|", from); open != text.npos; open = text.find("<|", open + 1)) {
    const std::size_t close = text.find("|>", open + 2);
    if (close == text.npos) return {};
    const std::string_view found = text.substr(open, close + 2 - open);
    if (found.size() <= 64 && found.find_first_of(" \n<", 1) == found.npos) return found;
  }
  return {};
}

}  // namespace

void ChatLayout::use_template(std::string_view jinja) {
  kind_ = Kind::jinja;
  template_.emplace(jinja);
  for (const auto& [name, id] : tokenizer_->special_tokens())
    if (!name.empty()) control_.push_back(name);
  try {
    const std::string text = rendered(Conversation{{ChatRole::user, std::string(kProbe)}}, true);
    for (std::string_view found = token_like(text, 0); !found.empty();
         found = token_like(text, static_cast<std::size_t>(found.data() - text.data()) + found.size()))
      if (!tokenizer_->id_of(found) && std::ranges::find(missing_, found) == missing_.end())
        missing_.emplace_back(found);
  } catch (const Error&) {
    // The template rejects this conversation; it may accept others.
  }
  const std::optional<TokenId> end = end_of_rendered_turn();
  ends_turns_ = end.has_value();
  const SpecialIds& special = tokenizer_->special();
  end_ = end.value_or(special.eos.value_or(special.bos.value_or(0)));
}

// The first control token after an answer; nullopt if the template writes none there.
std::optional<TokenId> ChatLayout::end_of_rendered_turn() const {
  try {
    const std::string text = rendered(
        Conversation{{ChatRole::user, "question"}, {ChatRole::assistant, std::string(kProbe)}}, false);
    const std::size_t at = text.rfind(kProbe);
    if (at == text.npos) return std::nullopt;
    for (const TokenId id : tokenizer_->encode(text.substr(at + kProbe.size()), {.trusted = true}))
      if (tokenizer_->token_type(id) == TokenType::control) return id;
  } catch (const Error&) {
    // As above.
  }
  return std::nullopt;
}

std::string ChatLayout::render(const Json& messages, const Json& tools, bool with_prompt,
                               const JinjaOptions& options) const {
  Json variables = Json::object();
  const SpecialIds& special = tokenizer_->special();
  if (special.bos) variables.set("bos_token", tokenizer_->token_text(*special.bos));
  if (special.eos) variables.set("eos_token", tokenizer_->token_text(*special.eos));
  if (!tools.is_null()) variables.set("tools", tools);
  return template_->render(variables.set("messages", messages).set("add_generation_prompt", with_prompt),
                           options);
}

std::string ChatLayout::rendered(std::span<const Turn> turns, bool with_prompt) const {
  return render(messages_json(turns), {}, with_prompt);
}

// --- control tokens that were typed ---

// A template joins contents and special tokens in one text, so a control token that a user typed
// could not be told from one of the template. Each such spelling gets a mark after its first
// character before rendering, and is afterwards encoded without the mark as plain text.
std::vector<ChatLayout::TypedToken> ChatLayout::typed_in(const Json& messages, const Json& tools) const {
  std::vector<TypedToken> typed;
  for (const std::string& name : control_) {
    const auto has = [&](std::string_view text) { return text.find(name) != text.npos; };
    if (!any_text(messages, has) && !any_text(tools, has)) continue;
    const std::size_t first = decode_utf8(name.data(), name.data() + name.size()).bytes;
    typed.push_back({name, name.substr(0, first) + std::string(kTyped) + name.substr(first)});
  }
  // Longer names first: one may contain another.
  std::ranges::sort(typed,
                    [](const TypedToken& a, const TypedToken& b) { return a.name.size() > b.name.size(); });
  return typed;
}

Json ChatLayout::masked(const Json& input, std::span<const TypedToken> typed) {
  if (typed.empty()) return input;
  return with_texts(input, [&](std::string text) {
    for (const TypedToken& one : typed) text = replaced_text(text, one.name, one.marked);
    return text;
  });
}

std::vector<TokenId> ChatLayout::encode_rendered(std::string_view text,
                                                 std::span<const TypedToken> typed) const {
  std::vector<TokenId> ids;
  for (std::size_t at = 0;;) {
    std::size_t next = text.size();
    const TypedToken* found = nullptr;
    for (const TypedToken& one : typed)
      if (const std::size_t place = text.find(one.marked, at); place < next) {
        next = place;
        found = &one;
      }
    // A mark that the template has separated from its token stays a border: what it separates must
    // not become a token.
    for (std::string_view part = text.substr(at, next - at); !part.empty();) {
      const std::size_t end = std::min(part.find(kTyped), part.size());
      tokenizer_->encode(part.substr(0, end), ids, {.trusted = true});
      part.remove_prefix(std::min(end + kTyped.size(), part.size()));
    }
    if (!found) return ids;
    tokenizer_->encode(found->name, ids);
    at = next + found->marked.size();
  }
}

std::vector<TokenId> ChatLayout::rendered_ids(const Json& given, const Json& given_tools,
                                              bool with_prompt) const {
  const Json messages = without_typed_marks(given), tools = without_typed_marks(given_tools);
  const std::vector<TypedToken> typed = typed_in(messages, tools);
  return encode_rendered(render(masked(messages, typed), masked(tools, typed), with_prompt), typed);
}

namespace {

// The messages with the arguments of tool calls as JSON text.
Json with_argument_texts(const Json& value) {
  if (value.is_array()) {
    Json out = Json::array();
    for (const Json& item : value.as_array()) out.push(with_argument_texts(item));
    return out;
  }
  if (!value.is_object()) return value;
  Json out = Json::object();
  for (const auto& [key, member] : value.as_object())
    out.set(key, key == "arguments" && member.is_object()   ? Json(member.dump())
                 : key == "tool_calls" || key == "function" ? with_argument_texts(member)
                                                            : member);
  return out;
}

}  // namespace

std::vector<TokenId> ChatLayout::prompt_with_tools(const Json& messages, const Json& tools) const {
  check(takes_tools(), "the model's chat template takes no tools");
  try {
    return rendered_ids(messages, tools, true);
  } catch (const Error& error) {
    // Some templates join the arguments of a call as JSON text to other texts, which OpenAI's API
    // has, too; others need the object.
    const Json as_text = with_argument_texts(messages);
    if (error.field() != "chat_template" || as_text == messages) throw;
    return rendered_ids(as_text, tools, true);
  }
}

bool ChatLayout::takes_tools() const {
  return is_template() && text_.jinja.find("tools") != text_.jinja.npos;
}

// --- what is learned of a conversation ---

namespace {

std::string numbered(std::string_view mark, std::size_t number) {
  std::string out(mark);
  do append_utf8(out, kDigits + static_cast<char32_t>(number % 16));
  while ((number /= 16) > 0);
  return out.append(kNumberEnd);
}

// The number of a mark at `at`, which is moved behind it.
std::size_t number_at(std::string_view text, std::size_t& at) {
  std::size_t number = 0, unit = 1;
  while (at < text.size() && !text.substr(at).starts_with(kNumberEnd)) {
    const Utf8Char digit = decode_utf8(text.data() + at, text.data() + text.size());
    if (digit.code < kDigits || digit.code > kDigits + 15 || unit > (1u << 24)) return SIZE_MAX;
    number += unit * (digit.code - kDigits);
    unit *= 16;
    at += digit.bytes;
  }
  at += kNumberEnd.size();
  return number;
}

// Where the contents of the answers are in a rendered text.
struct ContentPlace {
  std::optional<std::size_t> begin = {}, end = {};
};

// Puts marks around the content of each answer, inside of white space, which templates may trim.
Json with_answers_marked(const Json& messages) {
  Json out = Json::array();
  std::size_t number = 0;
  for (const Json& message : messages.as_array()) {
    if (message.at("role").as_string() != name_of(ChatRole::assistant)) {
      out.push(message);
      continue;
    }
    const std::string& content = message.at("content").as_string();
    const std::string_view text = trim(content);
    Json marked = message;
    if (!text.empty()) {
      const auto begin = static_cast<std::size_t>(text.data() - content.data());
      marked.set("content", content.substr(0, begin) + numbered(kBegin, number) + std::string(text) +
                                numbered(kEnd, number) + content.substr(begin + text.size()));
    }
    out.push(std::move(marked));
    ++number;
  }
  return out;
}

// Removes the marks. Returns nullopt if one is damaged or occurs twice.
std::optional<std::vector<ContentPlace>> take_marks(std::string& text, std::size_t answers) {
  std::vector<ContentPlace> places(answers);
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = std::string_view(text).substr(at);
    const bool begins = rest.starts_with(kBegin);
    if (!begins && !rest.starts_with(kEnd)) {
      out += text[at++];
      continue;
    }
    at += kBegin.size();
    const std::size_t number = number_at(text, at);
    if (number >= answers) return std::nullopt;
    std::optional<std::size_t>& place = begins ? places[number].begin : places[number].end;
    if (place) return std::nullopt;
    place = out.size();
  }
  text = std::move(out);
  return places;
}

// Sorted, not overlapping parts of a text.
using Spans = std::vector<std::pair<std::size_t, std::size_t>>;

// The spans of {% generation %} blocks. Removes their marks.
Spans take_generations(std::string& text) {
  Spans spans;
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = std::string_view(text).substr(at);
    if (rest.starts_with(kBegin)) {
      spans.emplace_back(out.size(), out.size());
    } else if (rest.starts_with(kEnd) && !spans.empty()) {
      spans.back().second = out.size();
    } else {
      out += text[at++];
      continue;
    }
    at += kBegin.size();
  }
  text = std::move(out);
  std::erase_if(spans, [](const auto& span) { return span.first >= span.second; });
  return spans;
}

[[noreturn]] void fail_to_split(std::string_view why) {
  fail(
      Hint{
          "use a template with {% generation %} blocks around what the assistant writes, or train in another "
          "layout with --layout"},
      "the chat template cannot be divided into answers and the rest: {}", why);
}

}  // namespace

// Finds the answers in a rendered conversation. An answer begins where the prompt for it ends, so
// that text which the template writes between the prompt and the content is learned too.
class ChatLayout::AnswerFinder {
 public:
  AnswerFinder(const ChatLayout& layout, const Json& messages)
      : layout_(layout), messages_(messages), text_(layout.render(messages, {}, false)) {
    for (std::size_t i = 0; i < messages.size(); ++i)
      if (messages.as_array()[i].at("role").as_string() == name_of(ChatRole::assistant))
        answers_.push_back(i);
  }

  const std::string& text() const { return text_; }

  Spans spans() const {
    if (layout_.template_->has_generation()) return generations();
    check(layout_.ends_turns_, Hint{layout_.warning()},
          "the chat template writes no special token after an answer, so a model cannot learn to end one");
    if (answers_.empty()) return {};
    const std::vector<ContentPlace> places = contents();
    Spans spans;
    std::size_t from = 0;
    const std::string first = lead(0, places), last = lead(answers_.size() - 1, places);
    for (std::size_t i = 0; i < answers_.size(); ++i) {
      const std::size_t begin = begin_of(i, places[i], from, first, last);
      const std::size_t end = end_of(i, begin, places[i]);
      if (begin < from) fail_to_split(fmt::format("it writes message {} before an earlier one", answers_[i]));
      spans.emplace_back(begin, end);
      from = end;
    }
    return spans;
  }

 private:
  Spans generations() const {
    std::string text =
        layout_.render(messages_, {}, false, {.generation_begin = kBegin, .generation_end = kEnd});
    const Spans spans = take_generations(text);
    if (text != text_ || spans.empty())
      fail_to_split("the marks of its {% generation %} blocks do not reach the rendered text");
    return spans;
  }

  // Without places if marks change what the template writes.
  std::vector<ContentPlace> contents() const {
    std::string marked;
    try {
      marked = layout_.render(with_answers_marked(messages_), {}, false);
    } catch (const Error&) {
      return std::vector<ContentPlace>(answers_.size());
    }
    auto places = take_marks(marked, answers_.size());
    if (!places || marked != text_) return std::vector<ContentPlace>(answers_.size());
    return *places;
  }

  // The end of the prompt for an answer in the text, if the text begins with that prompt.
  std::optional<std::size_t> prompt_end(std::size_t answer) const {
    const Json::Array& all = messages_.as_array();
    const auto count = static_cast<std::ptrdiff_t>(answers_[answer]);
    try {
      const std::string prompt = layout_.render(Json::array({all.begin(), all.begin() + count}), {}, true);
      if (text_.starts_with(prompt)) return prompt.size();
    } catch (const Error&) {
      // The template rejects a conversation that ends here.
    }
    return std::nullopt;
  }

  // What the template writes between the prompt for an answer and the answer's content.
  std::string lead(std::size_t answer, std::span<const ContentPlace> places) const {
    const auto begin = places[answer].begin;
    if (!begin) return "";
    const auto prompt = prompt_end(answer);
    return prompt && *prompt <= *begin ? text_.substr(*prompt, *begin - *prompt) : "";
  }

  // A prompt is rendered for the first and the last answer only, because rendering one for each
  // would take quadratic time. The other answers have the lead of one of these.
  std::size_t begin_of(std::size_t answer, const ContentPlace& place, std::size_t from,
                       const std::string& first, const std::string& last) const {
    if (!place.begin) {
      const auto prompt = prompt_end(answer);
      if (!prompt)
        fail_to_split(fmt::format("the content of message {} is not in the text", answers_[answer]));
      return *prompt;
    }
    if (answer == 0) return *place.begin - first.size();
    if (answer + 1 == answers_.size()) return *place.begin - last.size();
    const std::string_view before = std::string_view(text_).substr(from, *place.begin - from);
    std::size_t most = 0;
    for (const std::string& one : {first, last})
      if (before.ends_with(one)) most = std::max(most, one.size());
    return *place.begin - most;
  }

  // After the token that ends the turn. Only white space may be between it and the content.
  std::size_t end_of(std::size_t answer, std::size_t begin, const ContentPlace& place) const {
    const std::string name = layout_.tokenizer_->token_text(layout_.end_);
    const std::size_t from = place.end.value_or(begin), found = text_.find(name, from);
    if (found == text_.npos)
      fail_to_split(fmt::format("{} does not follow message {}", name, answers_[answer]));
    if (place.end && !trim(std::string_view(text_).substr(from, found - from)).empty())
      fail_to_split(fmt::format("there is other text between message {} and {}", answers_[answer], name));
    return found + name.size();
  }

  const ChatLayout& layout_;
  const Json& messages_;
  std::string text_;
  std::vector<std::size_t> answers_;  // indices of messages
};

// The tokens of the text's spans. A token that crosses the begin of a span belongs to it: the text
// up to there is encoded otherwise on its own, as a prompt is.
std::vector<bool> ChatLayout::tokens_in(std::string_view text, std::span<const TypedToken> typed,
                                        std::span<const std::pair<std::size_t, std::size_t>> spans,
                                        std::span<const TokenId> ids) const {
  std::vector<std::size_t> cuts;
  for (const auto& [begin, end] : spans) cuts.insert(cuts.end(), {begin, end});
  // Usually the parts have the tokens of the whole. Then the ends of the parts are between tokens.
  std::vector<TokenId> parts;
  std::vector<std::size_t> places;
  std::size_t from = 0;
  for (const std::size_t cut : cuts) {
    append_ids(parts, encode_rendered(text.substr(from, cut - from), typed));
    places.push_back(parts.size());
    from = cut;
  }
  append_ids(parts, encode_rendered(text.substr(from), typed));
  if (!std::ranges::equal(parts, ids))
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      const std::vector<TokenId> before = encode_rendered(text.substr(0, cuts[i]), typed);
      places[i] = static_cast<std::size_t>(std::ranges::mismatch(before, ids).in1 - before.begin());
    }
  std::vector<bool> inside(ids.size());
  for (std::size_t i = 0; i + 1 < places.size(); i += 2)
    for (std::size_t at = places[i]; at < places[i + 1]; ++at) inside[at] = true;
  return inside;
}

LearnedConversation ChatLayout::learned(std::span<const Turn> turns) const {
  LearnedConversation out;
  if (!is_template()) {
    out.ids = start_;
    for (const Turn& turn : completed(turns)) {
      const std::size_t begin = out.ids.size();
      append_turn(turn, out.ids);
      out.learned.resize(out.ids.size());
      if (turn.role != ChatRole::assistant) continue;
      const auto own = std::span(out.ids).subspan(begin);
      const auto first = std::ranges::mismatch(answer_start_, own).in1 - answer_start_.begin();
      const auto last = std::ranges::find(own, end_) - own.begin();
      for (auto at = first; at <= last; ++at) out.learned[begin + static_cast<std::size_t>(at)] = true;
    }
    return out;
  }
  const Json messages = without_typed_marks(messages_json(turns));
  for (const std::string_view mark : {kBegin, kEnd, kNumberEnd})
    check(!any_text(messages, [&](std::string_view text) { return text.find(mark) != text.npos; }),
          "a message contains a noncharacter of Unicode (U+FDD1 to U+FDD3)");
  const std::vector<TypedToken> typed = typed_in(messages, {});
  const Json input = masked(messages, typed);
  const AnswerFinder finder(*this, input);
  out.ids = encode_rendered(finder.text(), typed);
  out.learned = tokens_in(finder.text(), typed, finder.spans(), out.ids);
  return out;
}

}  // namespace thimble
