#include "optim/adam.h"

#include <cmath>

#include "base/error.h"
#include "base/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/adam.cpp"
#include <hwy/foreach_target.h>

#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thimble::cpu {
namespace HWY_NAMESPACE {

void adam_run(const AdamStep& step, float* p, const float* g, float* m, float* v, std::int64_t count) {
  const double bias1 = 1 - std::pow(static_cast<double>(step.beta1), static_cast<double>(step.t));
  const double bias2 = 1 - std::pow(static_cast<double>(step.beta2), static_cast<double>(step.t));
  const V32 beta1 = all(step.beta1), rest1 = all(static_cast<float>(1 - static_cast<double>(step.beta1)));
  const V32 beta2 = all(step.beta2), rest2 = all(static_cast<float>(1 - static_cast<double>(step.beta2)));
  const V32 rate = all(static_cast<float>(-step.lr / bias1)), unbias2 = all(static_cast<float>(1 / bias2));
  const V32 shrink = all(static_cast<float>(1 - static_cast<double>(step.lr) * step.decay));
  const V32 eps = all(step.eps), scale = all(step.grad_scale);
  for_lanes(count, [&](auto at) HWY_ATTR {
    const V32 gradient = hn::Mul(at.load(g), scale);
    const V32 m_now = hn::MulAdd(beta1, at.load(m), hn::Mul(rest1, gradient));
    const V32 v_now = hn::MulAdd(beta2, at.load(v), hn::Mul(rest2, hn::Mul(gradient, gradient)));
    const V32 size = hn::Add(hn::Sqrt(hn::Mul(v_now, unbias2)), eps);
    at.store(hn::MulAdd(rate, hn::Div(m_now, size), hn::Mul(at.load(p), shrink)), p);
    at.store(m_now, m);
    at.store(v_now, v);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace thimble::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thimble {

namespace ref {

void adam(const AdamStep& step, std::span<float> p, std::span<const float> g, std::span<float> m,
          std::span<float> v) {
  const double bias1 = 1 - std::pow(static_cast<double>(step.beta1), static_cast<double>(step.t));
  const double bias2 = 1 - std::pow(static_cast<double>(step.beta2), static_cast<double>(step.t));
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double gradient = static_cast<double>(g[i]) * step.grad_scale;
    const double m_now =
        step.beta1 * static_cast<double>(m[i]) + (1 - static_cast<double>(step.beta1)) * gradient;
    const double v_now =
        step.beta2 * static_cast<double>(v[i]) + (1 - static_cast<double>(step.beta2)) * gradient * gradient;
    const double move = m_now / bias1 / (std::sqrt(v_now / bias2) + step.eps);
    p[i] = static_cast<float>(p[i] * (1 - static_cast<double>(step.lr) * step.decay) - step.lr * move);
    m[i] = static_cast<float>(m_now);
    v[i] = static_cast<float>(v_now);
  }
}

}  // namespace ref

namespace cpu {

HWY_EXPORT(adam_run);

void adam(const AdamStep& step, std::span<float> p, std::span<const float> g, std::span<float> m,
          std::span<float> v) {
  check(g.size() == p.size() && m.size() == p.size() && v.size() == p.size(),
        "[adam] {} parameters, {} gradients, {} and {} moments", p.size(), g.size(), m.size(), v.size());
  constexpr std::int64_t kPerTask = 16384;
  parallel_for(static_cast<std::int64_t>(p.size()), kPerTask, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(adam_run)
    (step, p.data() + begin, g.data() + begin, m.data() + begin, v.data() + begin, end - begin);
  });
}

}  // namespace cpu

}  // namespace thimble
#endif
