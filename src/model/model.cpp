#include "model/model.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "ops/rope.h"
#include "ops/sums.h"

namespace thimble {

KvCache::KvCache(const ModelConfig& config, std::int64_t slots)
    : slots_(slots),
      context_(config.context),
      width_(config.kv_width()),
      layers_(config.layers),
      arena_(2 * layers_ * slots_ * context_ * width_ * static_cast<std::int64_t>(sizeof(float)),
             "the key-value cache", "lower the number of slots or the context") {}

Tensor KvCache::matrix(std::int64_t index) const {
  const std::int64_t rows = slots_ * context_;
  const std::int64_t bytes = rows * width_ * static_cast<std::int64_t>(sizeof(float));
  return {arena_.at(index * bytes), rows, width_, width_, DType::f32, Device::cpu};
}

void KvCache::copy_prefix(std::int64_t from, std::int64_t to, std::int64_t count) {
  for (std::int64_t index = 0; index < 2 * layers_; ++index) {
    const Tensor cache = matrix(index);
    std::memmove(cache.row<float>(to * context_), cache.row<float>(from * context_),
                 static_cast<std::size_t>(count * width_) * sizeof(float));
  }
}

// A program with memory for its inputs, so that a run with as many rows as the last binds nothing anew.
struct Model::Entry {
  Entry(GptGraph recorded, const ScheduleOptions& options, const Context& context)
      : graph(std::move(recorded)), program(std::move(graph.tape), options, context) {}

  void set(Value value, std::span<const std::int32_t> data) {
    if (!value) return;
    auto& place = integers[value.id];
    const bool same = place.size() == data.size();
    place.resize(data.size());
    std::ranges::copy(data, place.begin());
    if (!same) program.bind(value, make_tensor(place.data(), static_cast<std::int64_t>(place.size()), 1));
  }

  void set_inputs(const Rows& rows) {
    set(graph.token, rows.token);
    set(graph.token_order, rows.token_order);
    set(graph.bucket, rows.bucket);
    set(graph.bucket_order, rows.bucket_order);
    set(graph.embedded_position, rows.embedded_position);
    set(graph.position_order, rows.position_order);
    set(graph.previous, rows.previous);
    set(graph.position, rows.position);
    set(graph.first, rows.first);
    set(graph.slot, rows.slot);
    set(graph.gather, rows.gather);
    set(graph.target, rows.target);
    if (!graph.weight) return;
    const bool same = weight.size() == rows.weight.size();
    weight.resize(rows.weight.size());
    std::ranges::copy(rows.weight, weight.begin());
    if (!same) program.bind(graph.weight, make_tensor(weight.data(), rows.count(), 1));
  }

