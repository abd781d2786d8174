// A conversation, and the JSON forms in which people keep them:
//
//   [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
//   {"messages": [{"role": .., "content": ..}, ..]}
//   {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]}
//   {"instruction": "Add.", "input": "1 2", "output": "3"}                                  (Alpaca)
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

class Json;

enum class ChatRole { system, user, assistant };
std::string_view name_of(ChatRole role);

struct Turn {
  ChatRole role;
  std::string content;
  bool operator==(const Turn&) const = default;
};
using Conversation = std::vector<Turn>;

// Is it in one of those forms, whatever may be wrong inside?
bool looks_like_conversation(const Json& json);

// Unknown roles, and contents that are missing or not text, are errors that say which turn.
Conversation parse_conversation(const Json& json);

// Takes away the turns behind the assistant's last: nobody answers them. Says how many went; without an
// assistant those are all.
std::size_t cut_to_last_answer(Conversation& conversation);

}  // namespace thimble
