#include "optim/device_step.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "optim/gradient_buckets.h"
#include "tensor/device.h"

namespace thimble {

namespace {

constexpr std::string_view kLessModel = "lower dim, layers or vocab_size";
constexpr std::string_view kLessRows = "lower batch_tokens";

}  // namespace

DeviceStep::DeviceStep(const Context& context, const StepKernels& kernels, Model& model, Optimizer& optimizer,
                       const TrainConfig& config, bool capture, DeviceCommunicator* gpus)
    : context_(context),
      runtime_(*context.runtime()),
      kernels_(kernels),
      model_(model),
      optimizer_(optimizer),
      config_(config),
      capture_(capture),
      gpus_(gpus),
      gradients_(context.runtime(), model.trained_params().block_size(), "the gradients", kLessModel) {
  for (const Optimizer::ActiveRule& active : optimizer_.rules()) add_rule(active);
  if (scaled()) loss_scale_ = Arena(context_.runtime(), sizeof(LossScale), "the loss scale", kLessModel);
  send_loss_scale();
}

void DeviceStep::add_rule(const Optimizer::ActiveRule& active) {
  const RuleDefinition& definition = *active.definition;
  const RuleKernels* kernels = kernels_.find(definition.name);
  check(kernels, "[step] the update rule '{}' has no kernels for this device", definition.name);
  check(kernels->settings_bytes == definition.settings_bytes,
        Hint{"rebuild the binary and the plugin together"},
        "[step] the rule '{}' has {} bytes of settings, its kernels expect {}", definition.name,
        definition.settings_bytes, kernels->settings_bytes);
  Rule rule{.definition = &definition,
            .rule = active.rule.get(),
            .kernels = kernels,
            .share = active.rule->device_share(gpus_ ? gpus_->rank() : 0, ranks()),
            .items = {},
            .call = {}};
  const auto bytes = static_cast<std::int64_t>(rule.share.items.size());
  if (bytes > 0) {  // otherwise other ranks own all of the rule's parameters
    rule.items = Arena(context_.runtime(), bytes, "the optimizer", kLessModel);
    runtime_.upload(rule.items.at(0), rule.share.items.data(), bytes);
    runtime_.synchronize();
  }
  rule.call = {.state = nullptr,
               .items = rule.items.at(0),
               .item_bytes = bytes,
               .plan = rule.share.plan.get(),
               .memory = optimizer_.memory(definition, nullptr, gradients_.on_device(), runtime_.device())};
  rules_.push_back(std::move(rule));
}

// Waits, so that no memory is freed while the device uses it.
DeviceStep::~DeviceStep() {
  try {
    runtime_.synchronize();
  } catch (const Error&) {
    // The error has already been reported.
  }
}

void DeviceStep::queue(const Batch& batch) {
  check(batch.micro_batches.size() == batch.dropout_seeds.size(), "[step] got {} seeds for {} micro-batches",
        batch.dropout_seeds.size(), batch.micro_batches.size());
  Key key{{}, batch.options.qat_bits, batch.options.recompute, model_.loop_on()};
  for (const Rows& rows : batch.micro_batches) key.rows.push_back(rows.count());
  if (key != key_) lay_out(batch, key);

  if (in_flight_.size() == kAhead) complete_oldest();
  Flight& flight = flights_[next_flight_];
  next_flight_ = (next_flight_ + 1) % kAhead;
  stage(batch, flight.staging.data());
  runtime_.upload(block_.at(0), flight.staging.data(), block_.bytes());
  if (graph_) {
    graph_->launch();
  } else if (has_run_ && capture_) {
    graph_ = capture(runtime_, [&] { queue_work(); });
    graph_->launch();
  } else {
    queue_work();
    has_run_ = true;
  }
  runtime_.download(flight.outcome.data(), device_state(), sizeof(StepState));
  flight.done->record();
  flight.step = batch.step;
  in_flight_.push_back(&flight);
  model_.device_weights_changed();
}

StepOutcome DeviceStep::oldest() {
  check(steps_in_flight() > 0, "[step] no step is in flight");
  if (outcomes_.empty()) complete_oldest();
  const StepOutcome outcome = outcomes_.front();
  outcomes_.pop_front();
  return outcome;
}

std::optional<StepOutcome> DeviceStep::finished() {
  while (!in_flight_.empty() && in_flight_.front()->done->done()) complete_oldest();
  if (outcomes_.empty()) return {};
  return oldest();
}

void DeviceStep::complete_oldest() {
  const Flight& flight = *in_flight_.front();
  flight.done->wait();
  const StepState& state = flight.outcome.as<StepState>()[0];
  outcomes_.push_back(
      {flight.step, state.loss, state.norm, state.finite != 0, static_cast<double>(state.loss_scale)});
  in_flight_.pop_front();
}

void DeviceStep::lay_out(const Batch& batch, const Key& key) {
  while (!in_flight_.empty()) complete_oldest();
  key_.reset();  // stays empty if an allocation below fails
  graph_.reset();
  has_run_ = false;
  parts_.clear();
  model_.keep_training_programs(key.rows, batch.options);  // frees the others first
  std::int64_t offset = align_up(sizeof(StepState)),
               scratch = kernels_.sum_scratch_bytes(model_.trained_params().block_size());
  for (Rule& rule : rules_) {
    rule.settings = offset;
    offset += align_up(static_cast<std::int64_t>(rule.definition->settings_bytes));
    if (rule.kernels->scratch_bytes) scratch = std::max(scratch, rule.kernels->scratch_bytes(rule.call));
  }
  for (const Rows& rows : batch.micro_batches) {
    BoundProgram& program = model_.training_program(rows.count(), batch.options);
    parts_.push_back({&program, offset});
    offset += program.input_bytes();
    scratch = std::max(scratch, kernels_.sum_scratch_bytes(rows.count()));
  }
  block_ = Arena(context_.runtime(), offset, "the inputs of a step", kLessRows);
  scratch_ = Arena(context_.runtime(), scratch, "the sums of a step", kLessRows);
  for (Flight& flight : flights_) {
    flight.staging = PinnedBuffer(context_.runtime(), offset);
    if (flight.done) continue;
    flight.outcome = PinnedBuffer(context_.runtime(), sizeof(StepState));
    flight.done = runtime_.make_event();
  }
  key_ = key;
}

void DeviceStep::stage(const Batch& batch, std::byte* staging) {
  const StepState state{.clip = optimizer_.config().clip};
  std::memcpy(staging, &state, sizeof(state));
  for (const Rule& rule : rules_)
    rule.rule->stage({.step = batch.step, .multiplier = batch.multiplier}, staging + rule.settings);
  for (std::size_t i = 0; i < parts_.size(); ++i)
    parts_[i].program->stage(batch.micro_batches[i], batch.dropout_seeds[i], staging + parts_[i].offset);
}

void DeviceStep::queue_work() {
  runtime_.zero(gradients_.on_device(),
                model_.trained_params().block_size() * static_cast<std::int64_t>(sizeof(float)));
  std::vector<BoundProgram*> prepared;
  for (const Part& part : parts_) {
    BoundProgram& bound = *part.program;
    model_.bind_gradients(bound, gradients_.on_device());  // the model's own calls bind others
    bound.take_staged(block_.at(part.offset));
    const Tensor weight = bound.row_weights();
    if (scaled()) kernels_.scale_rows(context_, device_scale(), weight.row<float>(0), weight.rows);
    if (std::ranges::find(prepared, &bound) == prepared.end()) {
      bound.program().prepare();
      prepared.push_back(&bound);
    }
    if (gpus_ && &part == &parts_.back())
      run_and_sum(bound);
    else
      bound.program().run();
    const Tensor nats = bound.program().tensor(bound.graph().nats);
    kernels_.add_weighted_sum(context_, nats.row<float>(0), weight.row<float>(0), nats.rows,
                              &device_state()->loss, scratch_.at(0));
  }
  kernels_.finish_norm(context_, gradients_.on_device(), model_.trained_params().block_size(), device_state(),
                       device_scale(), scratch_.at(0));
  for (const Rule& rule : rules_) {
    RuleCall call = rule.call;
    call.state = device_state();
    call.settings = block_.at(rule.settings);
    call.memory.weights = model_.device_weights();
    call.scratch = scratch_.at(0);
    rule.kernels->update(context_, call);
  }
  if (!gpus_) return;
  gather_owned([&](const Rule&, const RuleParam& param) {
    return std::vector{model_.device_weights() + param.param->offset};
  });
}

// Runs the last micro-batch. A bucket is summed as soon as the step that completes it is queued.
void DeviceStep::run_and_sum(BoundProgram& bound) {
  const std::vector<GradientBucket> buckets = gradient_buckets(bound);
  std::size_t next = 0;
  bound.program().run(nullptr, [&](int step) {
    for (; next < buckets.size() && buckets[next].after_step <= step; ++next) {
      std::vector<std::span<float>> pieces;
      for (const GradientRange& range : buckets[next].ranges)
        pieces.emplace_back(gradients_.on_device() + range.offset, static_cast<std::size_t>(range.count));
      gpus_->sum(pieces);
    }
  });
  gpus_->join();
}

template <class Blocks>
void DeviceStep::gather_owned(Blocks blocks) {
  std::vector<OwnedFloats> parts;
  for (const Rule& rule : rules_)
    for (const OwnedParam& owned : rule.rule->owned(ranks()))
      for (float* values : blocks(rule, *owned.param))
        parts.push_back({owned.rank, {values, static_cast<std::size_t>(owned.param->param->count())}});
  if (parts.empty()) return;
  gpus_->gather(parts);
  gpus_->join();
}

void DeviceStep::gather_states() {
  if (!gpus_) return;
  gather_owned([&](const Rule& rule, const RuleParam& param) {
    std::vector<float*> states;
    for (std::size_t i = 0; i < rule.definition->state_count(); ++i)
      states.push_back(param.state(rule.call.memory, i).data());
    return states;
  });
}

void DeviceStep::fetch_loss_scale() {
  if (!scaled()) return;
  runtime_.download(&optimizer_.loss_scale(), device_scale(), sizeof(LossScale));
  runtime_.synchronize();
}

void DeviceStep::send_loss_scale() {
  if (!scaled()) return;
  runtime_.upload(device_scale(), &optimizer_.loss_scale(), sizeof(LossScale));
  runtime_.synchronize();
}

}  // namespace thimble
