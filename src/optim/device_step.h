// One optimizer step on a device: forward and backward of every micro-batch, the gradient norm, the
// update.
//
// Steps are queued: the host prepares the next batch while the device works and runs at most two
// steps ahead. The first step of a shape is queued kernel by kernel, the second is captured as a
// graph, and every later step is one graph launch. Values that change between steps (tokens,
// targets, row weights, seeds, rates) are uploaded before the step:
//
//   staging (pinned, two of them)  ->  device: [StepState][settings of each rule][micro-batch 0]...
//                                      ->  each program's inputs
//
// A non-finite gradient norm leaves everything unchanged; the outcome reports it, up to two steps
// later.
//
// With dtype f16 the loss is scaled (ops/step_state.h). The scale is stored and updated on the
// device; fetch_loss_scale() copies it to the optimizer, as fetch_states() does for states. A
// skipped step still counts as a step, in the schedule and in Adam's t.
//
// With several ranks (`gpus`), each bucket of gradients is summed over the ranks as soon as
// backward has completed it. If a rule divides its parameters among the ranks (UpdateRule::owned),
// each rank updates its own and sends the new weights to all; only the owner's states are valid
// until gather_states(). The reported loss is this rank's.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dist/communicator.h"
#include "model/model.h"
#include "ops/step_state.h"
#include "optim/optimizer.h"

namespace thimble {

struct StepOutcome {
  std::int64_t step = 0;
  double loss = 0;  // weighted sum of nats over rows
  double norm = 0;  // of the gradient, before clipping
  bool updated = false;
  double loss_scale = 0;  // for the next step; 0: the loss is not scaled
};

class DeviceStep {
 public:
  DeviceStep(const Context& context, const StepKernels& kernels, Model& model, Optimizer& optimizer,
             const TrainConfig& config, bool capture = true, DeviceCommunicator* gpus = nullptr);
  ~DeviceStep();

  struct Batch {
    std::int64_t step = 0;  // counted from 0
    double multiplier = 1;  // of the learning rates, from the schedule
    GradientOptions options;
    std::span<const Rows> micro_batches;
    std::span<const std::uint64_t> dropout_seeds;  // one per micro-batch
  };
  void queue(const Batch& batch);  // waits if two steps are in flight

  // Each returns every outcome once, in order. oldest() waits for a step; finished() returns
  // nullopt instead.
  StepOutcome oldest();
  std::optional<StepOutcome> finished();
  std::size_t steps_in_flight() const { return in_flight_.size() + outcomes_.size(); }

  bool captured() const { return graph_ != nullptr; }

  void gather_states();  // queued; all ranks must call it

  // Copy the loss scale from the device to the optimizer, and back, and wait. No-ops if the loss is
  // not scaled.
  void fetch_loss_scale();
  void send_loss_scale();

 private:
  static constexpr std::size_t kAhead = 2;

  // The properties of a step that require a new graph when they change.
  struct Key {
    std::vector<std::int64_t> rows;
    int qat_bits = 0;
    bool recompute = false;
    bool loop_on = true;
    bool operator==(const Key&) const = default;
  };
  struct Flight {
    PinnedBuffer staging;
    PinnedBuffer outcome;
    std::unique_ptr<DeviceEvent> done;
    std::int64_t step = 0;
  };

  // A rule of the optimizer with its kernels and their data.
  struct Rule {
    const RuleDefinition* definition;
    const UpdateRule* rule;
    const RuleKernels* kernels;
    DeviceShare share;
    Arena items;
    std::int64_t settings = 0;  // offset in block_
    RuleCall call;              // complete except for settings and scratch
  };

  void add_rule(const Optimizer::ActiveRule& active);
  void lay_out(const Batch& batch, const Key& key);
  void stage(const Batch& batch, std::byte* staging);
  void queue_work();
  void run_and_sum(BoundProgram& bound);
  // Sends the values that each rank owns to all ranks. blocks(rule, parameter) returns the
  // addresses of a parameter's values.
  template <class Blocks>
  void gather_owned(Blocks blocks);
  int ranks() const { return gpus_ ? gpus_->size() : 1; }
  void complete_oldest();
  StepState* device_state() const { return reinterpret_cast<StepState*>(block_.at(0)); }
  bool scaled() const { return config_.dtype == ComputeDType::f16; }
  LossScale* device_scale() const {
    return scaled() ? reinterpret_cast<LossScale*>(loss_scale_.at(0)) : nullptr;
  }

  const Context& context_;
  DeviceRuntime& runtime_;
  StepKernels kernels_;
  Model& model_;
  Optimizer& optimizer_;
  TrainConfig config_;
  bool capture_;
  DeviceCommunicator* gpus_;  // nullptr: one rank
  FloatArena gradients_;
  Arena scratch_, loss_scale_;
  std::vector<Rule> rules_;

  std::optional<Key> key_;
  struct Part {
    BoundProgram* program;
    std::int64_t offset;  // of its inputs in block_
  };
  std::vector<Part> parts_;
  Arena block_;
  bool has_run_ = false;  // a step with this key has run
  std::unique_ptr<DeviceGraph> graph_;
  std::array<Flight, kAhead> flights_;
  std::deque<Flight*> in_flight_;
  std::deque<StepOutcome> outcomes_;
  std::size_t next_flight_ = 0;
};

}  // namespace thimble
