// Bits per byte: how well a model predicts a set of tokens. bpb = nats / ln 2 / bytes (DESIGN 8.4).
//
// Two ways to read the set, both by sliding windows (eval/windows.h):
//
//   isolated       document by document; none sees another. Every target of the set counts: of a text all tokens but
//                  the first bos, and the bos behind the last. Of chats only what the assistant says is a target: its
//                  bytes are those of its contents, and <end_turn> has nats and no bytes.
//   not isolated   as the parameter-golf scripts do (research: 1.7): one stream from its first token on, the target of
//                  a token is the next one whatever it is, and the tail that does not fill a window is left out. (A set
//                  shorter than a window is one.)
//
// Sums are f64, in the order of the tokens. They do not depend on how much is computed at a time
// (eval/window_scorer.h): tests hold bits per byte to 1e-6.
#pragma once

#include <cstdint>
#include <functional>

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
  std::int64_t context = 0;     // 0: the model's
  std::int64_t stride = 0;      // 0: context
  std::int64_t val_tokens = 0;  // score at most the first so many; 0: all
  bool isolate = true;       // documents from each other; a model knows how it was trained: config().isolate
  bool may_diverge = false;  // a sum that is not finite is the caller's news, not an error: training's
  int rank = 0, ranks = 1;   // score every ranks-th window alone; nothing of one's own is then no error
  std::int64_t tokens_at_a_time = 0;                        // computed together; 0: what suits the device
  std::function<void(std::int64_t tokens)> on_scored = {};  // hears how many there are by now, often
};

// A model with NaN in it has no score.
void check_finite(const Score& score);

// To compare chat models, open the set with LossOn::assistant whatever was trained. Nothing to score is an error.
Score score_set(Model& model, const ByteTable& bytes, const TokenSet& set, const ScoreOptions& options,
                const ProgressOutput& progress, const Interrupt* interrupt = nullptr);

}  // namespace thimble