  GptGraph graph;
  Program program;
  std::map<int, std::vector<std::int32_t>> integers;
  std::vector<float> weight;
  const float* gradients = nullptr;  // bound block
  const std::byte* cache = nullptr;  // memory of the bound cache
  std::uint64_t version = 0;         // of the weights it was prepared with
};

namespace {

std::int64_t turned_columns(const ModelConfig& config) {
  return config.position == PositionKind::rope ? config.rope_dims : 2;
}

}  // namespace

Model::Model(const ModelConfig& config, const Context& context)
    : config_(config),
      params_(config),
      context_(&context),
      weights_(params_.block_size(), "the weights", "lower dim, layers or vocab_size"),
      turns_(static_cast<std::size_t>(config.context * turned_columns(config))),
      programs_(std::make_unique<ProgramCache<Entry>>()) {
  const Tensor turns = make_tensor(turns_.data(), config.context, turned_columns(config));
  const int direction = config.position == PositionKind::rope ? static_cast<int>(config.rope_direction) : 0;
  fill_turns(turns, config.rope_base, direction);
  // Without RoPE nothing turns: cosine 1, sine 0 at every position.
  if (direction == 0)
    for (std::int64_t p = 0; p < turns.rows; ++p) turns.row<float>(p)[0] = 1;
}

Model::~Model() = default;
Model::Model(Model&&) noexcept = default;

void Model::weights_changed() {
  ++version_;
}

Model::Entry& Model::entry_for(const ProgramKey& key, const GptOptions& options, bool recompute) {
  Entry& entry = programs_->get(key, [&] {
    GptGraph graph = record_gpt(config_, params_, options);
    ScheduleOptions schedule{.training = options.mode == Mode::training, .recompute = recompute, .keep = {}};
    if (graph.nats) schedule.keep.push_back(graph.nats);
    if (graph.logits) schedule.keep.push_back(graph.logits);
    auto made = std::make_unique<Entry>(std::move(graph), schedule, *context_);
    for (const auto& [value, view] : made->graph.parameters)
      made->program.bind(value, make_tensor(weights().data() + view.offset, view.rows, view.cols));
    made->program.bind(made->graph.turns,
                       make_tensor(turns_.data(), config_.context, turned_columns(config_)));
    return made;
  });
  return entry;
}

double Model::add_gradients(const Rows& rows, std::span<float> gradients, const GradientOptions& options) {
  check(gradients.size() == weights().size(), "[model] {} gradients for {} weights", gradients.size(),
        weights().size());
  const int phase = options.qat_bits * 2 + (options.recompute ? 1 : 0);
  Entry& entry = entry_for({.rows = rows.count(), .gathered = 0, .mode = Mode::training, .phase = phase},
                           {.mode = Mode::training, .rows = rows.count(), .qat_bits = options.qat_bits},
                           options.recompute);
  entry.set_inputs(rows);
  const std::array<std::int32_t, 2> seed = {static_cast<std::int32_t>(options.dropout_seed),
                                            static_cast<std::int32_t>(options.dropout_seed >> 32)};
  entry.set(entry.graph.dropout_seed, seed);
  if (entry.gradients != gradients.data()) {
    for (const auto& [value, view] : entry.graph.parameters)
      entry.program.bind_gradient(value, make_tensor(gradients.data() + view.offset, view.rows, view.cols));
    entry.gradients = gradients.data();
  }
  if (std::exchange(entry.version, version_) != version_) entry.program.prepare();
  entry.program.run();
  const Tensor nats = entry.program.tensor(entry.graph.nats);
  return cpu::weighted_sum({nats.row<float>(0), static_cast<std::size_t>(nats.rows)}, rows.weight);
}

Model::Scores Model::score(const Rows& rows, bool logits) {
  Entry& entry =
      entry_for({.rows = rows.count(), .gathered = 0, .mode = Mode::scoring, .phase = logits ? 1 : 0},
                {.mode = Mode::scoring, .rows = rows.count(), .logits = logits}, false);
  entry.set_inputs(rows);
  entry.program.run();
  const auto copied = [&](Value value) {
    const Tensor tensor = entry.program.tensor(value);
    return std::vector<float>(tensor.row<float>(0), tensor.row<float>(0) + tensor.count());
  };
  return {copied(entry.graph.nats), logits ? copied(entry.graph.logits) : std::vector<float>{}};
}

Tensor Model::decode(const Rows& rows, KvCache& cache) {
  check(!rows.gather.empty(), "[model] decoding needs at least one row whose logits are wanted");
  const std::int64_t bucket = row_bucket(rows.count()),
                     gathered = row_bucket(static_cast<std::int64_t>(rows.gather.size()));
  Entry& entry = entry_for(
      {.rows = bucket,
       .gathered = gathered,
       .mode = Mode::decoding,
       .phase = static_cast<int>(cache.slots())},
      {.mode = Mode::decoding, .rows = bucket, .gathered = gathered, .slots = cache.slots()}, false);
  entry.set_inputs(rows);
  // Compared by its memory: another cache may come to lie where a dead one lay.
  if (entry.cache != cache.memory()) {
    for (std::size_t l = 0; l < entry.graph.k_cache.size(); ++l) {
      entry.program.bind(entry.graph.k_cache[l], cache.keys(static_cast<std::int64_t>(l)));
      entry.program.bind(entry.graph.v_cache[l], cache.values(static_cast<std::int64_t>(l)));
    }
    entry.cache = cache.memory();
  }
  entry.program.run();
  return entry.program.tensor(entry.graph.logits);
}

MemoryPlan training_plan(const ModelConfig& config, std::int64_t rows, const GradientOptions& options) {
  const ParamTable params(config);
  const GptGraph graph =
      record_gpt(config, params, {.mode = Mode::training, .rows = rows, .qat_bits = options.qat_bits});
  const Schedule schedule =
      make_schedule(graph.tape, {.training = true, .recompute = options.recompute, .keep = {graph.nats}});
  return plan_memory(graph.tape, schedule, Backend::cpu);
}

}  // namespace thimble
