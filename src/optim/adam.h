// Adam / AdamW, computed in one pass over the parameters.
//
//   m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2
//   p = p (1 - lr decay) - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//
// t counts from 1. decay 0 is Adam. g is first multiplied by grad_scale (clipping).
#pragma once

#include <cstdint>
#include <span>

#include "config/config.h"

namespace thimble {

struct RuleDefinition;
namespace rule {
extern const RuleDefinition kAdam;  // trains the parameters that no other rule trains
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

// For devices: the constants of one step for one group of parameters.
struct AdamGroup {
  float beta1 = 0, rest1 = 0;  // rest = 1 - beta
  float beta2 = 0, rest2 = 0;
  float rate = 0;     // -lr / (1 - beta1^t)
  float unbias2 = 0;  // 1 / (1 - beta2^t)
  float shrink = 1;   // 1 - lr decay
  float eps = 0;
};
AdamGroup adam_group(const AdamStep& step);

// The settings of a step. Parameters of the same group with the same decay share an AdamGroup.
struct AdamSettings {
  AdamGroup groups[2 * kParamGroups];
};

// An item: at most kAdamChunk consecutive values of a parameter, updated by one thread block.
inline constexpr std::int64_t kAdamChunk = 4096;
struct AdamChunk {
  std::int64_t offset = 0;    // in the weights and gradients
  std::int64_t m = 0, v = 0;  // in the state blocks
  std::int32_t count = 0;
  std::int32_t group = 0;
};

}  // namespace thimble
