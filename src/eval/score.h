// Bits per byte: how well a model predicts a set of tokens. bpb = nats / ln 2 / bytes (DESIGN 8.4).
//
// Texts are read in windows of `context` tokens, one after the other. Chats are packed into rows as whole
// conversations, and only what the assistant says is scored: its bytes are those of its contents, and
// <end_turn> has nats and no bytes. Documents are isolated from each other either way.
#pragma once

#include <cstdint>

#include "base/interrupt.h"
#include "base/progress.h"
#include "data/token_set.h"
#include "model/model.h"
#include "tokenizer/byte_table.h"

namespace thimble {

struct Score {
  double nats = 0;
  std::int64_t tokens = 0;
  std::uint64_t bytes = 0;

  double loss() const { return tokens > 0 ? nats / static_cast<double>(tokens) : 0; }  // nats per token
  double bits_per_byte() const;                                                        // 0 without bytes
};

struct ScoreOptions {
  std::int64_t context = 0;           // 0: the model's
  std::int64_t val_tokens = 0;        // score at most so many; 0: all
  std::int64_t tokens_at_a_time = 0;  // computed together; 0: about 8192
};

// Every target of the set exactly once: of a text all tokens but the first bos, and the bos behind the last;
// of chats those that TokenMarks names (to compare, score with LossOn::assistant whatever was trained).
Score score_set(Model& model, const ByteTable& bytes, const TokenSet& set, const ScoreOptions& options,
                const ProgressOutput& progress, const Interrupt* interrupt = nullptr);

}  // namespace thimble
