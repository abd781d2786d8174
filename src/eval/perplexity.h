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
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/interrupt.h"
#include "base/progress.h"
#include "eval/score.h"
#include "model/model.h"
#include "tokenizer/byte_table.h"

namespace thimble {

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
