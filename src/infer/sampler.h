// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/rng.h"

namespace thimble {

struct SamplerOptions {
  float temperature = 0.8f;  // 0: greedy
  std::int64_t top_k = 0;    // only the k likeliest; 0: all
  float top_p = 1;           // only the likeliest that together reach p
  std::uint64_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) : options_(options), rng_(options.seed) {}

  // Only the first `allowed` ids: rows of the embedding beyond the tokenizer are never sampled. Ties go to
  // the smaller id.
  std::int32_t sample(std::span<const float> logits, std::int64_t allowed);

 private:
  struct Candidate {
    std::int32_t id;
    float logit;
    double weight;
  };
  void keep_likeliest();

  SamplerOptions options_;
  Rng rng_;
  std::vector<Candidate> candidates_;
};

}  // namespace thimble
