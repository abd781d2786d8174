#include "optim/adam.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/parallel.h"
#include "optim/update_rule.h"

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
        "[adam] got {} parameters, {} gradients, {} and {} moments", p.size(), g.size(), m.size(), v.size());
  constexpr std::int64_t kPerTask = 16384;
  parallel_for(static_cast<std::int64_t>(p.size()), kPerTask, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(adam_run)
    (step, p.data() + begin, g.data() + begin, m.data() + begin, v.data() + begin, end - begin);
  });
}

}  // namespace cpu

AdamGroup adam_group(const AdamStep& step) {
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

namespace {

class Adam final : public UpdateRule {
 public:
  Adam(std::vector<RuleParam> params, const OptimizerConfig& config)
      : params_(std::move(params)), config_(config) {}

  void update(const Context&, const RuleStep& step, const RuleMemory& memory, UpdateSizes* sizes,
              Communicator*) override {
    for (const RuleParam& param : params_) {
      const std::span<float> weights = param.weights(memory);
      if (sizes) before_.assign(weights.begin(), weights.end());
      cpu::adam(step_of(*param.param, step), weights, param.gradients(memory), param.state(memory, 0),
                param.state(memory, 1));
      if (sizes) sizes->add(param.param->group, before_, weights);
    }
  }

  // Every rank updates all parameters, which is cheaper than sending the results.
  DeviceShare device_share(int, int) const override {
    std::vector<AdamChunk> chunks;
    for (const RuleParam& param : params_)
      for (std::int64_t begin = 0; begin < param.param->count(); begin += kAdamChunk)
        chunks.push_back(
            {.offset = param.param->offset + begin,
             .m = param.states[0] + begin,
             .v = param.states[1] + begin,
             .count = static_cast<std::int32_t>(std::min(kAdamChunk, param.param->count() - begin)),
             .group = group_of(*param.param)});
    const auto bytes = std::as_bytes(std::span(chunks));
    return {.items = {bytes.begin(), bytes.end()}, .plan = nullptr};
  }

  void stage(const RuleStep& step, std::byte* place) const override {
    AdamSettings settings;
    for (const RuleParam& param : params_)
      settings.groups[group_of(*param.param)] = adam_group(step_of(*param.param, step));
    std::memcpy(place, &settings, sizeof(settings));
  }

 private:
  static int group_of(const Param& param) {
    return static_cast<int>(param.group) * 2 + (param.decays ? 1 : 0);
  }

  AdamStep step_of(const Param& param, const RuleStep& step) const {
    return {.lr = static_cast<float>(config_.rate(param.group) * step.multiplier),
            .beta1 = static_cast<float>(config_.beta1),
            .beta2 = static_cast<float>(config_.beta2),
            .eps = static_cast<float>(config_.adam_eps),
            .decay = param.decays ? static_cast<float>(config_.weight_decay) : 0.0f,
            .grad_scale = step.grad_scale,
            .t = step.step + 1};
  }

  std::vector<RuleParam> params_;
  OptimizerConfig config_;
  std::vector<float> before_;  // copy of one parameter, if sizes are requested
};

constexpr std::string_view kKeys[] = {"beta1", "beta2", "adam_eps", "weight_decay"};

}  // namespace

constinit const RuleDefinition rule::kAdam = {
    .name = "adam",
    .title = "Adam",
    .states = {"m", "v"},
    .keys = kKeys,
    .trains = [](const Param&, const OptimizerConfig&) { return true; },
    .make = [](std::vector<RuleParam> params, const OptimizerConfig& config) -> std::unique_ptr<UpdateRule> {
      return std::make_unique<Adam>(std::move(params), config);
    },
    .settings_bytes = sizeof(AdamSettings)};

}  // namespace thimble
#endif
