// Bits per byte: how well a model predicts a set of tokens. bpb = nats / ln 2 / bytes (DESIGN 8.4).
//
// Two ways to read the set, both by sliding windows:
//
//   isolated       document by document; none sees another. Every target of the set counts: of a text all tokens but
//                  the first bos, and the bos behind the last. Of chats only what the assistant says is a target: its
//                  bytes are those of its contents, and <end_turn> has nats and no bytes.
//   not isolated   as the parameter-golf scripts do (research: 1.7): one stream from its first token on, the target of
//                  a token is the next one whatever it is, and the tail that does not fill a window is left out. (A set
//                  shorter than a window is one.)
//
// Sums are f64, in the order of the tokens. They do not depend on how much is computed at a time
// together: tests hold bits per byte to 1e-6.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
#include "data/token_set.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

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

// Many short or long sequences scored together: rows of T tokens are filled with them, side by side, and computed
// a batch at a time.
//
//   WindowScorer scorer(model, T, 0, [&](const Window& window, std::span<const float> nats) { ... });
//   for (...) scorer.add({.input = .., .target = .., .tag = ..});
//   scorer.finish();
//
// Windows do not see each other: attention, positions, smear gate and bigram hash restart with each. What one scores
// does not depend on what shares its batch: on the CPU it came out the same to the bit, f32 and bf16, for every batch
// that was tried. Promised is 1e-6, because which kernel a library takes for a product may depend on the number of rows.
struct Window {
  std::vector<std::int32_t> input;   // at most T
  std::vector<std::int32_t> target;  // as many; -1: not scored
  std::uint64_t tag = 0;             // the caller's own
};

class WindowScorer {
 public:
  // nats: one for each input; 0 where there is no target. Windows come in the order in which they were added.
  using Sink = std::function<void(const Window& window, std::span<const float> nats)>;

  // tokens_at_a_time 0: about 8192, fewer where the vocabulary is so large that their logits would not fit; on a GPU
  // up to 65,536, as its memory allows.
  WindowScorer(Model& model, std::int64_t T, std::int64_t tokens_at_a_time, Sink sink);

  void add(Window window);  // computes what is waiting when there is no room for another
  void finish();            // computes the rest

 private:
  struct Waiting {
    Window window;
    std::size_t row, begin;  // its place: input `begin` of the row
  };

  void compute();
  void collect();  // what was computed, into the sink

  Model& model_;
  std::size_t T_, most_rows_;
  std::size_t shared_ = 0;  // windows share a row up to so many tokens; a longer one has a row of its own
  Sink sink_;
  std::vector<Waiting> waiting_, computing_;  // a GPU computes some while others are gathered
  std::size_t computing_length_ = 0;          // of their rows
  std::vector<std::size_t> used_;             // tokens in each row that was begun
};

// Sliding windows over a stream of tokens: every token is scored exactly once, with the most context it may have.
//
//   length 10, T 4, stride 2     inputs   0 1 2 3            scores 0 1 2 3
//                                             2 3 4 5        scores 4 5
//                                                 4 5 6 7    scores 6 7 ...
//
// The first window scores all it reads, every later one its last `stride` tokens, whose context is at least
// T - stride. Windows begin at 0, stride, 2 stride, ... as long as they have something left to score
// (parameter-golf 2.10, the corrected set). With stride = T they do not overlap.
class SlidingWindows {
 public:
  struct Span {
    std::uint64_t begin, count;  // inputs
    std::uint64_t scored_from;   // of them: those before are context alone
  };

  // length > 0, 1 <= stride <= T.
  SlidingWindows(std::uint64_t length, std::uint64_t T, std::uint64_t stride)
      : length_(length), T_(T), stride_(stride) {}

  std::uint64_t count() const { return length_ <= T_ ? 1 : 1 + (length_ - T_ + stride_ - 1) / stride_; }
  Span at(std::uint64_t i) const {
    const std::uint64_t begin = i * stride_;
    return {begin, std::min(T_, length_ - begin), i == 0 ? 0 : T_ - stride_};
  }

 private:
  std::uint64_t length_, T_, stride_;
};

// Perplexity as llama-perplexity computes it, so that figures compare with llama.cpp's own.
//
// The tokens are cut into chunks of n_ctx, one after the other; what does not fill one is left out. The first token of
// each chunk is overwritten by bos, where the tokenizer adds one, and only the second half is scored: the targets n_ctx / 2 + 1 .. n_ctx - 1 of
// the chunk, each with at least n_ctx / 2 tokens before it.
//
//   PPL = exp(mean nats) +- PPL sqrt((mean of squares - square of mean) / (tokens - 1))
//
// It says nothing about bytes and leaves half of the text out: bits per byte of the same tokens are given beside it,
// but compare only with figures made in this way.
struct PerplexityOptions {
  std::int64_t context = 0;           // n_ctx; 0: llama.cpp's 512, or the model's context where that is less
  std::int64_t val_tokens = 0;        // score at most so many, in whole chunks; 0: all
  std::int64_t tokens_at_a_time = 0;  // computed together; 0: what suits the device
};

struct Perplexity {
  Score score;  // of the tokens that are scored
  double squared_nats = 0;
  std::int64_t chunks = 0, context = 0;

  double value() const;           // PPL
  double standard_error() const;  // of it
};

// tokens: a whole text, without bos in front; where the tokenizer adds one (adds_bos()) it is put there and over each
// chunk's first token. Fewer than two chunks are an error, as they are there.
Perplexity perplexity(Model& model, const Tokenizer& tokenizer, std::vector<std::int32_t> tokens,
                      const PerplexityOptions& options, const ProgressOutput& progress,
                      const Interrupt* interrupt = nullptr);

}  // namespace thimble
