// Bits per byte: how well a model predicts a text. bpb = nats / ln 2 / bytes (DESIGN 8.4).
#pragma once

#include <cstdint>
#include <span>

#include "base/interrupt.h"
#include "base/progress.h"
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

// Windows of `context` tokens, one after the other; every token but the first is scored exactly once.
// Documents are isolated.
Score score_tokens(Model& model, const ByteTable& bytes, std::span<const std::int32_t> tokens,
                   std::int32_t bos, const ScoreOptions& options, const ProgressOutput& progress,
                   const Interrupt* interrupt = nullptr);

}  // namespace thimble
