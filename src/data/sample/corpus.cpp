#include "data/sample/corpus.h"

#include <string>
#include <unordered_set>

#include "base/digest.h"
#include "base/error.h"
#include "data/sample/chats.h"
#include "data/sample/tales.h"

namespace thimble::sample {

namespace {

constexpr std::size_t kWriteBytes = 1 << 20;
constexpr std::uint64_t kMaxRepeats = 10'000;  // in a row: then there is nothing new to ask

struct Document {
  std::string text;
  std::string asks;  // what makes it different from the others
};

Document make_document(const CorpusOptions& options, std::uint64_t index) {
  if (options.kind == CorpusKind::tales) {
    std::string text = make_tale(options.split, options.seed, index).text;
    return {text + "\n<|endoftext|>\n", text};
  }
  const Chat chat = make_chat(options.split, options.seed, index);
  return {chat.json() + "\n", chat.prompt()};
}

}  // namespace

CorpusSize write_corpus(const CorpusOptions& options, const std::function<void(std::string_view)>& write) {
  check(options.count > 0 || options.bytes > 0, "[sample] how long is the corpus to be?");
  CorpusSize size;
  std::string buffer;
  std::unordered_set<std::uint64_t> asked;
  const auto done = [&] {
    return (options.count > 0 && size.documents >= options.count) ||
           (options.bytes > 0 && size.bytes >= options.bytes);
  };
  for (std::uint64_t index = 0, repeats = 0; !done(); ++index) {
    const Document document = make_document(options, index);
    if (options.split == Split::heldout && !asked.insert(digest_of(document.asks).low).second) {
      check(++repeats < kMaxRepeats, Hint{"ask for fewer"},
            "the held-out split has no more than {} documents", size.documents);
      continue;
    }
    repeats = 0;
    buffer += document.text;
    size.bytes += document.text.size();
    ++size.documents;
    if (buffer.size() >= kWriteBytes) {
      write(buffer);
      buffer.clear();
    }
  }
  if (!buffer.empty()) write(buffer);
  return size;
}

}  // namespace thimble::sample
