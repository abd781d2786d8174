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

// Parameters of one group and one decay share a StepGroup.
int step_group_of(const Param& param) {
  return static_cast<int>(param.group) * 2 + (param.decays ? 1 : 0);
}
static_assert(kParamGroups * 2 <= kStepGroups);

std::vector<AdamChunk> chunks_of(const ParamTable& params, const Optimizer& optimizer) {
  std::vector<AdamChunk> chunks;
  for (const Param& param : params.all()) {
    if (optimizer.trained_by_muon(param)) continue;
    for (std::int64_t begin = 0; begin < param.count(); begin += kAdamChunk)
      chunks.push_back({.offset = param.offset + begin,
                        .second = optimizer.second_offset(param) + begin,
                        .count = static_cast<std::int32_t>(std::min(kAdamChunk, param.count() - begin)),
                        .group = step_group_of(param)});
  }
  return chunks;
}

}  // namespace

DeviceStep::DeviceStep(const Context& context, const StepKernels& kernels, Model& model, Optimizer& optimizer,
                       const TrainConfig& config, bool capture, DeviceCommunicator* cards)
    : context_(context),
      runtime_(*context.runtime()),
      kernels_(kernels),
      model_(model),
      optimizer_(optimizer),
      config_(config),
      capture_(capture),
      cards_(cards),
      gradients_(context.runtime(), model.params().block_size(), "the gradients", kLessModel) {
  upload_chunks();
  upload_matrices();
  if (scaled()) loss_scale_ = Arena(context_.runtime(), sizeof(LossScale), "the loss scale", kLessModel);
  send_loss_scale();
}

void DeviceStep::upload_chunks() {
  const std::vector<AdamChunk> chunks = chunks_of(model_.params(), optimizer_);
  chunk_count_ = static_cast<std::int64_t>(chunks.size());
  const auto bytes = static_cast<std::int64_t>(chunks.size() * sizeof(AdamChunk));
  chunks_ = Arena(context_.runtime(), bytes, "the optimizer", kLessModel);
  runtime_.upload(chunks_.at(0), chunks.data(), bytes);
  runtime_.synchronise();
}

void DeviceStep::upload_matrices() {
  const Muon& muon = optimizer_.muon();
  const int own = cards_ ? cards_->rank() : 0;
  std::vector<MuonMatrix> matrices;
  std::vector<std::int64_t> counts;  // of a batch: this rank's
  for (const Muon::Batch& batch : muon.batches()) {
    const std::size_t before = matrices.size();
    for (std::size_t i = 0; i < batch.params.size(); ++i)
      if (Muon::owner(batch, i, ranks()) == own)
        matrices.push_back({batch.params[i]->offset, batch.params[i]->decays ? 1 : 0});
    counts.push_back(static_cast<std::int64_t>(matrices.size() - before));
  }
  if (matrices.empty()) return;
  const auto bytes = static_cast<std::int64_t>(matrices.size() * sizeof(MuonMatrix));
  matrices_ = Arena(context_.runtime(), bytes, "the optimizer", kLessModel);
  runtime_.upload(matrices_.at(0), matrices.data(), bytes);
  runtime_.synchronise();
  const auto* place = reinterpret_cast<const MuonMatrix*>(matrices_.at(0));
  for (std::size_t b = 0; b < counts.size(); ++b) {
    const Muon::Batch& batch = muon.batches()[b];
    if (counts[b] == 0) continue;
    muon_.push_back({.rows = batch.rows,
                     .cols = batch.cols,
                     .count = counts[b],
                     .matrices = place,
                     .rounds = muon.rounds(),
                     .dtype = optimizer_.config().muon_dtype == MuonDType::bf16 ? DType::bf16 : DType::f32,
                     .row_norm = optimizer_.config().muon_row_norm});
    place += counts[b];
  }
}

// Memory that the device still works in must not go first.
DeviceStep::~DeviceStep() {
  try {
    runtime_.synchronise();
  } catch (const Error&) {
    // What broke it has been told already.
  }
}

