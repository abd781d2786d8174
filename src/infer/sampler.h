// Chooses the next token from logits.
//
// Steps, for the logits l of one position:
//
//   1. bias         l[i] += bias[i]
//   2. repetition   l[i] = l[i] > 0 ? l[i] / r : l[i] * r,   for each i among the last
//                   `repeat_last_n` tokens, prompt included
//   3. frequency,   l[i] -= frequency * n[i] + presence * (n[i] > 0)
//      presence     n[i]: count of i among the generated tokens, prompt excluded
//   4. remove ids beyond the tokenizer, suppressed ids, ids the caller bans for this position, and
//      ids that a constraint does not allow
//   5. temperature  0: return the id with the largest l;  else p = softmax(l / temperature)
//   6. top-k        keep the k largest
//   7. top-p        keep the fewest largest whose sum reaches top_p of the mass that top-k kept
//   8. min-p        keep p[i] >= min_p * max p
//   9. sample from the remaining ids in proportion to p
//
// Ties go to the smaller id. The random number for the n-th token is a function of (seed, n),
// independent of other requests and of timing.
//
// Step 2 matches llama.cpp and Transformers, step 3 OpenAI and vLLM; steps 5 to 8 use the order of
// Transformers.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace thimble {

class TokenMask;

struct SamplingOptions {
  float temperature = 0.8f;         // 0: greedy
  std::int64_t top_k = 0;           // 0: all
  float top_p = 1;                  // 1: all
  float min_p = 0;                  // 0: all
  float repetition_penalty = 1;     // 1: none
  std::int64_t repeat_last_n = 64;  // number of tokens to which the repetition penalty applies; -1: all
  float frequency_penalty = 0;      // 0: none
  float presence_penalty = 0;       // 0: none
  std::vector<std::pair<TokenId, float>> logit_bias = {};
  std::vector<TokenId> suppressed = {};  // never sampled
  std::uint64_t seed = 0;
};

// A new seed for callers that were not given one; short enough to be typed.
std::uint64_t random_seed();

// Throws an Error whose field() is set and whose message begins with that field: "temperature must
// be >= 0, got -0.5". Ids must be below `vocab_size`.
void check_sampling(const SamplingOptions& options, std::int64_t vocab_size);
// Checks the range of one of its numbers, such as "temperature", in the same way.
void check_sampling_value(std::string_view name, double value);

// The ids that a constraint allows at one position: those of `mask`, and `ends`.
struct AllowedTokens {
  const TokenMask& mask;
  std::span<const TokenId> ends = {};

  void keep(std::span<float> logits) const;  // sets all other logits to -infinity
};

class Sampler {
 public:
  // Only ids below `allowed` are sampled: embedding rows beyond the tokenizer have no meaning.
  Sampler(SamplingOptions options, std::int64_t allowed, std::span<const TokenId> prompt = {});

  // Returns the next token and counts it as generated. `banned` ids are excluded for this position
  // only; `allowed`, if not null, are the only ids. Throws if a logit is not finite or if no id is
  // left.
  TokenId sample(std::span<const float> logits, std::span<const TokenId> banned = {},
                 const AllowedTokens* allowed = nullptr);

 private:
  struct Candidate {
    float logit;
    TokenId id;
    double weight;
  };

  static bool better(const Candidate& a, const Candidate& b);  // larger logit; ties: smaller id

  void change_logits();
  std::vector<TokenId> recent() const;  // ids the repetition penalty applies to
  TokenId draw(float largest);
  void keep_top_k();
  void keep_top_p();

  SamplingOptions options_;
  std::size_t allowed_;
  std::vector<TokenId> history_;  // prompt and generated tokens, for the repetition penalty
  std::unordered_map<TokenId, int> generated_;
  std::uint64_t drawn_ = 0;
  std::vector<float> logits_;  // of the current position, after bias and penalties
  std::vector<Candidate> candidates_;
};

}  // namespace thimble
