// The built-in corpus as a file: tales as text separated by `<|endoftext|>`, chats as JSON lines.
//
//   write_corpus({.kind = CorpusKind::chat, .split = Split::heldout, .count = 1000},
//                [&](std::string_view text) {...});
//
// The same options give the same bytes everywhere. A longer corpus begins with the shorter one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/sample/scenes.h"
#include "data/sample/world.h"

namespace thimble::sample {

enum class CorpusKind { tales, chat };

// The corpus ends with the document that reaches the first limit. At least one limit must be given.
struct CorpusOptions {
  CorpusKind kind = CorpusKind::chat;
  Split split = Split::train;
  std::uint64_t seed = 0;
  std::uint64_t count = 0;  // documents
  std::uint64_t bytes = 0;
};

struct CorpusSize {
  std::uint64_t documents = 0, bytes = 0;
};

// Prompts of the held-out split are unique. Throws if the split has no further unique prompt.
CorpusSize write_corpus(const CorpusOptions& options, const std::function<void(std::string_view)>& write);

// Short tales of the small world, used as training text.
struct Tale {
  std::string text;                // one paragraph
  std::vector<std::string> facts;  // every fact told in it
};

// Tale `index` of a corpus.
Tale make_tale(Split split, std::uint64_t seed, std::uint64_t index);

// Conversations about the small world.
struct Chat {
  std::vector<Exchange> exchanges;  // user question, assistant answer
  std::vector<std::string> facts;   // every fact told in it

  std::string json() const;    // {"messages": [{"role": "user", "content": ...}, ...]}
  std::string prompt() const;  // everything before the last answer; identifies the chat
};

// Chat `index` of a corpus. Held-out chats end with a question about held-out facts.
Chat make_chat(Split split, std::uint64_t seed, std::uint64_t index);

}  // namespace thimble::sample