void DeviceStep::queue(const Batch& batch) {
  check(batch.micro_batches.size() == batch.dropout_seeds.size(), "[step] {} seeds for {} micro-batches",
        batch.dropout_seeds.size(), batch.micro_batches.size());
  Key key{{}, batch.options.qat_bits, batch.options.recompute, model_.config().loop_on};
  for (const Rows& rows : batch.micro_batches) key.rows.push_back(rows.count());
  if (key != key_) lay_out(batch, key);

  if (in_flight_.size() == kAhead) land();
  Flight& flight = flights_[next_flight_];
  next_flight_ = (next_flight_ + 1) % kAhead;
  stage(batch, flight.staging.data());
  runtime_.upload(block_.at(0), flight.staging.data(), block_.bytes());
  if (graph_) {
    graph_->launch();
  } else if (warm_ && capture_) {
    graph_ = capture(runtime_, [&] { queue_work(); });
    graph_->launch();
  } else {
    queue_work();
    warm_ = true;
  }
  runtime_.download(flight.outcome.data(), device_state(), sizeof(StepState));
  flight.done->record();
  flight.step = batch.step;
  in_flight_.push_back(&flight);
  model_.device_weights_changed();
}

StepOutcome DeviceStep::oldest() {
  check(on_their_way() > 0, "[step] no step is on its way");
  if (outcomes_.empty()) land();
  const StepOutcome outcome = outcomes_.front();
  outcomes_.pop_front();
  return outcome;
}

std::optional<StepOutcome> DeviceStep::finished() {
  while (!in_flight_.empty() && in_flight_.front()->done->done()) land();
  if (outcomes_.empty()) return {};
  return oldest();
}

void DeviceStep::land() {
  const Flight& flight = *in_flight_.front();
  flight.done->wait();
  const StepState& state = flight.outcome.as<StepState>()[0];
  outcomes_.push_back(
      {flight.step, state.loss, state.norm, state.finite != 0, static_cast<double>(state.loss_scale)});
  in_flight_.pop_front();
}

void DeviceStep::lay_out(const Batch& batch, const Key& key) {
  while (!in_flight_.empty()) land();
  key_.reset();  // until all is there: memory may not be had
  graph_.reset();
  warm_ = false;
  parts_.clear();
  model_.keep_training_programs(key.rows, batch.options);  // those before make room
  std::int64_t offset = align_up(sizeof(StepState)),
               scratch = kernels_.sum_scratch_bytes(model_.params().block_size());
  for (const Rows& rows : batch.micro_batches) {
    BoundProgram& program = model_.training_program(rows.count(), batch.options);
    parts_.push_back({&program, offset});
    offset += program.input_bytes();
    scratch = std::max(scratch, kernels_.sum_scratch_bytes(rows.count()));
  }
  for (const MuonBatch& matrices : muon_) scratch = std::max(scratch, kernels_.muon_scratch_bytes(matrices));
  block_ = Arena(context_.runtime(), offset, "the tokens of a step", kLessRows);
  scratch_ = Arena(context_.runtime(), scratch, "the sums of a step", kLessRows);
  for (Flight& flight : flights_) {
    flight.staging = PinnedBuffer(context_.runtime(), offset);
    if (flight.done) continue;
    flight.outcome = PinnedBuffer(context_.runtime(), sizeof(StepState));
    flight.done = runtime_.make_event();
  }
  key_ = key;
}

void DeviceStep::set_rates(const Batch& batch, StepState& state) const {
  for (const Param& param : model_.params().all())
    if (!optimizer_.trained_by_muon(param))
      state.groups[step_group_of(param)] =
          step_group(optimizer_.adam_step(param, batch.step, batch.multiplier));
  const MuonStep muon = optimizer_.muon_step(batch.step, batch.multiplier);
  state.muon = {.momentum = muon.momentum,
                .rate = muon.rate,
                .shrink = static_cast<float>(1 - muon.rate * optimizer_.config().muon_weight_decay)};
  state.clip = optimizer_.config().clip;
}

