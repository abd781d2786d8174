// The built-in corpus as a file: tales as text (`<|endoftext|>` between them), chats as JSON lines.
//
//   write_corpus({.kind = Kind::chat, .split = Split::heldout, .count = 1000}, [&](std::string_view text) {...});
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

// Ends with the document that reaches the first limit; one of them must be given.
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

// No two held-out documents ask the same: a held-out split that runs out of questions is an error.
CorpusSize write_corpus(const CorpusOptions& options, const std::function<void(std::string_view)>& write);

// Short tales of the small world: text to train on, pleasant to read.
struct Tale {
  std::string text;                // one paragraph
  std::vector<std::string> facts;  // all that was told in it
};

// Tale `index` of a corpus.
Tale make_tale(Split split, std::uint64_t seed, std::uint64_t index);

// Conversations of the built-in corpus.
struct Chat {
  std::vector<Exchange> exchanges;  // the user says, the assistant answers
  std::vector<std::string> facts;   // all that was told in it

  std::string json() const;    // {"messages": [{"role": "user", "content": ...}, ...]}
  std::string prompt() const;  // everything before the last answer, for telling chats apart
};

// Chat `index` of a corpus. In the held-out split the last question is always about held-out facts.
Chat make_chat(Split split, std::uint64_t seed, std::uint64_t index);

}  // namespace thimble::sample
