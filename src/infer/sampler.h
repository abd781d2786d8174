// Choosing the next token from logits.
//
// The order of events, for the logits l of one position:
//
//   1. bias         l[i] += bias of i
//   2. repetition   i among the last `repeat_last_n` tokens, prompt included:  l[i] = l[i] > 0 ? l[i] / r : l[i] * r
//   3. frequency,   l[i] -= frequency * n[i] + presence * (n[i] > 0),   n[i] how often i was generated so far,
//      presence     without the prompt
//   4. out go: ids beyond the tokenizer, suppressed ids, and what the caller bans for this position
//   5. temperature  0: the largest l, and that is all;  else p = softmax(l / temperature)
//   6. top-k        only the k largest
//   7. top-p        only the largest that together reach top_p of what top-k left
//   8. min-p        only p[i] >= min_p * the largest p
//   9. a draw from what is left
//
// Ties go to the smaller id everywhere. The draw for the n-th token is a function of (seed, n): it does not
// depend on what else is computed, or when.
//
// 2 is as in llama.cpp and Transformers, 3 as OpenAI and vLLM count, 5 to 8 in the order of Transformers.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace thimble {

struct SamplingOptions {
  float temperature = 0.8f;         // 0: greedy
  std::int64_t top_k = 0;           // 0: all
  float top_p = 1;                  // 1: all
  float min_p = 0;                  // 0: all
  float repetition_penalty = 1;     // 1: none
  std::int64_t repeat_last_n = 64;  // tokens that count for it; -1: all
  float frequency_penalty = 0;      // 0: none
  float presence_penalty = 0;       // 0: none
  std::vector<std::pair<TokenId, float>> logit_bias = {};
  std::vector<TokenId> suppressed = {};  // never sampled
  std::uint64_t seed = 0;
};

// Throws an Error with its field(), which the message names first: "temperature must be >= 0, got -0.5". Ids must be
// below `vocab_size`.
void check_sampling(const SamplingOptions& options, std::int64_t vocab_size);

class Sampler {
 public:
  // Only ids below `allowed` are ever chosen: rows of the embedding beyond the tokenizer mean nothing.
  Sampler(SamplingOptions options, std::int64_t allowed, std::span<const TokenId> prompt = {});

  // The next token; it counts as generated. `banned`: not here. Logits that are not finite are an error, and so is a
  // vocabulary of which nothing may be chosen.
  TokenId sample(std::span<const float> logits, std::span<const TokenId> banned = {});

 private:
  struct Candidate {
    float logit;
    TokenId id;
    double weight;
  };

  static bool better(const Candidate& a, const Candidate& b);  // larger, or the smaller id

  void change_logits();
  std::vector<TokenId> recent() const;  // ids the repetition penalty is for
  TokenId draw(float largest);
  void keep_top_k();
  void keep_top_p();

  SamplingOptions options_;
  std::size_t allowed_;
  std::vector<TokenId> history_;  // prompt and generated: for the repetition penalty
  std::unordered_map<TokenId, int> generated_;
  std::uint64_t drawn_ = 0;
  std::vector<float> logits_;  // of the position at hand, changed
  std::vector<Candidate> candidates_;
};

}  // namespace thimble
