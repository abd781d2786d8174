#include "model/model.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/rope.h"
#include "ops/sums.h"

namespace thimble {

KvCache::KvCache(const ModelConfig& config, std::int64_t slots, DType dtype)
    : slots_(slots),
      context_(config.context),
      width_(config.kv_width()),
      layers_(config.layers),
      dtype_(dtype),
      arena_(2 * layers_ * slots_ * context_ * width_ * dtype_bytes(dtype), "the key-value cache",
             "ask for fewer slots or samples, or a shorter context") {}

Tensor KvCache::matrix(std::int64_t index) const {
  const std::int64_t rows = slots_ * context_;
  return {arena_.at(index * rows * width_ * dtype_bytes(dtype_)), rows, width_, width_, dtype_, Device::cpu};
}

void KvCache::copy_prefix(std::int64_t from, std::int64_t to, std::int64_t count) {
  for (std::int64_t index = 0; index < 2 * layers_; ++index) {
    const Tensor cache = matrix(index);
    std::memmove(cache.row_range(to * context_, count).data, cache.row_range(from * context_, count).data,
                 static_cast<std::size_t>(count * width_ * dtype_bytes(dtype_)));
  }
}

namespace {

std::int64_t turned_columns(const ModelConfig& config) {
  return config.position == PositionKind::rope ? config.rope_dims : 2;
}

// A card needs many rows to be busy: as many as 256 MiB of logits hold. On the CPU a chunk should stay in the cache.
int head_chunk(const ModelConfig& config, Device device) {
  constexpr std::int64_t kCpuRows = 1024, kLogits = std::int64_t{64} << 20;
  if (device == Device::cpu) return kCpuRows;
  return static_cast<int>(std::max(kCpuRows, kLogits / config.vocab_size));
}

}  // namespace

Model::Model(const ModelConfig& config, const Context& context, DType dtype)
    : Model(config, context, dtype, nullptr) {}

Model::Model(const ModelConfig& config, const Context& context, DType dtype,
             std::shared_ptr<const StoredWeights> weights)
    : config_(config),
      params_(config),
      context_(&context),
      dtype_(dtype),
      stored_(std::move(weights)),
      weights_(context.runtime(), stored_ ? 0 : params_.block_size(), "the weights",
               "lower dim, layers or vocab_size"),
      turns_(context.runtime(), config.context * turned_columns(config), "the table of angles",
             "lower the context"),
      programs_(std::make_unique<ProgramCache<BoundProgram>>()),
      threads_(max_threads()) {
  check(!stored_ || context.device() == Device::cpu, "[model] stored weights are used on the CPU alone");
  fill_turns_table();
}

void Model::fill_turns_table() {
  const Tensor turns = make_tensor(turns_.all().data(), config_.context, turned_columns(config_));
  const int direction = config_.position == PositionKind::rope ? static_cast<int>(config_.rope_direction) : 0;
  fill_turns(turns, config_.rope_base, direction);
  // Without RoPE nothing turns: cosine 1, sine 0 at every position.
  if (direction == 0)
    for (std::int64_t p = 0; p < turns.rows; ++p) turns.row<float>(p)[0] = 1;
  turns_.send();
}

std::span<float> Model::float_weights() const {
  check(!stored_, "[model] these weights are stored for inference: there are no floats of them");
  return weights_.all();
}

Model::~Model() = default;
Model::Model(Model&&) noexcept = default;

void Model::weights_changed() {
  weights_.send();
  ++version_;
}

Tensor Model::on_device(float* data, std::int64_t rows, std::int64_t cols) const {
  return {data, rows, cols, cols, DType::f32, context_->device()};
}

BoundProgram& Model::program_for(const ProgramKey& key, GptOptions options, bool recompute) {
  options.dtype = dtype_;
  options.head_chunk = head_chunk(config_, context_->device());
  options.stored = stored_.get();
  return programs_->get(key, [&] {
    GptGraph graph = record_gpt(config_, params_, options);
    ScheduleOptions schedule{.training = options.mode == Mode::training, .recompute = recompute, .keep = {}};
    if (graph.nats) schedule.keep.push_back(graph.nats);
    if (graph.logits) schedule.keep.push_back(graph.logits);
    auto made = std::make_unique<BoundProgram>(std::move(graph), schedule, *context_);
    bind_parameters(*made);
    made->program().bind(made->graph().turns,
                         on_device(turns_.on_device(), config_.context, turned_columns(config_)));
    return made;
  });
}

void Model::bind_parameters(BoundProgram& bound) {
  for (const auto& [value, view] : bound.graph().parameters)
    bound.program().bind(value, stored_
                                    ? stored_->view(view).values
                                    : on_device(weights_.on_device() + view.offset, view.rows, view.cols));
  for (const auto& [value, view] : bound.graph().scales)
    bound.program().bind(value, stored_->view(view).scales);
}

void Model::run(BoundProgram& bound) {
  if (std::exchange(bound.version, version_) != version_) bound.program().prepare(profile_);
  bound.program().run(profile_);
}

BoundProgram& Model::training_program(std::int64_t rows, const GradientOptions& options) {
  check(!stored_, "[model] weights that are stored for inference cannot be trained");
  const int phase = options.qat_bits * 2 + (options.recompute ? 1 : 0);
  return program_for({.rows = rows, .gathered = 0, .mode = Mode::training, .phase = phase},
                     {.mode = Mode::training, .rows = rows, .qat_bits = options.qat_bits}, options.recompute);
}

void Model::bind_gradients(BoundProgram& bound, float* gradients) {
  if (std::exchange(bound.gradients, gradients) == gradients) return;
  for (const auto& [value, view] : bound.graph().parameters)
    bound.program().bind_gradient(value, on_device(gradients + view.offset, view.rows, view.cols));
}

double Model::add_gradients(const Rows& rows, std::span<float> gradients, const GradientOptions& options) {
  check(gradients.size() == weights().size(), "[model] {} gradients for {} weights", gradients.size(),
        weights().size());
  BoundProgram& bound = training_program(rows.count(), options);
  bound.set_inputs(rows, options.dropout_seed);
  if (context_->device() == Device::cpu) {
    bind_gradients(bound, gradients.data());
    if (options.after_step) bound.program().set_after_step(*options.after_step);
    run(bound);
    bound.program().set_after_step({});
  } else {
    add_gradients_of_device(bound, gradients);
  }
  return cpu::weighted_sum(bound.fetch(bound.graph().nats), rows.weight);
}

void Model::add_gradients_of_device(BoundProgram& bound, std::span<float> gradients) {
  FloatArena block(context_->runtime(), params_.block_size(), "the gradients",
                   "lower dim, layers or vocab_size");
  bind_gradients(bound, block.on_device());
  run(bound);
  block.fetch();
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] += block.all()[i];
  bound.gradients = nullptr;  // the block goes: another may come to lie at its address
}

