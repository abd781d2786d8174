// Conversations of the built-in corpus.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/sample/scene.h"

namespace thimble::sample {

struct Chat {
  std::vector<Exchange> exchanges;  // the user says, the assistant answers
  std::vector<std::string> facts;   // all that was told in it

  std::string json() const;    // {"messages": [{"role": "user", "content": ...}, ...]}
  std::string prompt() const;  // everything before the last answer, for telling chats apart
};

// Chat `index` of a corpus. In the held-out split the last question is always about held-out facts.
Chat make_chat(Split split, std::uint64_t seed, std::uint64_t index);

}  // namespace thimble::sample
