// One split of a data set: its shards as one long array of tokens, with the document starts and,
// for chats, the tokens to be learned.
//
// Each document is bos followed by its tokens, and documents follow each other directly. The target
// of a token is the next token; the target of the last token is bos. Document starts and targets
// are not stored but derived from bos and the role tokens, which no text can produce. Of chats in
// the template of another program, both are stored with the tokens (data/shard.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "data/manifest.h"
#include "data/shard.h"
#include "tokenizer/chat_layout.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// The ids that mark the structure of a stream of tokens.
struct TokenMarks {
  std::int32_t bos = 0;
  // If set, only the assistant's tokens are targets: those between <assistant> and <end_turn>, and
  // that <end_turn>. Otherwise every token is a target.
  std::optional<ChatTokens> answers_only = std::nullopt;
  // Whether the tokens have marks: documents start there, and with `marked_only` only tokens with
  // that mark are targets.
  bool stored = false, marked_only = false;
  // The token that ends a turn of a chat.
  std::optional<std::int32_t> end_turn = std::nullopt;

  bool of_answers() const { return answers_only || marked_only; }

  // `layout`: of chats, see tokenizer/chat_layout.h.
  static TokenMarks of(const Tokenizer& tokenizer, DataKind kind, LossOn loss_on,
                       std::string_view layout = kRolesLayout);
};

// Rows of equal length under construction: the input of grid_rows().
struct Grid {
  std::vector<std::int32_t> input, target;  // target -1: not scored
  std::vector<std::uint8_t> doc_start;
  std::int64_t tokens = 0;  // inputs that are not padding

  std::int64_t targets() const;  // targets that are scored
};

// The target of the last token of the set.
enum class AfterLast { bos, first_token };

class TokenSet {
 public:
  // Concatenates the shards in this order. Empty shards are allowed; throws if there are no tokens.
  TokenSet(std::vector<ShardReader> shards, TokenMarks marks);
  TokenSet(std::vector<std::int32_t> tokens, TokenMarks marks);
  // From now on, reading throws ShardError once `verification` has found a modified shard.
  void verify_with(std::shared_ptr<const ShardVerification> verification);
  // From now on, reading throws ShardError for a token that is not below `vocab_size`.
  void set_vocab_size(std::int64_t vocab_size) { vocab_size_ = vocab_size; }
  static TokenSet open(std::span<const std::filesystem::path> files, TokenMarks marks);

  std::uint64_t size() const { return size_; }
  const TokenMarks& marks() const { return marks_; }
  std::int32_t at(std::uint64_t i) const;
  // Copies tokens [begin, begin + out.size()), which must be inside the set, without marks.
  void copy(std::uint64_t begin, std::span<std::int32_t> out) const;

  // Appends inputs [begin, begin + count), their targets and document starts: one row, or a part of
  // one. With AfterLast::first_token the set is a ring: begin < size() is required, and the range
  // may wrap around any number of times.
  void append(std::uint64_t begin, std::uint64_t count, AfterLast after_last, Grid& grid) const;

  // Appends one row of T tokens for scoring. Unlike in append(), positions past the end of the set
  // are padded with unscored bos. With `isolate` false the row has no document starts.
  void append_window(std::uint64_t begin, std::int64_t T, bool isolate, Grid& grid) const;

  // Indices of all document starts; the first is always 0. Reads all tokens.
  std::vector<std::uint64_t> document_starts() const;

  // A digest of the tokens that identifies the set. For more than 16M tokens it covers the size and
  // 64 evenly spaced blocks of 64k tokens.
  std::string fingerprint() const;

 private:
  // Like copy(), with marks.
  void read(std::uint64_t begin, std::span<std::int32_t> out) const;
  bool starts_document(std::int32_t read) const {
    return marks_.stored ? (read & kDocumentMark) != 0 : read == marks_.bos;
  }
  // Calls body(tokens, index of the first) for consecutive blocks of [begin, end).
  template <class Body>
  void for_blocks(std::uint64_t begin, std::uint64_t end, Body&& body) const;
  bool in_answer_after(std::uint64_t i) const;
  // The inputs and targets of tokens with marks. The last one is only a target.
  void append_marked(std::span<const std::int32_t> tokens, Grid& grid) const;
  void check_tokens(const ShardReader& shard, std::uint64_t begin,
                    std::span<const std::int32_t> tokens) const;

  std::vector<ShardReader> shards_;
  std::vector<std::uint64_t> starts_;  // first token index of each shard
  std::vector<std::int32_t> memory_;   // used instead of shards
  std::uint64_t size_ = 0;
  std::int64_t vocab_size_ = std::numeric_limits<std::int64_t>::max();
  TokenMarks marks_;
  std::shared_ptr<const ShardVerification> verification_;  // null: none is running
};

}  // namespace thimble
