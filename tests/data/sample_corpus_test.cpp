#include "data/sample/corpus.h"

#include <algorithm>
#include <set>

#include "base/digest.h"
#include "base/error.h"

namespace thimble::sample {
namespace {

std::string corpus(const CorpusOptions& options, CorpusSize* size = nullptr) {
  std::string text;
  const CorpusSize made = write_corpus(options, [&](std::string_view piece) { text += piece; });
  EXPECT_EQ(made.bytes, text.size());
  if (size) *size = made;
  return text;
}

TEST(SampleCorpus, HasTheRequestedSize) {
  CorpusSize size;
  const std::string chats = corpus({.count = 300}, &size);
  EXPECT_EQ(size.documents, 300u);
  EXPECT_EQ(std::ranges::count(chats, '\n'), 300);
  for (CorpusKind kind : {CorpusKind::chat, CorpusKind::tales}) {
    const std::string text = corpus({.kind = kind, .bytes = 50'000}, &size);
    EXPECT_GE(text.size(), 50'000u);
    EXPECT_LT(text.size(), 52'000u);
  }
  EXPECT_THROW(corpus({}), Error);
}

TEST(SampleCorpus, LongerCorpusBeginsWithTheShorterOne) {
  for (CorpusKind kind : {CorpusKind::chat, CorpusKind::tales})
    for (Split split : {Split::train, Split::heldout}) {
      const std::string small = corpus({.kind = kind, .split = split, .seed = 3, .count = 50});
      EXPECT_TRUE(corpus({.kind = kind, .split = split, .seed = 3, .count = 500}).starts_with(small));
    }
}

TEST(SampleCorpus, TalesEndWithEndOfText) {
  const std::string tales = corpus({.kind = CorpusKind::tales, .count = 3});
  std::size_t ends = 0;
  for (std::size_t at = 0; (at = tales.find("\n<|endoftext|>\n", at)) != std::string::npos; ++at) ++ends;
  EXPECT_EQ(ends, 3u);
}

TEST(SampleCorpus, HeldOutPromptsAreUnique) {
  const std::string chats = corpus({.split = Split::heldout, .count = 3'000});
  std::set<std::string_view> lines;
  for (std::string_view rest = chats; !rest.empty(); rest.remove_prefix(rest.find('\n') + 1))
    EXPECT_TRUE(lines.insert(rest.substr(0, rest.find('\n'))).second);
  EXPECT_EQ(lines.size(), 3'000u);
}

TEST(SampleTales, TellOnlyFactsOfTheirSplit) {
  for (std::uint64_t i = 0; i < 500; ++i)
    for (Split split : {Split::train, Split::heldout}) {
      const Tale tale = make_tale(split, 9, i);
      EXPECT_FALSE(tale.facts.empty());
      for (const std::string& fact : tale.facts) EXPECT_EQ(split_of(fact), split) << fact;
      EXPECT_EQ(tale.text.find_first_of("{}\n"), std::string::npos) << tale.text;
    }
}

// The corpus must never change, so that exact-match results stay comparable between versions.
TEST(SampleCorpus, ContentMatchesFixedDigests) {
  const auto digest = [](CorpusKind kind, Split split) {
    return digest_of(corpus({.kind = kind, .split = split, .seed = 1337, .count = 1'000})).hex();
  };
  EXPECT_EQ(digest(CorpusKind::chat, Split::train), "4467187ae14008eef78be457fb90b562");
  EXPECT_EQ(digest(CorpusKind::chat, Split::heldout), "01a0e7387e3b36c2966119b1124011ce");
  EXPECT_EQ(digest(CorpusKind::tales, Split::train), "ad83b97fb0cb0478214a6872182b7c63");
  EXPECT_EQ(digest(CorpusKind::tales, Split::heldout), "3328a20b8b4543470118753dd73f5b62");
}

}  // namespace
}  // namespace thimble::sample
