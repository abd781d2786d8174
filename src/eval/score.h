// Bits per byte (bpb): how well a model predicts a set of tokens. bpb = nats / ln 2 / bytes.
//
// The set is read with sliding windows, in one of two ways:
//
//   isolated       document by document, without context from other documents. All targets are
//                  scored. In text, the targets are all tokens except the first bos, plus the bos
//                  after the last token. In chats, only the assistant's turns are targets: their
//                  bytes are those of the contents; <end_turn> adds nats but no bytes.
//   not isolated   as in the parameter-golf scripts: one stream, the target of a token is always
//                  the next token, and a tail that does not fill a window is dropped (unless the
//                  set is shorter than one window)
//
// Sums are f64, in token order. Bits per byte do not depend on the batch size; tests allow 1e-6.
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
  // Characters of text, plus one for each end of a document or turn. 0 in sums over ranks.
  std::uint64_t characters = 0;

  double loss() const { return tokens > 0 ? nats / static_cast<double>(tokens) : 0; }  // nats per token
  double bits_per_byte() const;                                                        // 0 without bytes
  double nats_per_character() const;                                                   // 0 without characters
};

struct ScoreOptions {
  std::int64_t context = 0;     // 0: the model's
  std::int64_t stride = 0;      // 0: context
  std::int64_t val_tokens = 0;  // score only the first val_tokens targets; 0: all
  bool isolate = true;          // isolate documents; config().isolate is the setting used in training
  bool may_diverge = false;     // return a non-finite sum instead of throwing; for validation in training
  int rank = 0, ranks = 1;      // score only every ranks-th window; a rank may have none
  std::int64_t tokens_at_a_time = 0;                        // batch size; 0: chosen for the device
  std::function<void(std::int64_t tokens)> on_scored = {};  // called often with the tokens scored so far
  // Called for each scored target in the order of the set: the index of its input, -log p, bytes.
  std::function<void(std::uint64_t input, double nats, std::uint64_t bytes)> on_target = {};
};

// Divides the score of a set into parts that paired comparisons can resample: its documents, or, if
// there are fewer than 20, blocks of equally many bytes. The parts depend on the text and not on
// the tokenizer, except that a token across the border of two blocks belongs to the first.
//
//   ScoreParts parts(set);
//   options.on_target = [&](auto input, auto nats, auto bytes) { parts.add(input, nats, bytes); };
class ScoreParts {
 public:
  static constexpr std::size_t kFewestDocuments = 20, kMostBlocks = 256;

  explicit ScoreParts(const TokenSet& set);

  bool are_documents() const { return borders_.size() >= kFewestDocuments; }
  void add(std::uint64_t input, double nats, std::uint64_t bytes);
  // In the order of the set. Documents without a scored token have a Score of zeros.
  std::vector<Score> scores() const;

 private:
  std::vector<std::uint64_t> borders_;  // starts of documents
  std::vector<Score> parts_;            // of documents, or of blocks of kBlockBytes
  std::size_t at_ = 0;
  std::uint64_t bytes_ = 0;
};

// Throws Error if the sum is NaN or infinite.
void check_finite(const Score& score);

// To compare chat models, open the set with LossOn::assistant, whatever loss_on they were trained
// with. Throws Error if there is nothing to score.
Score score_set(Model& model, const ByteTable& bytes, const TokenSet& set, const ScoreOptions& options,
                const ProgressOutput& progress, const Interrupt* interrupt = nullptr);

// Scores many sequences of any length up to T: packs them into rows of T tokens and computes the
// rows in batches.
//
//   WindowScorer scorer(model, T, 0, [&](const Window& window, std::span<const float> nats) {..});
//   for (...) scorer.add({.input = .., .target = .., .tag = ..});
//   scorer.finish();
//
// Windows are isolated from each other: attention, positions, smear gate and bigram hash restart
// with each window. A window's score does not depend on the other windows in its batch up to 1e-6,
// because a library may choose different kernels for different numbers of rows. On the CPU, all
// measured scores were bit-identical, in f32 and bf16.
struct Window {
  std::vector<std::int32_t> input;   // at most T
  std::vector<std::int32_t> target;  // same size; -1: not scored
  std::uint64_t tag = 0;             // for the caller's use
};

