// Adam / AdamW: one pass over a run of parameters.
//
//   m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2
//   p = p (1 - lr decay) - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//
// t counts from 1. decay 0: Adam. g is multiplied by grad_scale first (clipping). Elements are independent.
#pragma once

#include <cstdint>
#include <span>

#include "config/config.h"

namespace thimble {

struct RuleDefinition;
namespace rule {
extern const RuleDefinition kAdam;  // trains what no other rule does
}  // namespace rule

struct AdamStep {
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, decay = 0, grad_scale = 1;
  std::int64_t t = 1;
};

namespace ref {
void adam(const AdamStep& step, std::span<float> p, std::span<const float> g, std::span<float> m,
          std::span<float> v);
}  // namespace ref
namespace cpu {
void adam(const AdamStep& step, std::span<float> p, std::span<const float> g, std::span<float> m,
          std::span<float> v);
}  // namespace cpu

// On a device: a step of one group of parameters, with everything that can be computed once.
struct AdamGroup {
  float beta1 = 0, rest1 = 0;  // rest = 1 - beta
  float beta2 = 0, rest2 = 0;
  float rate = 0;     // -lr / (1 - beta1^t)
  float unbias2 = 0;  // 1 / (1 - beta2^t)
  float shrink = 1;   // 1 - lr decay
  float eps = 0;
};
AdamGroup adam_group(const AdamStep& step);

// Its settings: parameters of one group and one decay share an AdamGroup.
struct AdamSettings {
  AdamGroup groups[2 * kParamGroups];
};

// An item: a run of parameters that one block of threads updates, no longer than kAdamChunk.
inline constexpr std::int64_t kAdamChunk = 4096;
struct AdamChunk {
  std::int64_t offset = 0;    // in weights and gradients
  std::int64_t m = 0, v = 0;  // in the blocks of the states
  std::int32_t count = 0;
  std::int32_t group = 0;
};

}  // namespace thimble
