// How fast a model reads and writes tokens, by llama-bench's protocol, so that figures compare:
//
//   pp512   a prompt of 512 random tokens into an empty cache, the last one's logits wanted
//   tg128   128 random tokens, one call after the other; with S streams S tokens a call
//   @ d256  either of them behind 256 tokens that are in the cache already and not timed
//
// A call has as many rows as the batcher's: on the CPU 512, llama-bench's ubatch. One warm-up (the whole prompt; one
// token), on a GPU two, of which the second is recorded; then every repeat by itself: rate = tokens / seconds, mean and
// sample deviation (n - 1). Neither tokenizing nor sampling is timed.
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
  std::int64_t tokens = 0;  // of the prompt, or of each stream
  std::int64_t depth = 0;   // in the cache before them
  std::int64_t streams = 1;
  std::int64_t repeats = 5;
};

struct Speed {
  std::string name;           // "pp512", "tg128 @ d256"
  std::vector<double> rates;  // tokens per second, each repeat's

  double mean() const;
  double deviation() const;  // of the sample; 0 for a single repeat
};

// More tokens than the context holds are an Error.
Speed prefill_speed(Model& model, const SpeedRequest& request, const ProgressOutput& progress,
                    const Interrupt* interrupt = nullptr);
Speed decode_speed(Model& model, const SpeedRequest& request, const ProgressOutput& progress,
                   const Interrupt* interrupt = nullptr);

// Of reading a prompt: the products of every row, attention's causal half, and the head of the last row.
double prefill_flops(const Model& model, std::int64_t tokens, std::int64_t depth);

// What one token's decoding reads: every matrix once, and `positions` keys and values.
double bytes_per_token(const Model& model, double positions);

// For those who bring no tokenizer: one that is learned from a text, byte-level BPE.
std::unique_ptr<Tokenizer> learned_from(std::string_view text, TokenId vocab_size,
                                        const ProgressOutput& progress, const Interrupt& interrupt);

// The text, encoded again and again by one thread.
struct TokenizerSpeed {
  Speed speed;              // tokens per second
  std::int64_t tokens = 0;  // of the text
  std::uint64_t bytes = 0;

  double bytes_per_second() const;
};
TokenizerSpeed tokenizer_speed(const Tokenizer& tokenizer, std::string_view text, std::int64_t repeats,
                               const ProgressOutput& progress, const Interrupt* interrupt = nullptr);

// What a GPU allows, measured through the engine's own runtime and kernels: the ceilings of decoding and of reading
// prompts.
// Bytes read and written per second by copies from one half of a buffer of that size into the other: one that fits the
// GPU's cache is copied at its speed, as a model of that size would be read. The best of some passes.
double gpu_bandwidth(const Context& context, std::int64_t buffer_bytes);

// Seconds of the forward products alone for N rows, each shape at its best of `repeats`.
double gpu_seconds_of_products(const Context& context, std::span<const ProductShape> shapes, std::int64_t N,
                               DType dtype, int repeats);

// How fast this machine reads memory: the ceiling of decoding, which reads every weight for every token.
// Bytes per second with all threads, over a buffer of that size: one that fits the caches is read at their speed, as a
// model of that size would be. The best of some passes, `seconds` in all.
double read_bandwidth(std::int64_t buffer_bytes, double seconds, const Interrupt* interrupt = nullptr);

}  // namespace thimble
