#include "optim/muon.h"

#include <algorithm>
#include <cmath>

#include "base/machine.h"
#include "base/parallel.h"
#include "model/model.h"

namespace thimble {

namespace {

constexpr std::int64_t kPerTask = 16384;
constexpr double kShortestRow = 1e-7;

// Polar Express for five rounds; further rounds repeat the last (parameter-golf 2.20).
constexpr NewtonSchulzCoefficients kPolarExpress[] = {
    {8.156554524902461, -22.48329292557795, 15.878769915207462},
    {4.042929935166739, -2.808917465908714, 0.5000178451051316},
    {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
    {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
    {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}};

std::vector<NewtonSchulzCoefficients> rounds_of(const OptimizerConfig& config) {
  std::vector<NewtonSchulzCoefficients> rounds(static_cast<std::size_t>(config.muon_steps));
  if (config.muon_coefficients == MuonCoefficients::polar)
    for (std::size_t i = 0; i < rounds.size(); ++i)
      rounds[i] = kPolarExpress[std::min(i, std::size(kPolarExpress) - 1)];
  return rounds;
}

DType dtype_of(const OptimizerConfig& config) {
  const bool multiplies_bf16 = compute_dtype(ComputeDType::automatic, Device::cpu) == DType::bf16;
  return config.muon_dtype == MuonDType::bf16 && multiplies_bf16 ? DType::bf16 : DType::f32;
}

}  // namespace

Muon::Muon(const ParamTable& params, const OptimizerConfig& config)
    : config_(config), rounds_(rounds_of(config)), dtype_(dtype_of(config)) {
  for (const Param& param : params.all()) {
    if (!trains(param, config)) continue;
    const auto same_shape = [&](const Batch& batch) {
      return batch.rows == param.rows && batch.cols == param.cols;
    };
    auto batch = std::ranges::find_if(batches_, same_shape);
    if (batch == batches_.end())
      batch = batches_.insert(batches_.end(), {.rows = param.rows, .cols = param.cols, .params = {}});
    batch->params.push_back(&param);
  }
  std::int64_t updates = 0, scratch = 0;
  for (const Batch& batch : batches_) {
    updates = std::max(updates, batch.stride() * static_cast<std::int64_t>(batch.params.size()));
    scratch = std::max(scratch, newton_schulz_scratch(batch.rows, batch.cols));
  }
  for (std::size_t i = 1; i < batches_.size(); ++i)
    batches_[i].first = batches_[i - 1].first + batches_[i - 1].params.size();
  updates_.resize(static_cast<std::size_t>(updates));
  scratch_.resize(static_cast<std::size_t>(scratch));
}

void Muon::update(const Context& context, const MuonStep& step, std::span<float> weights,
                  std::span<const float> gradients, std::span<float> momenta, UpdateSizes* sizes,
                  Communicator* ranks) {
  for (const Batch& batch : batches_) {
    const std::size_t count = batch.params.size();
    add_momentum(batch, step, gradients, momenta);
    if (config_.muon_row_norm) normalise_rows(batch);
    make_orthogonal(context, batch, ranks);
    if (!sizes) {
      apply(batch, 0, count, step, weights);
      continue;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const Param& param = *batch.params[i];
      const auto w = param.in(weights);
      before_.assign(w.begin(), w.end());
      apply(batch, i, i + 1, step, weights);
      sizes->add(param.group, before_, w);
    }
  }
}

void Muon::make_orthogonal(const Context& context, const Batch& batch, Communicator* ranks) {
  const int size = ranks ? ranks->size() : 1, own = ranks ? ranks->rank() : 0;
  std::vector<OwnedBytes> parts;
  for (std::size_t i = 0; i < batch.params.size(); ++i) {
    float* u = update_of(batch, i);
    if (owner(batch, i, size) == own)
      cpu::newton_schulz(context, make_tensor(u, batch.rows, batch.cols), scratch_, rounds_, dtype_);
    parts.push_back({owner(batch, i, size), std::as_writable_bytes(std::span(
                                                u, static_cast<std::size_t>(batch.rows * batch.cols)))});
  }
  if (size > 1) ranks->all_gather(parts, "Muon's updates");
}

template <class Body>
void Muon::for_pieces(const Batch& batch, std::size_t begin, std::size_t end, Body body) {
  const std::int64_t size = batch.rows * batch.cols;
  parallel_for(static_cast<std::int64_t>(end - begin) * size, kPerTask,
               [&](std::int64_t from, std::int64_t to) {
                 while (from < to) {
                   const std::size_t index = begin + static_cast<std::size_t>(from / size);
                   const std::int64_t first = from % size, last = std::min(size, first + to - from);
                   body(*batch.params[index], update_of(batch, index), first, last);
                   from += last - first;
                 }
               });
}

void Muon::add_momentum(const Batch& batch, const MuonStep& step, std::span<const float> gradients,
                        std::span<float> momenta) {
  for_pieces(batch, 0, batch.params.size(),
             [&](const Param& param, float* u, std::int64_t first, std::int64_t last) {
               const float* g = gradients.data() + param.offset;
               float* m = momenta.data() + param.offset;
               for (std::int64_t i = first; i < last; ++i) {
                 m[i] = step.momentum * m[i] + step.grad_scale * g[i];
                 u[i] = step.grad_scale * g[i] + step.momentum * m[i];
               }
             });
}

void Muon::normalise_rows(const Batch& batch) {
  const std::int64_t rows = static_cast<std::int64_t>(batch.params.size()) * batch.rows;
  parallel_for(
      rows, std::max<std::int64_t>(1, kPerTask / batch.cols), [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t row = from; row < to; ++row) {
          float* u =
              update_of(batch, static_cast<std::size_t>(row / batch.rows)) + row % batch.rows * batch.cols;
          double squares = 0;
          for (std::int64_t i = 0; i < batch.cols; ++i)
            squares += static_cast<double>(u[i]) * static_cast<double>(u[i]);
          const auto inverse = static_cast<float>(1 / std::max(std::sqrt(squares), kShortestRow));
          for (std::int64_t i = 0; i < batch.cols; ++i) u[i] *= inverse;
        }
      });
}

void Muon::apply(const Batch& batch, std::size_t begin, std::size_t end, const MuonStep& step,
                 std::span<float> weights) {
  const double shape = std::max(1.0, static_cast<double>(batch.rows) / static_cast<double>(batch.cols));
  const auto stride = static_cast<float>(step.rate * std::sqrt(shape));
  for_pieces(batch, begin, end,
             [&](const Param& param, const float* u, std::int64_t first, std::int64_t last) {
               const auto keep =
                   static_cast<float>(1 - step.rate * (param.decays ? config_.muon_weight_decay : 0.0));
               float* w = weights.data() + param.offset;
               for (std::int64_t i = first; i < last; ++i) w[i] = w[i] * keep - stride * u[i];
             });
}

}  // namespace thimble
