#include "optim/muon.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/parallel.h"
#include "model/model.h"
#include "optim/update_rule.h"
#include "tensor/arena.h"

namespace thimble {

namespace {

constexpr std::int64_t kPerTask = 16384;
constexpr double kMinRowNorm = 1e-7;

// Coefficients of Polar Express for five rounds; further rounds repeat the last.
constexpr NewtonSchulzCoefficients kPolarExpress[] = {
    {8.156554524902461, -22.48329292557795, 15.878769915207462},
    {4.042929935166739, -2.808917465908714, 0.5000178451051316},
    {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
    {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
    {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}};

std::vector<NewtonSchulzCoefficients> rounds_of(const OptimizerConfig& config) {
  if (config.muon_coefficients == MuonCoefficients::none) return {};
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

// Matrices of one shape, in the order of the parameter table.
struct Batch {
  std::int64_t rows, cols;
  std::vector<RuleParam> params = {};
  std::size_t first = 0;  // number of matrices in the batches before it

  std::int64_t stride() const { return align_up(rows * cols, 16); }  // from one u to the next
  int owner(std::size_t index, int ranks) const {
    return static_cast<int>((first + index) % static_cast<std::size_t>(ranks));
  }
};

class Muon final : public UpdateRule {
 public:
  Muon(const std::vector<RuleParam>& params, const OptimizerConfig& config);

  void update(const Context& context, const RuleStep& step, const RuleMemory& memory, UpdateSizes* sizes,
              Communicator* ranks) override;

  DeviceShare device_share(int rank, int ranks) const override;
  void stage(const RuleStep& step, std::byte* settings) const override;
  std::vector<OwnedParam> owned(int ranks) const override;

 private:
  MuonSettings settings_of(const RuleStep& step) const {
    const auto rate = static_cast<float>(config_.rate(ParamGroup::matrix) * step.multiplier);
    return {.momentum = static_cast<float>(muon_momentum_at(config_, step.step)),
            .rate = rate,
            .shrink = static_cast<float>(1 - rate * config_.muon_weight_decay)};
  }

  // Calls body(param, its u, first, last) in parallel for ranges of the elements of matrices
  // [begin, end) of the batch.
  template <class Body>
  void for_pieces(const Batch& batch, std::size_t begin, std::size_t end, Body body);
  void add_momentum(const Batch& batch, float momentum, float grad_scale, const RuleMemory& memory);
  void normalize_rows(const Batch& batch);
  void make_orthogonal(const Context& context, const Batch& batch, Communicator* ranks);
  void apply(const Batch& batch, std::size_t begin, std::size_t end, const MuonSettings& settings,
             const RuleMemory& memory);
  float* update_of(const Batch& batch, std::size_t index) {
    return updates_.data() + static_cast<std::int64_t>(index) * batch.stride();
  }

  OptimizerConfig config_;
  std::vector<NewtonSchulzCoefficients> rounds_;
  DType dtype_;  // of Newton-Schulz
  std::vector<Batch> batches_;
  std::vector<float> updates_;  // u of a batch
  std::vector<float> scratch_;  // of Newton-Schulz
  std::vector<float> before_;   // copy of one matrix, if sizes are requested
};

struct Workspace {
  std::int64_t updates = 0, scratch = 0;  // floats

  void fit(std::int64_t rows, std::int64_t cols, std::int64_t count) {
    updates = std::max(updates, align_up(rows * cols, 16) * count);
    scratch = std::max(scratch, newton_schulz_scratch(rows, cols));
  }
};

std::int64_t workspace_bytes(std::span<const Param* const> params, const OptimizerConfig&) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> counts;
  for (const Param* param : params) ++counts[{param->rows, param->cols}];
  Workspace needed;
  for (const auto& [shape, count] : counts) needed.fit(shape.first, shape.second, count);
  return static_cast<std::int64_t>(sizeof(float)) * (needed.updates + needed.scratch);
}

Muon::Muon(const std::vector<RuleParam>& params, const OptimizerConfig& config)
    : config_(config), rounds_(rounds_of(config)), dtype_(dtype_of(config)) {
  for (const RuleParam& param : params) {
    const auto same_shape = [&](const Batch& batch) {
      return batch.rows == param.param->rows && batch.cols == param.param->cols;
    };
    auto batch = std::ranges::find_if(batches_, same_shape);
    if (batch == batches_.end())
      batch = batches_.insert(batches_.end(), {.rows = param.param->rows, .cols = param.param->cols});
    batch->params.push_back(param);
  }
  Workspace needed;
  for (const Batch& batch : batches_)
    needed.fit(batch.rows, batch.cols, static_cast<std::int64_t>(batch.params.size()));
  for (std::size_t i = 1; i < batches_.size(); ++i)
    batches_[i].first = batches_[i - 1].first + batches_[i - 1].params.size();
  updates_.resize(static_cast<std::size_t>(needed.updates));
  scratch_.resize(static_cast<std::size_t>(needed.scratch));
}

void Muon::update(const Context& context, const RuleStep& step, const RuleMemory& memory, UpdateSizes* sizes,
                  Communicator* ranks) {
  const MuonSettings settings = settings_of(step);
  for (const Batch& batch : batches_) {
    const std::size_t count = batch.params.size();
    add_momentum(batch, settings.momentum, step.grad_scale, memory);
    if (config_.muon_row_norm) normalize_rows(batch);
    make_orthogonal(context, batch, ranks);
    if (!sizes) {
      apply(batch, 0, count, settings, memory);
      continue;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const auto weights = batch.params[i].weights(memory);
      before_.assign(weights.begin(), weights.end());
      apply(batch, i, i + 1, settings, memory);
      sizes->add(batch.params[i].param->group, before_, weights);
    }
  }
}

void Muon::make_orthogonal(const Context& context, const Batch& batch, Communicator* ranks) {
  const int size = ranks ? ranks->size() : 1, own = ranks ? ranks->rank() : 0;
  std::vector<OwnedBytes> parts;
  for (std::size_t i = 0; i < batch.params.size(); ++i) {
    float* u = update_of(batch, i);
    if (batch.owner(i, size) == own)
      cpu::newton_schulz(context, make_tensor(u, batch.rows, batch.cols), scratch_, rounds_, dtype_);
    parts.push_back({batch.owner(i, size), std::as_writable_bytes(std::span(
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
                   body(batch.params[index], update_of(batch, index), first, last);
                   from += last - first;
                 }
               });
}

void Muon::add_momentum(const Batch& batch, float momentum, float grad_scale, const RuleMemory& memory) {
  for_pieces(batch, 0, batch.params.size(),
             [&](const RuleParam& param, float* u, std::int64_t first, std::int64_t last) {
               const float* g = param.gradients(memory).data();
               float* m = param.state(memory, 0).data();
               for (std::int64_t i = first; i < last; ++i) {
                 m[i] = momentum * m[i] + grad_scale * g[i];
                 u[i] = grad_scale * g[i] + momentum * m[i];
               }
             });
}

void Muon::normalize_rows(const Batch& batch) {
  const std::int64_t rows = static_cast<std::int64_t>(batch.params.size()) * batch.rows;
  parallel_for(
      rows, std::max<std::int64_t>(1, kPerTask / batch.cols), [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t row = from; row < to; ++row) {
          float* u =
              update_of(batch, static_cast<std::size_t>(row / batch.rows)) + row % batch.rows * batch.cols;
          double squares = 0;
          for (std::int64_t i = 0; i < batch.cols; ++i)
            squares += static_cast<double>(u[i]) * static_cast<double>(u[i]);
          const auto inverse = static_cast<float>(1 / std::max(std::sqrt(squares), kMinRowNorm));
          for (std::int64_t i = 0; i < batch.cols; ++i) u[i] *= inverse;
        }
      });
}

void Muon::apply(const Batch& batch, std::size_t begin, std::size_t end, const MuonSettings& settings,
                 const RuleMemory& memory) {
  const double shape = std::max(1.0, static_cast<double>(batch.rows) / static_cast<double>(batch.cols));
  const auto stride = static_cast<float>(settings.rate * std::sqrt(shape));
  for_pieces(batch, begin, end,
             [&](const RuleParam& param, const float* u, std::int64_t first, std::int64_t last) {
               const float keep = param.param->decays ? settings.shrink : 1.0f;
               float* w = param.weights(memory).data();
               for (std::int64_t i = first; i < last; ++i) w[i] = w[i] * keep - stride * u[i];
             });
}

DeviceShare Muon::device_share(int rank, int ranks) const {
  MuonPlan plan{.batches = {},
                .rounds = rounds_,
                .dtype = config_.muon_dtype == MuonDType::bf16 ? DType::bf16 : DType::f32,
                .row_norm = config_.muon_row_norm};
  std::vector<MuonMatrix> matrices;
  for (const Batch& batch : batches_) {
    const auto first = static_cast<std::int64_t>(matrices.size());
    for (std::size_t i = 0; i < batch.params.size(); ++i)
      if (batch.owner(i, ranks) == rank)
        matrices.push_back({.offset = batch.params[i].param->offset,
                            .m = batch.params[i].states[0],
                            .decays = batch.params[i].param->decays ? 1 : 0});
    const std::int64_t count = static_cast<std::int64_t>(matrices.size()) - first;
    if (count > 0)
      plan.batches.push_back({.rows = batch.rows, .cols = batch.cols, .first = first, .count = count});
  }
  const auto bytes = std::as_bytes(std::span(matrices));
  return {.items = {bytes.begin(), bytes.end()}, .plan = std::make_shared<const MuonPlan>(std::move(plan))};
}

void Muon::stage(const RuleStep& step, std::byte* settings_bytes) const {
  const MuonSettings settings = settings_of(step);
  std::memcpy(settings_bytes, &settings, sizeof(settings));
}

std::vector<OwnedParam> Muon::owned(int ranks) const {
  std::vector<OwnedParam> all;
  for (const Batch& batch : batches_)
    for (std::size_t i = 0; i < batch.params.size(); ++i)
      all.push_back({batch.owner(i, ranks), &batch.params[i]});
  return all;
}

std::string summary(const OptimizerConfig& config) {
  return config.muon_weight_decay > 0 ? fmt::format("Muon (weight decay {})", config.muon_weight_decay)
                                      : "Muon";
}

constexpr std::string_view kKeys[] = {"muon_weight_decay",   "muon_momentum", "muon_momentum_start",
                                      "muon_momentum_steps", "muon_steps",    "muon_dtype",
                                      "muon_coefficients",   "muon_row_norm"};

}  // namespace

double muon_momentum_at(const OptimizerConfig& config, std::int64_t step) {
  if (config.muon_momentum_steps <= 0) return config.muon_momentum;
  const double share =
      std::min(1.0, static_cast<double>(step) / static_cast<double>(config.muon_momentum_steps));
  return (1 - share) * config.muon_momentum_start + share * config.muon_momentum;
}

constinit const RuleDefinition rule::kMuon = {
    .name = "muon",
    .title = "Muon",
    .states = {"m"},
    .keys = kKeys,
    .trains =
        [](const Param& param, const OptimizerConfig& config) {
          return config.uses_muon() && param.group == ParamGroup::matrix;
        },
    .make = [](std::vector<RuleParam> params, const OptimizerConfig& config) -> std::unique_ptr<UpdateRule> {
      return std::make_unique<Muon>(params, config);
    },
    .workspace_bytes = workspace_bytes,
    .summary = summary,
    .settings_bytes = sizeof(MuonSettings)};

}  // namespace thimble
