#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/step_state.h"
#include "ops/sums.h"
#include "optim/adam.h"
#include "optim/rate_schedule.h"

namespace thimble {

namespace {

constexpr std::string_view kLessOptimizer = "lower dim, layers or vocab_size";

}  // namespace

Optimizer::Optimizer(const ParamTable& params, const OptimizerConfig& config, const Context& context)
    : params_(params),
      config_(config),
      first_(context.runtime(), params.block_size(), "the optimizer", kLessOptimizer),
      second_(context.runtime(), lay_out_second_moments(), "the optimizer", kLessOptimizer),
      muon_(params, config) {}

std::int64_t Optimizer::lay_out_second_moments() {
  std::int64_t size = 0;
  for (const Param& param : params_.all()) {
    second_offset_.push_back(trained_by_muon(param) ? -1 : size);
    if (!trained_by_muon(param)) size += align_up(param.count(), 16);
  }
  return size;
}

std::span<float> Optimizer::first_moment(const Param& param) {
  return param.in(first_.all());
}

std::int64_t Optimizer::second_offset(const Param& param) const {
  const auto index = static_cast<std::size_t>(&param - params_.all().data());
  check(index < second_offset_.size(), "[optimizer] '{}' is not a parameter of this table", param.name);
  return second_offset_[index];
}

std::span<float> Optimizer::second_moment(const Param& param) {
  const std::int64_t offset = second_offset(param);
  if (offset < 0) return {};
  return second_.all().subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(param.count()));
}

double Optimizer::update(const Context& context, std::int64_t step, double multiplier,
                         std::span<float> weights, std::span<float> gradients, UpdateSizes* sizes) {
  const double norm = std::sqrt(cpu::sum_of_squares(gradients));
  if (!std::isfinite(norm)) return norm;
  const auto scale =
      static_cast<float>(config_.clip > 0 ? std::min(1.0, config_.clip / (norm + kClipEps)) : 1.0);
  for (const Param& param : params_.all()) {
    if (trained_by_muon(param)) continue;
    const std::span<float> w = param.in(weights);
    if (sizes) before_.assign(w.begin(), w.end());
    AdamStep adam = adam_step(param, step, multiplier);
    adam.grad_scale = scale;
    cpu::adam(adam, w, param.in(gradients), first_moment(param), second_moment(param));
    if (sizes) sizes->add(param.group, before_, w);
  }
  MuonStep muon = muon_step(step, multiplier);
  muon.grad_scale = scale;
  muon_.update(context, muon, weights, gradients, first_.all(), sizes, ranks_);
  return norm;
}

AdamStep Optimizer::adam_step(const Param& param, std::int64_t step, double multiplier) const {
  return {.lr = static_cast<float>(config_.rate(param.group) * multiplier),
          .beta1 = static_cast<float>(config_.beta1),
          .beta2 = static_cast<float>(config_.beta2),
          .eps = static_cast<float>(config_.adam_eps),
          .decay = param.decays ? static_cast<float>(config_.weight_decay) : 0.0f,
          .grad_scale = 1,
          .t = step + 1};
}

MuonStep Optimizer::muon_step(std::int64_t step, double multiplier) const {
  return {.momentum = static_cast<float>(muon_momentum_at(config_, step)),
          .rate = static_cast<float>(config_.rate(ParamGroup::matrix) * multiplier)};
}

}  // namespace thimble