void DeviceStep::stage(const Batch& batch, std::byte* place) {
  StepState state;
  set_rates(batch, state);
  std::memcpy(place, &state, sizeof(state));
  for (std::size_t i = 0; i < parts_.size(); ++i)
    parts_[i].program->stage(batch.micro_batches[i], batch.dropout_seeds[i], place + parts_[i].offset);
}

void DeviceStep::queue_work() {
  runtime_.zero(gradients_.on_device(),
                model_.params().block_size() * static_cast<std::int64_t>(sizeof(float)));
  std::vector<BoundProgram*> prepared;
  for (const Part& part : parts_) {
    BoundProgram& bound = *part.program;
    model_.bind_gradients(bound, gradients_.on_device());  // the model's own calls may have bound others
    bound.take_staged(block_.at(part.offset));
    const Tensor weight = bound.row_weights();
    if (scaled()) kernels_.scale_rows(context_, device_scale(), weight.row<float>(0), weight.rows);
    if (std::ranges::find(prepared, &bound) == prepared.end()) {
      bound.program().prepare();
      prepared.push_back(&bound);
    }
    if (cards_ && &part == &parts_.back())
      run_and_sum(bound);
    else
      bound.program().run();
    const Tensor nats = bound.program().tensor(bound.graph().nats);
    kernels_.add_weighted_sum(context_, nats.row<float>(0), weight.row<float>(0), nats.rows,
                              &device_state()->loss, scratch_.at(0));
  }
  kernels_.finish_norm(context_, gradients_.on_device(), model_.params().block_size(), device_state(),
                       device_scale(), scratch_.at(0));
  kernels_.adam(context_, device_state(), reinterpret_cast<const AdamChunk*>(chunks_.at(0)), chunk_count_,
                model_.device_weights(), gradients_.on_device(), optimizer_.first_moments().on_device(),
                optimizer_.second_moments().on_device());
  for (const MuonBatch& matrices : muon_)
    kernels_.muon(context_, device_state(), matrices, model_.device_weights(), gradients_.on_device(),
                  optimizer_.first_moments().on_device(), scratch_.at(0));
  if (cards_) gather_matrices(model_.device_weights());
}

// The last micro-batch: a bucket leaves when its last gradient is queued.
void DeviceStep::run_and_sum(BoundProgram& bound) {
  const std::vector<GradientBucket> buckets = gradient_buckets(bound);
  std::size_t next = 0;
  bound.program().run(nullptr, [&](int step) {
    for (; next < buckets.size() && buckets[next].after_step <= step; ++next) {
      std::vector<std::span<float>> pieces;
      for (const GradientRange& range : buckets[next].ranges)
        pieces.emplace_back(gradients_.on_device() + range.offset, static_cast<std::size_t>(range.count));
      cards_->sum(pieces);
    }
  });
  cards_->join();
}

void DeviceStep::gather_matrices(float* block) {
  std::vector<OwnedFloats> parts;
  for (const Muon::Batch& batch : optimizer_.muon().batches())
    for (std::size_t i = 0; i < batch.params.size(); ++i)
      parts.push_back(
          {Muon::owner(batch, i, ranks()),
           {block + batch.params[i]->offset, static_cast<std::size_t>(batch.params[i]->count())}});
  if (parts.empty()) return;
  cards_->gather(parts);
  cards_->join();
}

void DeviceStep::gather_momenta() {
  if (cards_) gather_matrices(optimizer_.first_moments().on_device());
}

void DeviceStep::fetch_loss_scale() {
  if (!scaled()) return;
  runtime_.download(&optimizer_.loss_scale(), device_scale(), sizeof(LossScale));
  runtime_.synchronise();
}

void DeviceStep::send_loss_scale() {
  if (!scaled()) return;
  runtime_.upload(device_scale(), &optimizer_.loss_scale(), sizeof(LossScale));
  runtime_.synchronise();
}

}  // namespace thimble