Model::Scores Model::score(const Rows& rows, bool logits) {
  BoundProgram& bound =
      program_for({.rows = rows.count(), .gathered = 0, .mode = Mode::scoring, .phase = logits ? 1 : 0},
                  {.mode = Mode::scoring, .rows = rows.count(), .logits = logits}, false);
  bound.set_inputs(rows);
  run(bound);
  return {bound.fetch(bound.graph().nats), logits ? bound.fetch(bound.graph().logits) : std::vector<float>{}};
}

Tensor Model::decode(const Rows& rows, KvCache& cache) {
  check(context_->device() == Device::cpu, Hint{"--device cpu"}, "decoding does not run on the GPU yet");
  if (!pool_) pool_ = std::make_unique<ThreadPool>(threads_);
  const PoolScope scope(*pool_);
  check(!rows.gather.empty(), "[model] decoding needs at least one row whose logits are wanted");
  const std::int64_t bucket = row_bucket(rows.count()),
                     gathered = row_bucket(static_cast<std::int64_t>(rows.gather.size()));
  BoundProgram& bound = program_for(
      {.rows = bucket,
       .gathered = gathered,
       .mode = Mode::decoding,
       .phase = static_cast<int>(cache.slots())},
      {.mode = Mode::decoding, .rows = bucket, .gathered = gathered, .slots = cache.slots()}, false);
  bound.set_inputs(rows);
  // Compared by its memory: another cache may come to lie where a dead one lay.
  if (std::exchange(bound.cache, cache.memory()) != cache.memory())
    for (std::size_t l = 0; l < bound.graph().k_cache.size(); ++l) {
      bound.program().bind(bound.graph().k_cache[l], cache.keys(static_cast<std::int64_t>(l)));
      bound.program().bind(bound.graph().v_cache[l], cache.values(static_cast<std::int64_t>(l)));
    }
  run(bound);
  return bound.program().tensor(bound.graph().logits);
}

MemoryPlan training_plan(const ModelConfig& config, std::int64_t rows, const GradientOptions& options,
                         DType dtype) {
  const ParamTable params(config);
  const GptGraph graph = record_gpt(
      config, params, {.mode = Mode::training, .rows = rows, .qat_bits = options.qat_bits, .dtype = dtype});
  const Schedule schedule =
      make_schedule(graph.tape, {.training = true, .recompute = options.recompute, .keep = {graph.nats}});
  return plan_memory(graph.tape, schedule, Backend::cpu);
}

}  // namespace thimble
