#include "data/read_order.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"

namespace thimble::read_order_packing_test {
namespace {

using Tokens = std::vector<std::int32_t>;

// Documents of these lengths, including bos (0).
Tokens documents(std::initializer_list<std::size_t> lengths) {
  Tokens tokens;
  for (const std::size_t length : lengths) {
    tokens.push_back(0);
    for (std::size_t i = 1; i < length; ++i) tokens.push_back(static_cast<std::int32_t>(tokens.size()));
  }
  return tokens;
}

std::vector<Piece> all_pieces(const Packing& packing) {
  std::vector<Piece> pieces;
  for (std::uint64_t row = 0; row < packing.rows(); ++row) {
    std::uint64_t filled = 0;
    for (const Piece& piece : packing.row(row)) {
      filled += piece.length;
      pieces.push_back(piece);
    }
    EXPECT_LE(filled, static_cast<std::uint64_t>(packing.T()));
    EXPECT_GT(filled, 0u);
  }
  std::ranges::sort(pieces, {}, &Piece::begin);
  return pieces;
}

TEST(Packing, FillsRowsWithCompleteDocuments) {
  const TokenSet set(documents({3, 5, 7, 2, 7}), {});
  const Packing packing(set, 8, LongDocuments::cut);
  EXPECT_EQ(all_pieces(packing), (std::vector<Piece>{{0, 3}, {3, 5}, {8, 7}, {15, 2}, {17, 7}}));
  EXPECT_EQ(packing.rows(), 4u);  // 7, 7, 5 + 3, 2
  EXPECT_EQ(packing.tokens(), 24u);
  EXPECT_DOUBLE_EQ(packing.padding(), 0.25);
  EXPECT_EQ(packing.long_documents(), 0u);
}

TEST(Packing, LongDocumentsAreCutOrTruncated) {
  const TokenSet set(documents({3, 20, 8}), {});
  const Packing cut(set, 8, LongDocuments::cut);
  EXPECT_EQ(all_pieces(cut), (std::vector<Piece>{{0, 3}, {3, 8}, {11, 8}, {19, 4}, {23, 8}}));
  EXPECT_EQ(cut.tokens(), 31u);
  EXPECT_EQ(cut.long_documents(), 1u);
  const Packing truncated(set, 8, LongDocuments::truncate);
  EXPECT_EQ(all_pieces(truncated), (std::vector<Piece>{{0, 3}, {3, 8}, {23, 8}}));
  EXPECT_EQ(truncated.tokens(), 19u);
}

TEST(Packing, EmptyDocumentsAreSkipped) {
  EXPECT_EQ(all_pieces(Packing(TokenSet(Tokens{0, 0, 5, 0}, {}), 8, LongDocuments::cut)),
            (std::vector<Piece>{{1, 2}}));
  EXPECT_THROW(Packing(TokenSet(Tokens{0, 0}, {}), 8, LongDocuments::cut), Error);
}

TEST(Packing, EveryTokenIsPackedOnceWithLittlePadding) {
  // Typical lengths of chats: mostly short, a few longer than a row.
  Rng rng(11);
  Tokens tokens;
  for (int document = 0; document < 5000; ++document) {
    tokens.push_back(0);
    const std::uint64_t length = 5 + rng.below(60) + (rng.below(50) == 0 ? rng.below(1000) : 0);
    tokens.insert(tokens.end(), length, 7);
  }
  const std::size_t size = tokens.size();
  const TokenSet set(std::move(tokens), {});
  const Packing packing(set, 256, LongDocuments::cut);
  std::uint64_t at = 0;
  for (const Piece& piece : all_pieces(packing)) {
    ASSERT_EQ(piece.begin, at);
    at += piece.length;
  }
  EXPECT_EQ(at, size);
  EXPECT_EQ(packing.tokens(), size);
  EXPECT_LT(packing.padding(), 0.005);
}

}  // namespace
}  // namespace thimble::read_order_packing_test
