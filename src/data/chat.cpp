#include "data/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"

namespace thimble {

namespace {

struct RoleName {
  std::string_view name;
  ChatRole role;
};
// "human" and "gpt" are ShareGPT's words.
constexpr std::array<RoleName, 5> kRoleNames = {{{"system", ChatRole::system},
                                                 {"user", ChatRole::user},
                                                 {"human", ChatRole::user},
                                                 {"assistant", ChatRole::assistant},
                                                 {"gpt", ChatRole::assistant}}};

ChatRole role_with_name(const std::string& name) {
  const auto found =
      std::ranges::find_if(kRoleNames, [&](const RoleName& known) { return known.name == name; });
  check(found != kRoleNames.end(), "unknown role \"{}\", expected system, user or assistant", name);
  return found->role;
}

const std::string& text_at(const Json& object, std::string_view key) {
  const Json& value = object.at(key);
  check(value.is_string(), "expected a text as \"{}\"", key);
  return value.as_string();
}

// ShareGPT's words are allowed in every form, and the other way round: files mix them.
Turn parse_turn(const Json& turn) {
  const bool share_gpt = turn.find("from") != nullptr;
  return {role_with_name(text_at(turn, share_gpt ? "from" : "role")),
          text_at(turn, share_gpt ? "value" : "content")};
}

Conversation parse_turns(const Json& turns) {
  Conversation conversation;
  for (const Json& turn : turns.as_array()) {
    try {
      conversation.push_back(parse_turn(turn));
    } catch (const Error& error) {
      fail("turn {}: {}", conversation.size() + 1, error.what());
    }
  }
  return conversation;
}

const Json* turns_in(const Json& object) {
  for (const std::string_view key : {"messages", "conversations", "conversation"})
    if (const Json* turns = object.find(key)) return turns;
  return nullptr;
}

Conversation parse_alpaca(const Json& example) {
  Conversation conversation;
  if (const Json* system = example.find("system");
      system && !system->is_null() && !system->as_string().empty())
    conversation.push_back({ChatRole::system, system->as_string()});
  if (const Json* history = example.find("history"); history && !history->is_null())
    for (const Json& round : history->as_array()) {
      check(round.size() == 2, "expected pairs of a question and an answer as \"history\"");
      conversation.push_back({ChatRole::user, round.as_array()[0].as_string()});
      conversation.push_back({ChatRole::assistant, round.as_array()[1].as_string()});
    }
  std::string question = text_at(example, "instruction");
  if (const Json* input = example.find("input"); input && !input->is_null() && !input->as_string().empty())
    question += "\n\n" + input->as_string();
  conversation.push_back({ChatRole::user, std::move(question)});
  conversation.push_back({ChatRole::assistant, text_at(example, "output")});
  return conversation;
}

}  // namespace

bool looks_like_conversation(const Json& json) {
  if (json.is_array()) return json.size() == 0 || json.as_array()[0].is_object();
  return turns_in(json) || (json.find("instruction") && json.find("output"));
}

Conversation parse_conversation(const Json& json) {
  if (json.is_array()) return parse_turns(json);
  if (const Json* turns = turns_in(json)) return parse_turns(*turns);
  check(json.find("instruction") != nullptr,
        Hint{"text is built without --chat; a chat is a list of {role, content}, or an object with "
             "\"messages\", \"conversations\", or \"instruction\" and \"output\""},
        "expected a chat");
  return parse_alpaca(json);
}

Json conversation_json(const Conversation& conversation) {
  Json messages = Json::array();
  for (const Turn& turn : conversation)
    messages.push(Json::object().set("role", name_of(turn.role)).set("content", turn.content));
  return Json::object().set("messages", std::move(messages));
}

std::size_t cut_to_last_answer(Conversation& conversation) {
  const auto last = std::find_if(conversation.rbegin(), conversation.rend(),
                                 [](const Turn& turn) { return turn.role == ChatRole::assistant; });
  const auto cut = static_cast<std::size_t>(last - conversation.rbegin());
  conversation.resize(conversation.size() - cut, Turn{ChatRole::user, {}});
  return cut;
}

}  // namespace thimble
