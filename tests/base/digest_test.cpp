#include "base/digest.h"

namespace thimble {
namespace {

// Expected values: `printf TEXT | xxhsum -H2`.
TEST(Digest, MatchesXxhsum) {
  EXPECT_EQ(digest_of(std::string_view{}).hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(digest_of("thimble").hex(), "8185d8699743bce235cec13556e6ac60");
}

TEST(Digest, IncrementalDigestEqualsTheDigestOfTheWholeText) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 37);
  for (std::size_t piece : {1u, 7u, 64u, 255u, 1024u, 4999u}) {
    Digester digester;
    for (std::size_t at = 0; at < text.size(); at += piece)
      digester.add(std::string_view(text).substr(at, piece));
    EXPECT_EQ(digester.result(), digest_of(text)) << piece;
  }
}

TEST(Digest, ChangesWhenOneBitIsFlipped) {
  std::string text(300, 'x');
  const Digest before = digest_of(text);
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] ^= 1;
    EXPECT_NE(digest_of(text), before) << i;
    text[i] ^= 1;
  }
}

}  // namespace
}  // namespace thimble
