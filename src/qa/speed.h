// Speed of prompt processing and decoding, measured with llama-bench's protocol for comparison:
//
//   pp512   a prompt of 512 random tokens into an empty cache, with logits of the last token
//   tg128   128 random tokens, one per call; with S streams S tokens per call
//   @ d256  the same after 256 tokens that are already in the cache and not timed
//
// A call has at most as many rows as in the batcher: 512 on the CPU, which is llama-bench's ubatch.
// One warm-up call (the complete prompt, or one token) comes first; on a GPU two, because the
// second call is captured as a graph. Every repeat is timed separately: rate = tokens / seconds,
// with mean and sample deviation (n - 1). Tokenizing and sampling are not timed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
#include "model/model.h"
#include "ops/cpu/gemm.h"
#include "tensor/device.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

struct SpeedRequest {
  std::int64_t tokens = 0;  // of the prompt, or per stream
  std::int64_t depth = 0;   // tokens already in the cache
  std::int64_t streams = 1;
  std::int64_t repeats = 5;
};

struct Speed {
  std::string name;           // "pp512", "tg128 @ d256"
  std::vector<double> rates;  // tokens per second of each repeat
  // decode_speed: from an empty cache to the first token after `depth` + 1 tokens; the median.
  double first_token_seconds = 0;

  double mean() const;
  double deviation() const;  // sample deviation; 0 for a single repeat
};

// Throws Error if tokens + depth exceed the model's context.
Speed prefill_speed(Model& model, const SpeedRequest& request, const ProgressOutput& progress,
                    const Interrupt* interrupt = nullptr);
Speed decode_speed(Model& model, const SpeedRequest& request, const ProgressOutput& progress,
                   const Interrupt* interrupt = nullptr);

// FLOPs of processing a prompt: matrix products of all rows, causal attention, and the head for the
// last row only.
double prefill_flops(const Model& model, std::int64_t tokens, std::int64_t depth);

// Bytes read to decode one token: every matrix once, and `positions` keys and values.
double bytes_per_token(const Model& model, double positions);

// A byte-level BPE tokenizer trained on the text, for benchmarks without a given tokenizer.
std::unique_ptr<Tokenizer> tokenizer_trained_on(std::string_view text, TokenId vocab_size,
                                                const ProgressOutput& progress, const Interrupt& interrupt);

// Speed of encoding the text on one thread.
struct TokenizerSpeed {
  Speed speed;              // tokens per second
  std::int64_t tokens = 0;  // of the text
  std::uint64_t bytes = 0;

  double bytes_per_second() const;
};
TokenizerSpeed tokenizer_speed(const Tokenizer& tokenizer, std::string_view text, std::int64_t repeats,
                               const ProgressOutput& progress, const Interrupt* interrupt = nullptr);

// The limits of a GPU, measured with the engine's runtime and kernels: memory bandwidth limits
// decoding, matrix products limit prompt processing.

// Bytes read and written per second when copying one half of a buffer of this size to the other;
// the best of 5 passes. A buffer that fits into the GPU's cache is copied at cache speed, just as a
// model of that size would be read.
double gpu_bandwidth(const Context& context, std::int64_t buffer_bytes);

// Seconds for the forward matrix products of N rows; for each shape the best of `repeats`.
double gpu_seconds_of_products(const Context& context, std::span<const ProductShape> shapes, std::int64_t N,
                               DType dtype, int repeats);

// Memory read bandwidth of the CPU in bytes per second, with all threads: the limit of decoding,
// which reads every weight for every token. A buffer of this size that fits into the caches is read
// at cache speed, just as a model of that size would be. The best of at least 3 passes within about
// `seconds`.
double read_bandwidth(std::int64_t buffer_bytes, double seconds, const Interrupt* interrupt = nullptr);

}  // namespace thimble
