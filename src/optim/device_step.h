// A whole optimizer step on a device: forward and backward of every micro-batch, the gradient's norm, the update.
//
// The step is queued, not waited for: the host prepares the next batch meanwhile and runs at most two steps ahead. The
// first step of a shape is queued kernel by kernel and makes all plans; the second is captured, and from then on a step
// is one launch. What changes from step to step (tokens, targets, row weights, seeds, rates) is uploaded before it:
//
//   staging (pinned, two of them)  ->  device: [StepState][settings of each rule][micro-batch 0][micro-batch 1]...
//                                      ->  each program's inputs
//
// A gradient whose norm is not finite changes nothing: the outcome says so, some steps later.
//
// Where the config's dtype is f16 the loss is scaled (ops/step_state.h). The scale lives in the device's memory and is
// changed there, step by step; fetch_loss_scale() brings it to the optimizer, as states are fetched. A step that is
// skipped still is a step: of the schedule, and of Adam's count.
//
// Several ranks (`gpus`): each sums its gradients with the others' bucket by bucket, as backward finishes them. A rule
// may share its parameters out (UpdateRule::owned): a rank updates its own and sends the new weights to all. Their states
// are then the owner's alone, until gather_states(). The loss is this rank's.
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
  double loss = 0;  // sum over rows of weight nats
  double norm = 0;  // of the gradient, before clipping
  bool updated = false;
  double loss_scale = 0;  // of the next step; 0: the loss is not scaled
};

class DeviceStep {
 public:
  DeviceStep(const Context& context, const StepKernels& kernels, Model& model, Optimizer& optimizer,
             const TrainConfig& config, bool capture = true, DeviceCommunicator* gpus = nullptr);
  ~DeviceStep();

  struct Batch {
    std::int64_t step = 0;  // counted from 0
    double multiplier = 1;  // the schedule's
    GradientOptions options;
    std::span<const Rows> micro_batches;
    std::span<const std::uint64_t> dropout_seeds;  // one a micro-batch
  };
  void queue(const Batch& batch);  // waits where two steps are on their way already

  // Outcomes in order, each once. oldest() waits for a step; finished() does not.
  StepOutcome oldest();
  std::optional<StepOutcome> finished();
  std::size_t on_their_way() const { return in_flight_.size() + outcomes_.size(); }

  bool captured() const { return graph_ != nullptr; }

  void gather_states();  // queued; of several ranks, all call it

  // From the device to the optimizer, and back; they wait. Nothing where the loss is not scaled.
  void fetch_loss_scale();
  void send_loss_scale();

 private:
  static constexpr std::size_t kAhead = 2;

  // What makes another graph.
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

  // A rule of the optimizer, with its kernels and what they work on.
  struct Rule {
    const RuleDefinition* definition;
    const UpdateRule* rule;
    const RuleKernels* kernels;
    DeviceShare share;
    Arena items;
    std::int64_t settings = 0;  // its place in block_
    RuleCall call;              // all but settings and scratch
  };

  void add_rule(const Optimizer::ActiveRule& active);
  void lay_out(const Batch& batch, const Key& key);
  void stage(const Batch& batch, std::byte* place);
  void queue_work();
  void run_and_sum(BoundProgram& bound);
  // Everyone gets what each rank updated. blocks(rule, parameter): where its values lie, one place for each block.
  template <class Blocks>
  void gather_owned(Blocks blocks);
  int ranks() const { return gpus_ ? gpus_->size() : 1; }
  void land();
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
    std::int64_t offset;  // of its inputs in the block
  };
  std::vector<Part> parts_;
  Arena block_;
  bool warm_ = false;  // a step of this key has run
  std::unique_ptr<DeviceGraph> graph_;
  std::array<Flight, kAhead> flights_;
  std::deque<Flight*> in_flight_;
  std::deque<StepOutcome> outcomes_;
  std::size_t next_flight_ = 0;
};

}  // namespace thimble
