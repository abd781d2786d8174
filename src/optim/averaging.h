// Averages of the weights along the way: often better than the weights themselves (parameter-golf 2.5).
//
//   SWA   while the rate falls and is below swa_start of its peak, every swa_every steps: the mean of the weights
//   EMA   after every update: average = decay average + (1 - decay) weights, from the first weights on
//
// Averages are f32 and are their own state: what a checkpoint keeps of them is the average and, for SWA, of how many.
// While there is an average it is what is validated, saved as the model and shipped; training goes on from the raw
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
  // "swa", "ema", or "raw" while there is no average (yet).
  std::string_view kind() const;
  bool available() const { return count_ > 0; }

  void begin(std::span<const float> weights);  // of a new run
  // Of a run whose end was put off: where the next rate is above what SWA averages at, weights from when it was below
  // are dropped. True if there were any.
  bool begin_anew(double multiplier);
  // After update number `step` (from 1), made with the rate times `multiplier`: does it count, and then it is added.
  bool counts(std::int64_t step, double multiplier) const;
  void add(std::int64_t step, double multiplier, std::span<const float> weights);

  // State. The block is laid out like the weights.
  std::span<float> average() const { return average_.all(); }
  std::int64_t count() const { return count_; }  // states in the average; EMA: 1
  void restore_count(std::int64_t count) { count_ = count; }

 private:
  TrainConfig config_;
  FloatArena average_;  // nothing where averaging is off
  std::int64_t count_ = 0;
};

// The averages in the place of the raw weights, for as long as this lives. Swapping costs no memory, and brings
// back the same bits.
class AverageInPlace {
 public:
  AverageInPlace(const Averaging& averaging, std::span<float> weights);
  ~AverageInPlace();
  AverageInPlace(const AverageInPlace&) = delete;
  AverageInPlace& operator=(const AverageInPlace&) = delete;

 private:
  std::span<float> average_, weights_;  // empty: there is no average
};

}  // namespace thimble
