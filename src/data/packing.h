// Whole documents packed into rows of T tokens, with little left over: for chats and other short documents.
//
// Best fit, longest document first: each goes into the row with the least room that still holds it. The plan
// depends on the documents and T alone; which row comes when is the reader's business.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/token_set.h"

namespace thimble {

// What becomes of a document that is longer than a row.
enum class LongDocuments {
  cut,       // pieces of T, each isolated; every token is still predicted once
  truncate,  // its first T tokens
};

struct Piece {
  std::uint64_t begin = 0;   // in the token set
  std::uint32_t length = 0;  // tokens that are inputs
  bool operator==(const Piece&) const = default;
};

class Packing {
 public:
  // Documents of bos alone are left out. Reads all tokens once.
  Packing(const TokenSet& set, std::int64_t T, LongDocuments long_documents);

  std::uint64_t rows() const { return row_begin_.size() - 1; }
  std::span<const Piece> row(std::uint64_t i) const;

  std::int64_t T() const { return T_; }
  std::uint64_t tokens() const { return tokens_; }                  // in all rows, padding not counted
  std::uint64_t long_documents() const { return long_documents_; }  // that were cut or truncated
  double padding() const;                                           // fraction of all places

 private:
  void cut_documents(const TokenSet& set, LongDocuments long_documents);
  std::vector<std::uint32_t> fit_pieces(std::span<const std::uint32_t> longest_first);

  std::int64_t T_;
  std::vector<Piece> pieces_;             // row after row
  std::vector<std::uint64_t> row_begin_;  // [rows + 1] into pieces_
  std::uint64_t tokens_ = 0, long_documents_ = 0;
};

}  // namespace thimble