class WindowScorer {
 public:
  // Called for each window in the order of add(). nats: one value per input; 0 if it has no target.
  using Sink = std::function<void(const Window& window, std::span<const float> nats)>;

  // tokens_at_a_time 0: on the CPU 8192 or, for large vocabularies, as many as have 1 GiB of
  // logits; on a GPU up to 65,536, depending on free memory.
  WindowScorer(Model& model, std::int64_t T, std::int64_t tokens_at_a_time, Sink sink);

  void add(Window window);  // computes the waiting windows if there is no room for this one
  void finish();            // computes the remaining windows

 private:
  struct Waiting {
    Window window;
    std::size_t row, begin;  // position: input `begin` of the row
  };

  void compute();
  void collect();  // passes computed windows to the sink

  Model& model_;
  std::size_t T_, most_rows_;
  std::size_t shared_ = 0;  // rows are filled up to this length; a longer window has a row to itself
  Sink sink_;
  std::vector<Waiting> waiting_, computing_;  // a GPU computes one batch while the next is collected
  std::size_t computing_length_ = 0;          // row length of the batch being computed
  std::vector<std::size_t> used_;             // tokens in each started row
};

// Sliding windows over a stream of tokens: every token is scored exactly once, with as much context
// as possible.
//
//   length 10, T 4, stride 2     inputs   0 1 2 3            scores 0 1 2 3
//                                             2 3 4 5        scores 4 5
//                                                 4 5 6 7    scores 6 7 ...
//
// The first window scores all of its tokens, every later one its last `stride` tokens, each with at
// least T - stride tokens of context. Windows begin at 0, stride, 2 stride, ... until every token
// is scored, like parameter-golf's corrected evaluation. With stride = T they do not overlap.
class SlidingWindows {
 public:
  struct Span {
    std::uint64_t begin, count;  // inputs
    std::uint64_t scored_from;   // inputs before this one are context only
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

// Perplexity computed like llama-perplexity, for comparison with llama.cpp's figures.
//
// The tokens are cut into consecutive chunks of n_ctx; a last incomplete chunk is dropped. If the
// tokenizer adds a bos, it replaces the first token of each chunk. Only the second half is scored:
// the targets n_ctx / 2 + 1 .. n_ctx - 1 of the chunk, each with at least n_ctx / 2 tokens before
// it.
//
//   PPL = exp(mean nats) +- PPL sqrt((mean of squares - square of mean) / (tokens - 1))
//
// Perplexity does not account for bytes and skips half of the text. Bits per byte of the scored
// tokens are reported as well, but are comparable only with figures computed in the same way.
struct PerplexityOptions {
  std::int64_t context = 0;           // n_ctx; 0: llama.cpp's 512, or the model's context if smaller
  std::int64_t val_tokens = 0;        // maximum number of scored tokens, in complete chunks; 0: all
  std::int64_t tokens_at_a_time = 0;  // batch size; 0: chosen for the device
};

struct Perplexity {
  Score score;  // of the scored tokens
  double squared_nats = 0;
  std::int64_t chunks = 0, context = 0;

  double value() const;           // PPL
  double standard_error() const;  // of value()
};

// tokens: a complete text without a leading bos. If the tokenizer adds one (adds_bos()), it is
// inserted at the start and replaces each chunk's first token. Throws Error for fewer than two
// chunks, as llama-perplexity does.
Perplexity perplexity(Model& model, const Tokenizer& tokenizer, std::vector<std::int32_t> tokens,
                      const PerplexityOptions& options, const ProgressOutput& progress,
                      const Interrupt* interrupt = nullptr);

}  // namespace thimble
