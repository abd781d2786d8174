#include "serve/messages.h"

#include <fmt/format.h>

#include "serve/api_error.h"
#include "serve/fields.h"

namespace thimble {

namespace {

constexpr std::size_t kMostMessages = 10000;
constexpr std::size_t kLongestRoleShown = 40;

ChatRole parse_role(Fields& message) {
  const std::string name = message.full_name("role");
  const auto role = message.string("role");
  if (!role) throw bad_field(name, fmt::format("{} is required", name));
  if (*role == "system" || *role == "developer") return ChatRole::system;
  if (*role == "user") return ChatRole::user;
  if (*role == "assistant") return ChatRole::assistant;
  throw bad_field(name, fmt::format("{} must be system, user or assistant, got '{}'", name,
                                    role->substr(0, kLongestRoleShown)));
}

std::string parse_part(const Json& json, const std::string& name) {
  Fields part(json, name + ".");
  const auto type = part.string("type");
  if (type != "text")
    throw bad_field(name + ".type", fmt::format("{}.type must be 'text': nothing else is supported", name));
  const auto text = part.string("text");
  if (!text) throw bad_field(name + ".text", fmt::format("{}.text is required", name));
  part.finish();
  return *text;
}

std::string parse_content(Fields& message) {
  const std::string name = message.full_name("content");
  const Json& content = message.required("content");
  if (content.is_string()) return content.as_string();
  if (!content.is_array())
    throw bad_field(
        name, fmt::format("{} must be a string or an array of text parts, got {}", name, kind_of(content)));
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i)
    text += parse_part(content.as_array()[i], fmt::format("{}[{}]", name, i));
  return text;
}

}  // namespace

Conversation parse_messages(Fields& fields) {
  const Json& messages = fields.required("messages");
  if (!messages.is_array())
    throw bad_field("messages", fmt::format("messages must be an array, got {}", kind_of(messages)));
  if (messages.size() == 0) throw bad_field("messages", "messages must not be empty");
  if (messages.size() > kMostMessages)
    throw bad_field("messages",
                    fmt::format("messages must hold at most {}, got {}", kMostMessages, messages.size()));
  Conversation turns;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Fields message(messages.as_array()[i], fmt::format("messages[{}].", i));
    const ChatRole role = parse_role(message);
    std::string content = parse_content(message);
    if (content.empty() && role == ChatRole::user)
      throw bad_field(message.full_name("content"),
                      fmt::format("{} must not be empty", message.full_name("content")));
    constexpr std::string_view kUnsupported[] = {"name",    "tool_calls", "tool_call_id",     "function_call",
                                                 "refusal", "audio",      "reasoning_content"};
    message.finish(kUnsupported);
    turns.push_back({role, std::move(content)});
  }
  if (turns.back().role == ChatRole::assistant)
    throw bad_field("messages", "messages must not end with the assistant's: its answer is what comes next");
  return turns;
}

}  // namespace thimble
