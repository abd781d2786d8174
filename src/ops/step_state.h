// Data shared by an optimizer step on a device and its kernels, which are not ops of a tape: the
// state of the step, the loss scale, and the arguments of update rules.
//
// StepState lives in device memory, so a captured step can be launched again. The host uploads it
// before the step (with outputs zero) and downloads it afterwards. If the gradient norm is not
// finite, the update is skipped: states and weights do not change, and `finite` is 0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace thimble {

class Context;

// The loss scale of f16 training, with the rules of PyTorch's GradScaler.
//
// f16 represents numbers from 6e-8 to 65504, and most gradients of activations are below that
// range. The loss, and with it every gradient, is therefore multiplied by a power of two; gradients
// are divided by it before they are used (norm, clipping, update). If a gradient of a step is not
// finite, the step changes nothing and the scale is halved. After kGrowthSteps good steps in a row
// it is doubled.
//
// Multiplying by a power of two is exact: without overflow or underflow, the scale does not change
// the result.
inline constexpr float kInitialLossScale = 65536;
inline constexpr std::int32_t kGrowthSteps = 2000;
// If gradients overflow at this scale, the run has diverged.
inline constexpr float kMinLossScale = 0x1p-13f;
inline constexpr float kMaxLossScale = 0x1p100f;  // f32 can store the scaled gradients

// It persists across steps in its own device memory, where the step updates it.
struct LossScale {
  float scale = kInitialLossScale;
  std::int32_t good_steps = 0;  // in a row, since the scale last changed

  bool operator==(const LossScale&) const = default;
};

// The scale of the next step.
constexpr LossScale next_loss_scale(LossScale now, bool finite) {
  if (!finite) return {now.scale * 0.5f, 0};
  if (now.good_steps + 1 < kGrowthSteps) return {now.scale, now.good_steps + 1};
  return {now.scale < kMaxLossScale ? now.scale * 2 : now.scale, 0};
}

// Checks a state read from a file: a power of two in range, and a step count that can occur.
constexpr bool is_loss_scale(float scale, float good_steps) {
  if (!(scale >= kMinLossScale && scale <= kMaxLossScale)) return false;
  while (scale > 1) scale *= 0.5f;
  while (scale < 1) scale *= 2;
  return scale == 1 && good_steps >= 0 && good_steps < kGrowthSteps &&
         static_cast<float>(static_cast<std::int32_t>(good_steps)) == good_steps;
}

inline constexpr double kClipEps = 1e-6;  // as torch.nn.utils.clip_grad_norm_

struct StepState {
  double clip = 0;  // set by the host: the maximum norm of the gradient, 0: no limit

  // Set by the device.
  double loss = 0;          // sum over rows of weight nats, over all micro-batches
  double squared_norm = 0;  // of the gradient, before clipping
  double norm = 0;
  float grad_scale = 0;     // factor of clipping, divided by the loss scale
  std::int32_t finite = 0;  // 1: the update was applied
  float loss_scale = 0;     // of the next step; 0: no loss scaling
};

// The memory blocks that an update rule works on, on the host or on a device.
inline constexpr std::size_t kMaxStates = 3;
struct RuleMemory {
  float* weights = nullptr;                    // laid out as in the params table
  const float* gradients = nullptr;            // likewise
  std::array<float*, kMaxStates> states = {};  // in the order of RuleDefinition::states
};

// Arguments of a rule's kernels. Only `plan` points to host memory.
struct RuleCall {
  const StepState* state = nullptr;
  const std::byte* settings = nullptr;  // such as learning rates; a struct of the rule
  const std::byte* items = nullptr;     // parameter parts to update; structs of the rule
  std::int64_t item_bytes = 0;
  const void* plan = nullptr;  // launch parameters, in a struct of the rule
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

// An update rule (optim/update_rule.h) on a device. Queued; a non-finite norm skips the update.
struct RuleKernels {
  std::string_view rule;                                     // RuleDefinition::name
  std::size_t settings_bytes = 0;                            // RuleDefinition::settings_bytes
  std::int64_t (*scratch_bytes)(const RuleCall&) = nullptr;  // reads items and plan; nullptr: none
  void (*update)(const Context&, const RuleCall&) = nullptr;
};

// Step kernels of a device. Pointers are device pointers; calls are queued.
struct StepKernels {
  // Bytes of scratch needed to sum `count` values.
  std::int64_t (*sum_scratch_bytes)(std::int64_t count);
  // *total += sum of values[i] weights[i], in f64 over fixed blocks.
  void (*add_weighted_sum)(const Context&, const float* values, const float* weights, std::int64_t count,
                           double* total, std::byte* scratch);
  // weights[i] *= scale->scale. Scaling the row weights scales the loss and all gradients.
  void (*scale_rows)(const Context&, const LossScale* scale, float* weights, std::int64_t count);
  // Computes squared_norm, norm, grad_scale and finite from all gradients. `scale` is the factor of
  // loss and gradients: loss and norms are divided by it, then it is updated for the next step.
  // nullptr: no loss scaling.
  void (*finish_norm)(const Context&, const float* gradients, std::int64_t count, StepState* state,
                      LossScale* scale, std::byte* scratch);
  std::span<const RuleKernels* const> rules = {};

  const RuleKernels* find(std::string_view rule) const {  // nullptr: no such rule
    for (const RuleKernels* kernels : rules)
      if (kernels->rule == rule) return kernels;
    return nullptr;
  }
};

}  // namespace thimble
