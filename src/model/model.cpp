#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/rope.h"
#include "ops/sums.h"
#include "ops/table.h"

namespace thimble {

DType compute_dtype(ComputeDType requested, Device device) {
  const bool multiplies_bf16 = device == Device::cuda || training_dtype(cpu_features()).dtype == "bf16";
  switch (requested) {
    case ComputeDType::automatic:
      return multiplies_bf16 ? DType::bf16 : DType::f32;
    case ComputeDType::f32:
      return DType::f32;
    case ComputeDType::bf16:
      return DType::bf16;
    case ComputeDType::f16:
      break;
  }
  check(device == Device::cuda,
        Hint{"use --dtype bf16 or f32, or --device cuda; files with f16 weights work with any dtype"},
        "the CPU cannot compute in f16");
  return DType::f16;
}

std::string dtype_fallback(ComputeDType requested, Device device, const CpuFeatures& features) {
  const DtypeChoice choice = training_dtype(features);
  if (requested != ComputeDType::automatic || device == Device::cuda || choice.dtype == "bf16") return "";
  return fmt::format("fell back to {}: {}", choice.dtype, choice.reason);
}

std::string dtype_notice(ComputeDType requested, Device device, const CpuFeatures& features) {
  if (requested != ComputeDType::bf16 || device == Device::cuda || training_dtype(features).dtype == "bf16")
    return "";
  return "computing in bf16, for which this CPU has no instructions: --dtype f32 would be faster";
}

namespace {

std::int64_t rope_columns(const ModelConfig& config) {
  return config.position == PositionKind::rope ? config.rope_dims : 2;
}

// The angles of layers with a window may differ.
std::int64_t rope_tables(const ModelConfig& config) {
  return config.local_rope_base > 0 ? 2 : 1;
}

// A GPU needs many rows to be fully used: up to 256 MiB of f32 logits. On the CPU a chunk should
// fit into the cache.
// A frozen head has no gradient, whose sum would be read and written for every chunk.
int head_chunk(const ModelConfig& config, Device device, bool frozen) {
  constexpr std::int64_t kCpuRows = 1024, kLogits = std::int64_t{64} << 20, kFrozenLogits = kLogits / 2;
  if (device == Device::cpu)
    return static_cast<int>(frozen ? std::clamp<std::int64_t>(kFrozenLogits / config.vocab_size, 64, kCpuRows)
                                   : kCpuRows);
  return static_cast<int>(std::max(kCpuRows, kLogits / config.vocab_size));
}

void check_has_kernels(const ModelConfig& config, Device device) {
  constexpr std::int64_t kLargestHead = 256;  // ops/cuda/attention.cu
  check(device == Device::cpu || config.head_dim <= kLargestHead, Hint{"use --device cpu"},
        "CUDA has kernels for heads of up to {} columns, but this model's head_dim is {}", kLargestHead,
        config.head_dim);
}

ForTraining training_purpose(const GradientOptions& options) {
  return {.qat_bits = options.qat_bits, .recompute = options.recompute};
}

GptOptions gpt_options(const ProgramKey& key) {
  GptOptions options{.rows = key.rows, .loop_on = key.loop_on};
  if (const auto* training = std::get_if<ForTraining>(&key.purpose)) {
    options.mode = Mode::training;
    options.qat_bits = training->qat_bits;
  } else if (const auto* scoring = std::get_if<ForScoring>(&key.purpose)) {
    options.mode = Mode::scoring;
    options.logits = scoring->logits;
  } else {
    const auto& decoding = std::get<ForDecoding>(key.purpose);
    options.mode = Mode::decoding;
    options.gathered = decoding.gathered;
    options.slots = decoding.slots;
  }
  return options;
}

}  // namespace

Model::Model(const ModelConfig& config, const Context& context, DType dtype)
    : Model(config, context, dtype, nullptr) {}

Model::Model(const ModelConfig& config, const Context& context, DType dtype,
             std::shared_ptr<const StoredWeights> weights, std::shared_ptr<const AdapterTable> adapters)
    : config_(config),
      params_(config),
      context_(&context),
      dtype_(dtype),
      stored_(std::move(weights)),
      adapters_(std::move(adapters)),
      weights_(context.runtime(), stored_ && !adapters_ ? 0 : trained_params().block_size(), "the weights",
               "lower dim, layers or vocab_size"),
      turns_(context.runtime(), rope_tables(config) * config.context * rope_columns(config), "the RoPE table",
             "lower the context"),
      programs_(std::make_unique<ProgramCache<BoundProgram>>()),
      threads_(max_threads()) {
  check_has_kernels(config, device());
  if (stored_ && device() != Device::cpu) {
    stored_block_ =
        Arena(context.runtime(), stored_->bytes(), "the weights", "use a smaller model or --device cpu");
    context.runtime()->upload(stored_block_.at(0), stored_->block(), stored_->bytes());
    context.runtime()->synchronize();
  }
  fill_turns_table();
}

void Model::fill_turns_table() {
  const std::int64_t cols = rope_columns(config_);
  for (std::int64_t table = 0; table < rope_tables(config_); ++table) {
    const Tensor turns =
        make_tensor(turns_.all().data() + table * config_.context * cols, config_.context, cols);
    // Without RoPE the angle is 0 at every position: cosine 1, sine 0.
    if (config_.position == PositionKind::rope)
      fill_rotations(turns, rope_frequencies(config_, table == 1), static_cast<int>(config_.rope_direction),
                     rope_attention_factor(config_, table == 1));
    else
      fill_rotations(turns, std::array{0.0}, 1);
  }
  turns_.send();
}

std::span<float> Model::float_weights() const {
  check(!stored_ || adapters_, "[model] stored weights cannot be accessed as floats");
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

BoundProgram& Model::program_for(ProgramKey key) {
  key.loop_on = loop_on_;
  GptOptions options = gpt_options(key);
  options.dtype = dtype_;
  options.head_chunk = head_chunk(config_, context_->device(), adapters_ != nullptr);
  options.stored = stored_.get();
  options.adapters = adapters_.get();
  return programs_->get(key, [&] {
    GptGraph graph = record_gpt(config_, params_, options);
    const auto* training = std::get_if<ForTraining>(&key.purpose);
    ScheduleOptions schedule{
        .training = training != nullptr, .recompute = training && training->recompute, .keep = {}};
    if (graph.nats) schedule.keep.push_back(graph.nats);
    if (graph.logits) schedule.keep.push_back(graph.logits);
    // A captured graph of a GPU does not prepare its program again, so its memory is not shared.
    const BoundProgram* lender = training || device() != Device::cpu ? nullptr : largest_training_program();
    auto made = std::make_unique<BoundProgram>(std::move(graph), schedule, *context_,
                                               lender ? &lender->program() : nullptr);
    bind_parameters(*made);
    const std::int64_t cols = rope_columns(config_);
    float* turns = turns_.on_device();
    made->program().bind(made->graph().turns, on_device(turns, config_.context, cols));
    if (made->graph().local_turns)
      made->program().bind(made->graph().local_turns,
                           on_device(turns + config_.context * cols, config_.context, cols));
    return made;
  });
}

const BoundProgram* Model::largest_training_program() const {
  const BoundProgram* largest = nullptr;
  programs_->each([&](const ProgramKey& key, const BoundProgram& bound) {
    if (!std::holds_alternative<ForTraining>(key.purpose)) return;
    if (!largest || bound.program().plan().arena_bytes > largest->program().plan().arena_bytes)
      largest = &bound;
  });
  return largest;
}

void Model::bind_parameters(BoundProgram& bound) {
  for (const auto& [value, view] : bound.graph().parameters)
    bound.program().bind(value, stored_
                                    ? stored_on_device(stored_->view(view).values)
                                    : on_device(weights_.on_device() + view.offset, view.rows, view.cols));
  for (const auto& [value, view] : bound.graph().adapters)
    bound.program().bind(value, on_device(weights_.on_device() + view.offset, view.rows, view.cols));
  for (const auto& [value, view] : bound.graph().scales)
    bound.program().bind(value, stored_on_device(stored_->view(view).scales));
}

Tensor Model::stored_on_device(Tensor tensor) const {
  if (device() == Device::cpu) return tensor;
  tensor.data = stored_block_.at(static_cast<const std::byte*>(tensor.data) - stored_->block());
  tensor.device = device();
  return tensor;
}

// Compares the cache's memory, not its address: a new KvCache object may have the address of an old
// one.
void Model::bind_cache(BoundProgram& bound, const KvCache& cache) {
  if (std::exchange(bound.cache, cache.memory()) == cache.memory()) return;
  for (std::size_t l = 0; l < bound.graph().k_cache.size(); ++l) {
    bound.program().bind(bound.graph().k_cache[l], cache.keys(static_cast<std::int64_t>(l)));
    bound.program().bind(bound.graph().v_cache[l], cache.values(static_cast<std::int64_t>(l)));
  }
  if (const auto recorded = recorded_.find(&bound); recorded != recorded_.end() && recorded->second.decode)
    recorded->second.decode->forget();
}

void Model::prepare(BoundProgram& bound) {
  const bool is_current = std::exchange(bound.version, version_) == version_;
  if (!is_current || !bound.program().is_prepared()) bound.program().prepare(profile_);
}

void Model::run(BoundProgram& bound) {
  prepare(bound);
  bound.program().run(profile_);
  if (stored_) stored_->check_files();
}

BoundProgram& Model::training_program(std::int64_t rows, const GradientOptions& options) {
  check(!stored_ || adapters_, "[model] stored weights without adapters cannot be trained");
  return program_for({.rows = rows, .purpose = training_purpose(options)});
}

void Model::keep_training_programs(std::span<const std::int64_t> rows, const GradientOptions& options) {
  programs_->drop_if([&](const ProgramKey& key, const BoundProgram&) {
    const auto* training = std::get_if<ForTraining>(&key.purpose);
    if (!training) return device() == Device::cpu;
    return (*training != training_purpose(options) || key.loop_on != loop_on_ ||
            std::ranges::find(rows, key.rows) == rows.end());
  });
}

void Model::bind_gradients(BoundProgram& bound, float* gradients) {
  if (std::exchange(bound.gradients, gradients) == gradients) return;
  for (const auto& [value, view] : bound.graph().trained())
    bound.program().bind_gradient(value, on_device(gradients + view.offset, view.rows, view.cols));
}

double Model::add_gradients(const Rows& rows, std::span<float> gradients, const GradientOptions& options) {
  check(gradients.size() == weights().size(), "[model] found {} gradients for {} weights", gradients.size(),
        weights().size());
  BoundProgram& bound = training_program(rows.count(), options);
  bound.set_inputs(rows, options.dropout_seed);
  if (context_->device() == Device::cpu) {
    bind_gradients(bound, gradients.data());
    prepare(bound);
    bound.program().run(profile_, options.after_step ? *options.after_step : Program::AfterStep{});
    if (stored_) stored_->check_files();
  } else {
    add_gradients_of_device(bound, gradients);
  }
  return cpu::weighted_sum(bound.fetch(bound.graph().nats), rows.weight);
}

void Model::add_gradients_of_device(BoundProgram& bound, std::span<float> gradients) {
  FloatArena block(context_->runtime(), trained_params().block_size(), "the gradients",
                   "lower dim, layers or vocab_size");
  bind_gradients(bound, block.on_device());
  run(bound);
  block.fetch();
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] += block.all()[i];
  bound.gradients = nullptr;  // the block is freed, and a later one may have the same address
}

BoundProgram& Model::scoring_program(std::int64_t rows, bool logits) {
  return program_for({.rows = rows, .purpose = ForScoring{.logits = logits}});
}

void Model::queue_score(const Rows& rows) {
  queued_ = &scoring_program(rows.count(), false);
  queued_->set_inputs(rows);
  run(*queued_);
}

std::vector<float> Model::queued_nats() {
  check(queued_ != nullptr, "[model] no score is queued");
  const BoundProgram& bound = *std::exchange(queued_, nullptr);
  return bound.fetch(bound.graph().nats);
}

Model::Scores Model::score(const Rows& rows, bool logits) {
  BoundProgram& bound = scoring_program(rows.count(), logits);
  bound.set_inputs(rows);
  run(bound);
  return {bound.fetch(bound.graph().nats), logits ? bound.fetch(bound.graph().logits) : std::vector<float>{}};
}

void Model::observe_products(const Rows& rows, const ProductObserver& observer) {
  BoundProgram& bound = scoring_program(rows.count(), false);
  bound.set_inputs(rows);
  bound.program().set_product_hook([&](Value parameter, const Tensor& x) {
    const auto& parameters = bound.graph().parameters;
    const auto found = std::ranges::find(parameters, parameter, &std::pair<Value, ParamView>::first);
    if (found != parameters.end()) observer(found->second, x);
  });
  try {
    run(bound);
  } catch (...) {
    bound.program().set_product_hook({});
    throw;
  }
  bound.program().set_product_hook({});
}

KvCache Model::make_cache(std::int64_t slots) const {
  return {config_, slots, dtype_, context_->runtime(), loop_on_};
}

Tensor Model::decode(const Rows& rows, KvCache& cache) {
  check(!rows.gather.empty(), "[model] decoding needs at least one row in gather");
  check_slot_rows(rows);
  return device() == Device::cpu ? decode_on_cpu(rows, cache) : decode_on_gpu(rows, cache);
}

// More rows would overwrite keys in the rings of the cache that the first of them attend to.
void Model::check_slot_rows(const Rows& rows) const {
  if (rows.count() <= kCacheSlack || cache_ring(config_).rows == 0) return;
  std::map<std::int32_t, std::int64_t> by_slot;
  for (const std::int32_t slot : rows.slot)
    check(++by_slot[slot] <= kCacheSlack,
          "[model] expected at most {} rows of a slot in a call, because of the model's window", kCacheSlack);
}

// `gathered`: maximum number of rows with logits; 0: all rows.
BoundProgram& Model::decoding_program(std::int64_t rows, std::int64_t gathered, const KvCache& cache) {
  BoundProgram& bound =
      program_for({.rows = rows, .purpose = ForDecoding{.gathered = gathered, .slots = cache.slots()}});
  bind_cache(bound, cache);
  return bound;
}

Tensor Model::decode_on_cpu(const Rows& rows, KvCache& cache) {
  if (!pool_) pool_ = std::make_unique<ThreadPool>(threads_);
  const PoolScope scope(*pool_);
  const std::int64_t bucket = row_bucket(rows.count()),
                     gathered = row_bucket(static_cast<std::int64_t>(rows.gather.size()));
  BoundProgram& bound = decoding_program(bucket, gathered, cache);
  bound.set_inputs(rows);
  run(bound);
  return bound.program().tensor(bound.graph().logits);
}

Tensor Model::decode_on_gpu(const Rows& rows, KvCache& cache) {
  const std::int64_t bucket = gpu_bucket(rows.count()), logit_rows = std::ssize(rows.gather);
  const std::int64_t gathered = logit_rows == rows.count() ? 0 : std::min(bucket, row_bucket(logit_rows));
  BoundProgram& bound = decoding_program(bucket, gathered, cache);
  prepare(bound);
  Recorded& recorded = recorded_[&bound];
  recorded.used = ++decoded_;
  if (!recorded.decode) {
    drop_recorded();
    recorded.decode = std::make_unique<RecordedDecode>(bound, *context_);
  }
  const Tensor logits = recorded.decode->step(padded_rows(rows, bucket, std::max(gathered, logit_rows)));
  return logits.row_range(0, logit_rows);
}

// Each recorded program occupies GPU memory, so the least recently used one is dropped.
void Model::drop_recorded() {
  if (recorded_.size() <= kMostRecorded) return;
  const auto oldest =
      std::ranges::min_element(recorded_, {}, [](const auto& one) { return one.second.used; });
  const BoundProgram* program = oldest->first;
  recorded_.erase(oldest);
  programs_->drop_if([&](const ProgramKey&, const BoundProgram& bound) { return &bound == program; });
}

constexpr std::int64_t kCpuDecodeRows = 512;

// On a GPU, all rows may have logits, which are copied through pinned memory. The limit is the
// number of rows whose logits fit into 256 MiB, but at least 512.
std::int64_t Model::max_decode_rows() const {
  constexpr std::int64_t kFew = 512, kMany = 4096, kLogits = std::int64_t{64} << 20;
  return device() == Device::cpu ? kCpuDecodeRows : std::clamp(kLogits / config_.vocab_size, kFew, kMany);
}

std::int64_t Model::max_slot_rows() const {
  return cache_ring(config_).rows > 0 ? kCacheSlack : std::numeric_limits<std::int64_t>::max();
}

std::int64_t score_rows_beside(std::int64_t training_rows) {
  constexpr std::int64_t kFewest = 1024, kMost = 8192;
  return std::clamp(training_rows, kFewest, kMost);
}

// On a GPU, the largest size up to 65536 rows whose program needs at most half of the free memory.
std::int64_t Model::max_score_rows() {
  constexpr std::int64_t kMost = 65536, kLeast = 8192;
  if (device() == Device::cpu) {
    const BoundProgram* training = largest_training_program();
    return training ? score_rows_beside(training->row_weights().rows) : kLeast;
  }
  if (max_score_rows_ > 0) return max_score_rows_;
  const std::int64_t available = context_->runtime()->available_bytes();
  std::int64_t rows = kMost;
  while (rows > kLeast && scoring_plan(rows).arena_bytes > available / 2) rows /= 2;
  return max_score_rows_ = rows;
}

MemoryPlan Model::scoring_plan(std::int64_t rows) const {
  const GptGraph graph = record_gpt(config_, params_,
                                    {.mode = Mode::scoring,
                                     .rows = rows,
                                     .loop_on = loop_on_,
                                     .dtype = dtype_,
                                     .head_chunk = head_chunk(config_, device(), adapters_ != nullptr),
                                     .stored = stored_.get(),
                                     .adapters = adapters_.get()});
  const Backend& backend = backend_of(device());
  const Schedule schedule = schedule_for(graph.tape, {.training = false, .keep = {graph.nats}}, backend);
  return plan_memory(graph.tape, schedule, backend);
}

MemoryPlan training_plan(const ModelConfig& config, std::int64_t rows, const GradientOptions& options,
                         DType dtype, Device device, bool loop_on, const FrozenBase& base) {
  const ParamTable params(config);
  GptOptions recorded{
      .mode = Mode::training, .rows = rows, .loop_on = loop_on, .qat_bits = options.qat_bits, .dtype = dtype};
  recorded.head_chunk = head_chunk(config, device, base.adapters != nullptr);
  recorded.stored = base.weights;
  recorded.adapters = base.adapters;
  const GptGraph graph = record_gpt(config, params, recorded);
  const Backend& backend = backend_of(device);
  const Schedule schedule = schedule_for(
      graph.tape, {.training = true, .recompute = options.recompute, .keep = {graph.nats}}, backend);
  return plan_memory(graph.tape, schedule, backend);
}

MemoryPlan decoding_plan(const ModelConfig& config) {
  const ParamTable params(config);
  const GptGraph graph = record_gpt(
      config, params,
      {.mode = Mode::decoding, .rows = std::min(kCpuDecodeRows, config.context), .gathered = 1, .slots = 1});
  const Backend& backend = backend_of(Device::cpu);
  const Schedule schedule = schedule_for(graph.tape, {.training = false, .keep = {graph.logits}}, backend);
  return plan_memory(graph.tape, schedule, backend);
}

}  // namespace thimble
