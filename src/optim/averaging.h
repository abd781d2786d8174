// Averages of the weights over a run, which often score better than the final weights.
//
//   SWA   the mean of the weights at every swa_every-th step, while the rate is falling and below
//         swa_start of its peak
//   EMA   after every update: average = decay average + (1 - decay) weights, starting from the
//         initial weights
//
// Averages are f32. A checkpoint keeps the average and the number of weights in it. Once an average
// exists, validation, checkpoints and exports use it as the model; training continues from the raw
// weights.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "config/config.h"
#include "tensor/arena.h"

namespace thimble {

class Averaging {
 public:
  Averaging(const TrainConfig& config, std::int64_t block_size);

  bool on() const { return config_.swa_start > 0 || config_.ema_decay > 0; }
  // "swa", "ema", or "raw" while there is no average.
  std::string_view kind() const;
  bool available() const { return count_ > 0; }

  void begin(std::span<const float> weights);  // starts a new run
  // For a resumed run whose end was postponed: if the next rate multiplier is not below
  // swa_start, drops the SWA average. Returns whether there was one.
  bool restart_averaging(double multiplier);
  // Whether update number `step` (from 1), made with this rate multiplier, belongs in the average.
  // add() adds it if so.
  bool counts(std::int64_t step, double multiplier) const;
  void add(std::int64_t step, double multiplier, std::span<const float> weights);

  // State for checkpoints. average() has the layout of the weights.
  std::span<float> average() const { return average_.all(); }
  std::int64_t count() const { return count_; }  // number of weights in the average; EMA: 1
  void restore_count(std::int64_t count) { count_ = count; }

 private:
  TrainConfig config_;
  FloatArena average_;  // empty if averaging is off
  std::int64_t count_ = 0;
};

// Swaps the average and the raw weights during its lifetime. Swapping needs no memory and restores
// the same bits.
class AverageInPlace {
 public:
  AverageInPlace(const Averaging& averaging, std::span<float> weights);
  ~AverageInPlace();
  AverageInPlace(const AverageInPlace&) = delete;
  AverageInPlace& operator=(const AverageInPlace&) = delete;

 private:
  std::span<float> average_, weights_;  // empty: no average
};

}  // namespace thimble
