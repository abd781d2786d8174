// The scale of the loss in f16 training, as PyTorch's GradScaler keeps it.
//
// f16 holds numbers from 6e-8 to 65504, and most gradients of activations are smaller. So the loss is multiplied by a
// power of two, and with it every gradient; they are divided by it again before anybody looks at them (norm, clipping,
// moments). A step whose gradients are not all finite was scaled too far: it changes nothing, and the scale is halved.
// After kGrowthSteps good steps in a row it is doubled.
//
// Products with a power of two are exact: as long as nothing overflows or underflows the scale changes no bit.
#pragma once

#include <cstdint>

namespace thimble {

inline constexpr float kFirstLossScale = 65536;
inline constexpr std::int32_t kGrowthSteps = 2000;
// Gradients that overflow even so are not the scale's fault: the run has diverged.
inline constexpr float kLeastLossScale = 0x1p-13f;
inline constexpr float kMostLossScale = 0x1p100f;  // f32 holds the scaled gradients

// Plain: it lives in a device's memory, where the step itself changes it.
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

}  // namespace thimble
