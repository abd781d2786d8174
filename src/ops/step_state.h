// What an optimizer step on a device shares with its kernels, which are no ops of a tape: the state of a step, the scale
// of the loss, and what the kernels of an update rule are called with.
//
// All of StepState lies in the device's memory, so that a recorded step can be launched again: the host uploads it
// before the step (outputs zero) and downloads it afterwards. A gradient norm that is not finite skips the update:
// states and weights stay as they are, and `finite` says so.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace thimble {

class Context;

// The scale of the loss in f16 training, as PyTorch's GradScaler keeps it.
//
// f16 holds numbers from 6e-8 to 65504, and most gradients of activations are smaller. So the loss is multiplied by a
// power of two, and with it every gradient; they are divided by it again before they are used (norm, clipping, update).
// A step whose gradients are not all finite was scaled too far: it changes nothing, and the scale is halved. After
// kGrowthSteps good steps in a row it is doubled.
//
// Products with a power of two are exact: as long as nothing overflows or underflows the scale changes no bit.
inline constexpr float kFirstLossScale = 65536;
inline constexpr std::int32_t kGrowthSteps = 2000;
// Gradients that overflow even so are not the scale's fault: the run has diverged.
inline constexpr float kLeastLossScale = 0x1p-13f;
inline constexpr float kMostLossScale = 0x1p100f;  // f32 holds the scaled gradients

// It outlives a step, so it has a place of its own in the device's memory, where the step itself changes it.
struct LossScale {
  float scale = kFirstLossScale;
  std::int32_t good_steps = 0;  // in a row, since the scale was changed

  bool operator==(const LossScale&) const = default;
};

// What the next step is scaled by.
constexpr LossScale next_loss_scale(LossScale now, bool finite) {
  if (!finite) return {now.scale * 0.5f, 0};
  if (now.good_steps + 1 < kGrowthSteps) return {now.scale, now.good_steps + 1};
  return {now.scale < kMostLossScale ? now.scale * 2 : now.scale, 0};
}

// Whether a state read from a file is one that steps can lead to.
constexpr bool is_loss_scale(float scale, float good_steps) {
  if (!(scale >= kLeastLossScale && scale <= kMostLossScale)) return false;
  while (scale > 1) scale *= 0.5f;
  while (scale < 1) scale *= 2;
  return scale == 1 && good_steps >= 0 && good_steps < kGrowthSteps &&
         static_cast<float>(static_cast<std::int32_t>(good_steps)) == good_steps;
}

inline constexpr double kClipEps = 1e-6;  // as torch.nn.utils.clip_grad_norm_

struct StepState {
  double clip = 0;  // from the host: the largest norm of the gradient; 0: no limit

  // From the device.
  double loss = 0;          // sum over rows of weight nats, over all micro-batches
  double squared_norm = 0;  // of the gradient, before clipping
  double norm = 0;
  float grad_scale = 0;  // what clipping multiplies gradients by, and what takes the loss scale out of them
  std::int32_t finite = 0;  // 1: the update was made
  float loss_scale = 0;     // of the next step; 0: the loss is not scaled
};

// The blocks that a rule updates parameters in, on the host or on a device.
inline constexpr std::size_t kMostStates = 3;
struct RuleMemory {
  float* weights = nullptr;                     // laid out as the params table says
  const float* gradients = nullptr;             // likewise
  std::array<float*, kMostStates> states = {};  // in the order of RuleDefinition::states
};

// What a rule's kernels are called with. Only `plan` is in the host's memory.
struct RuleCall {
  const StepState* state = nullptr;
  const std::byte* settings = nullptr;  // of this step: rates and the like, in a struct of the rule's own
  const std::byte* items =
      nullptr;  // the parts of parameters that this rank updates, in structs of the rule's own
  std::int64_t item_bytes = 0;
  const void* plan = nullptr;  // what the kernels must know to be launched; the rule's own
  RuleMemory memory;
  std::byte* scratch = nullptr;

  template <class T>
  const T* settings_as() const {
    return reinterpret_cast<const T*>(settings);
  }
  template <class T>
  const T* items_as() const {
    return reinterpret_cast<const T*>(items);
  }
  template <class T>
  std::int64_t count_of() const {
    return item_bytes / static_cast<std::int64_t>(sizeof(T));
  }
  template <class T>
  const T& plan_as() const {
    return *static_cast<const T*>(plan);
  }
};

// An update rule (optim/update_rule.h) on a device. Everything is queued; nothing changes unless the norm was finite.
struct RuleKernels {
  std::string_view rule;                                     // RuleDefinition::name
  std::size_t settings_bytes = 0;                            // RuleDefinition::settings_bytes
  std::int64_t (*scratch_bytes)(const RuleCall&) = nullptr;  // reads items and plan alone; nullptr: none
  void (*update)(const Context&, const RuleCall&) = nullptr;
};

// Step kernels of a device. All pointers are the device's; all are queued.
struct StepKernels {
  // Bytes of scratch that sums over `count` values need.
  std::int64_t (*sum_scratch_bytes)(std::int64_t count);
  // *total += sum of values[i] weights[i], in f64 over fixed blocks.
  void (*add_weighted_sum)(const Context&, const float* values, const float* weights, std::int64_t count,
                           double* total, std::byte* scratch);
  // weights[i] *= scale->scale: of rows, and so of the loss and of all gradients.
  void (*scale_rows)(const Context&, const LossScale* scale, float* weights, std::int64_t count);
  // squared_norm, norm, grad_scale and finite, from all gradients. `scale` is what they and the loss were multiplied by:
  // it is taken out of loss and norms, and becomes that of the next step. nullptr: nothing was scaled.
  void (*finish_norm)(const Context&, const float* gradients, std::int64_t count, StepState* state,
                      LossScale* scale, std::byte* scratch);
  std::span<const RuleKernels* const> rules = {};

  const RuleKernels* find(std::string_view rule) const {  // nullptr: the device cannot update by this rule
    for (const RuleKernels* kernels : rules)
      if (kernels->rule == rule) return kernels;
    return nullptr;
  }
};

}  // namespace thimble
