#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/adam.h"
#include "ops/newton_schulz.h"
#include "ops/sums.h"
#include "optim/schedule.h"
#include "tensor/arena.h"

namespace thimble {

namespace {

std::span<float> part(std::span<float> block, std::int64_t offset, std::int64_t count) {
  return block.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(count));
}

constexpr std::string_view kLessOptimizer = "lower dim, layers or vocab_size";
constexpr double kClipEps = 1e-6;  // as torch.nn.utils.clip_grad_norm_

}  // namespace

Optimizer::Optimizer(const ParamTable& params, const TrainConfig& config)
    : params_(params),
      config_(config),
      first_(params.block_size(), "the optimizer", kLessOptimizer),
      second_(lay_out_second_moments(), "the optimizer", kLessOptimizer) {
  std::int64_t scratch = 0;
  for (const Param& param : params.all())
    if (trained_by_muon(param))
      scratch =
          std::max(scratch, align_up(param.count(), 16) + newton_schulz_scratch(param.rows, param.cols));
  scratch_.resize(static_cast<std::size_t>(scratch));
}

std::int64_t Optimizer::lay_out_second_moments() {
  std::int64_t size = 0;
  for (const Param& param : params_.all()) {
    second_offset_.push_back(trained_by_muon(param) ? -1 : size);
    if (!trained_by_muon(param)) size += align_up(param.count(), 16);
  }
  return size;
}

bool Optimizer::trained_by_muon(const Param& param) const {
  return config_.uses_muon() && param.group == ParamGroup::matrix;
}

std::span<float> Optimizer::first_moment(const Param& param) {
  return part(first_.all(), param.offset, param.count());
}

std::span<float> Optimizer::second_moment(const Param& param) {
  const auto index = static_cast<std::size_t>(&param - params_.all().data());
  check(index < second_offset_.size(), "[optimizer] '{}' is not a parameter of this table", param.name);
  return second_offset_[index] < 0 ? std::span<float>()
                                   : part(second_.all(), second_offset_[index], param.count());
}

double Optimizer::update(const Context& context, std::int64_t step, double multiplier,
                         std::span<float> weights, std::span<float> gradients) {
  const double norm = std::sqrt(cpu::sum_of_squares(gradients));
  if (!std::isfinite(norm)) return norm;
  const double scale = config_.clip > 0 ? std::min(1.0, config_.clip / (norm + kClipEps)) : 1.0;
  const auto momentum = static_cast<float>(muon_momentum_at(config_, step));
  for (const Param& param : params_.all()) {
    const auto rate = static_cast<float>(config_.rate(param.group) * multiplier);
    if (trained_by_muon(param)) {
      muon(context, param, momentum, rate, static_cast<float>(scale), weights, gradients);
      continue;
    }
    const AdamStep adam{.lr = rate,
                        .beta1 = static_cast<float>(config_.beta1),
                        .beta2 = static_cast<float>(config_.beta2),
                        .eps = static_cast<float>(config_.adam_eps),
                        .decay = param.decays ? static_cast<float>(config_.weight_decay) : 0.0f,
                        .grad_scale = static_cast<float>(scale),
                        .t = step + 1};
    cpu::adam(adam, part(weights, param.offset, param.count()), part(gradients, param.offset, param.count()),
              first_moment(param), second_moment(param));
  }
  return norm;
}

void Optimizer::muon(const Context& context, const Param& param, float momentum, float rate, float grad_scale,
                     std::span<float> weights, std::span<const float> gradients) {
  const auto count = static_cast<std::size_t>(param.count());
  const std::span<float> m = first_moment(param), w = part(weights, param.offset, param.count());
  const float* g = gradients.data() + param.offset;
  const std::span<float> u = std::span(scratch_).first(count);
  for (std::size_t i = 0; i < count; ++i) {
    m[i] = momentum * m[i] + grad_scale * g[i];
    u[i] = grad_scale * g[i] + momentum * m[i];
  }
  const std::span<float> rest =
      std::span(scratch_).subspan(static_cast<std::size_t>(align_up(param.count(), 16)));
  cpu::newton_schulz(context, make_tensor(u.data(), param.rows, param.cols), rest,
                     static_cast<int>(config_.muon_steps));
  const double shape = std::max(1.0, static_cast<double>(param.rows) / static_cast<double>(param.cols));
  const auto stride = static_cast<float>(rate * std::sqrt(shape));
  const auto keep = static_cast<float>(1 - rate * (param.decays ? config_.muon_weight_decay : 0.0));
  for (std::size_t i = 0; i < count; ++i) w[i] = w[i] * keep - stride * u[i];
}

}  // namespace thimble
