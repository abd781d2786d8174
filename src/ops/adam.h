// Adam / AdamW: one pass over a run of parameters.
//
//   m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2
//   p = p (1 - lr decay) - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//
// t counts from 1. decay 0: Adam. g is multiplied by grad_scale first (clipping). Elements are independent.
#pragma once

#include <cstdint>
#include <span>

namespace thimble {

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

}  // namespace thimble
