// A conversation, and the JSON forms in which people keep them:
//
//   [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
//   {"messages": [{"role": .., "content": ..}, ..]}
//   {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]}
//   {"instruction": "Add.", "input": "1 2", "output": "3"}                                  (Alpaca)
#pragma once

#include <cstddef>

#include "tokenizer/chat_layout.h"

namespace thimble {

class Json;

// Is it in one of those forms, whatever may be wrong inside?
bool looks_like_conversation(const Json& json);

// Unknown roles, and contents that are missing or not text, are errors that say which turn.
Conversation parse_conversation(const Json& json);

// The second of the forms above.
Json conversation_json(const Conversation& conversation);

// Takes away the turns behind the assistant's last: nobody answers them. Says how many went; without an
// assistant those are all.
std::size_t cut_to_last_answer(Conversation& conversation);

}  // namespace thimble
