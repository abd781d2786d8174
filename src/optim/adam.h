// Adam / AdamW: one pass over a run of parameters.
//
//   m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2
//   p = p (1 - lr decay) - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//
// t counts from 1. decay 0: Adam. g is multiplied by grad_scale first (clipping). Elements are independent.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "ops/step_state.h"

namespace thimble {

struct AdamStep {
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, decay = 0, grad_scale = 1;
  std::int64_t t = 1;
};

inline StepGroup step_group(const AdamStep& step) {
  const double beta1 = step.beta1, beta2 = step.beta2, t = static_cast<double>(step.t);
  return {.beta1 = step.beta1,
          .rest1 = static_cast<float>(1 - beta1),
          .beta2 = step.beta2,
          .rest2 = static_cast<float>(1 - beta2),
          .rate = static_cast<float>(-step.lr / (1 - std::pow(beta1, t))),
          .unbias2 = static_cast<float>(1 / (1 - std::pow(beta2, t))),
          .shrink = static_cast<float>(1 - static_cast<double>(step.lr) * step.decay),
          .eps = step.eps};
}

namespace ref {
void adam(const AdamStep& step, std::span<float> p, std::span<const float> g, std::span<float> m,
          std::span<float> v);
}  // namespace ref
namespace cpu {
void adam(const AdamStep& step, std::span<float> p, std::span<const float> g, std::span<float> m,
          std::span<float> v);
}  // namespace cpu

}  // namespace thimble
