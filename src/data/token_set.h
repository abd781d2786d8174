// One split of a data set: its shards as one long array of tokens, with the places where documents start and,
// for chats, the tokens a model learns from.
//
// Documents follow each other, each bos and its tokens; the target of a token is the next one, and of the
// very last one bos (DESIGN 8.1). Starts and targets are not stored: bos and the role tokens, which text can
// never produce, say it all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/manifest.h"
#include "data/shard.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// The ids that structure a stream of tokens.
struct TokenMarks {
  std::int32_t bos = 0;
  // Where set, only what the assistant says is a target: the tokens between <assistant> and <end_turn>, and
  // that <end_turn>. Else every token is.
  std::optional<ChatTokens> answers_only = std::nullopt;

  static TokenMarks of(const Tokenizer& tokenizer, DataKind kind, LossOn loss_on);
};

// Rows of equal length in the making: what grid_rows() takes.
struct Grid {
  std::vector<std::int32_t> input, target;  // target -1: not scored
  std::vector<std::uint8_t> doc_start;
  std::int64_t tokens = 0;  // inputs that are no padding

  std::int64_t targets() const;  // that are scored
};

// What follows the last token of the set.
enum class AfterLast { bos, first_token };

class TokenSet {
 public:
  // Maps the shards, in this order; empty ones are fine. No token at all is an error.
  TokenSet(std::vector<MappedShard> shards, TokenMarks marks);
  TokenSet(std::vector<std::int32_t> tokens, TokenMarks marks);
  static TokenSet open(std::span<const std::filesystem::path> files, TokenMarks marks);

  std::uint64_t size() const { return size_; }
  const TokenMarks& marks() const { return marks_; }
  std::int32_t at(std::uint64_t i) const;
  // Tokens [begin, begin + out.size()), which must be inside.
  void copy(std::uint64_t begin, std::span<std::int32_t> out) const;

  // Appends inputs [begin, begin + count), their targets and document starts: one row, or a part of one. With
  // AfterLast::first_token the set is a ring: begin < size(), the rest may go round any number of times.
  void append(std::uint64_t begin, std::uint64_t count, AfterLast after_last, Grid& grid) const;

  // One row of T for scoring: like append(), but where the set ends the row is filled up with bos that are
  // not scored. `isolate` false: documents are not told apart within the row.
  void append_window(std::uint64_t begin, std::int64_t T, bool isolate, Grid& grid) const;

  // Where each document starts; 0 is always one. Reads all tokens.
  std::vector<std::uint64_t> document_starts() const;

  // Tells one set from another: a digest of the tokens. Of very large sets only blocks spread over all of it
  // are read.
  std::string fingerprint() const;

 private:
  // body(tokens, index of the first) for blocks of [begin, end).
  template <class Body>
  void for_blocks(std::uint64_t begin, std::uint64_t end, Body&& body) const;
  bool in_answer_after(std::uint64_t i) const;

  std::vector<MappedShard> shards_;
  std::vector<std::uint64_t> starts_;  // of each shard, in tokens
  std::vector<std::int32_t> memory_;   // instead of shards
  std::uint64_t size_ = 0;
  TokenMarks marks_;
};

}  // namespace thimble
