// Measures training speed: complete optimizer steps on random tokens, compared with the machine's
// matrix products of the same shapes, timed just before each step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
#include "config/config.h"
#include "graph/program.h"
#include "ops/cpu/gemm.h"
#include "tensor/device.h"

namespace thimble {

// All matrix products of a forward pass; equal shapes are merged into one entry with a count.
std::vector<ProductShape> products_of(const ModelConfig& config);

// Nothing is faster than its ceiling, so a ceiling below the speed was measured while other
// programs used the machine. Measures such a ceiling again, up to three times, and returns the
// highest.
double ceiling_above(double speed, double measured, const std::function<double()>& measure_again);
// nullopt if the ceiling is still below the speed.
std::optional<double> fraction_of(double speed, double ceiling);

struct StepBenchRequest {
  Config config;  // resolved
  DType dtype = DType::f32;
  std::int64_t steps = 3;
  bool profile = false;  // time every op; slightly slower; CPU only
  bool ceiling = true;   // also time the matrix products alone; false: peak_flops is 0
  std::shared_ptr<DeviceRuntime> device = cpu_runtime();
  // FLOP rate of the matrix products alone for this many rows; required on a GPU for the ceiling.
  std::function<double(std::int64_t rows)> gpu_peak_flops = {};
};

struct StepBench {
  std::int64_t tokens = 0;       // of one step
  double seconds = 0;            // of one step: the median
  double optimizer_seconds = 0;  // the optimizer's part of one step: the median; 0 on a GPU
  double flops = 0;              // of one step's matrix products and attention, without the optimizer
  double peak_flops = 0;         // per second, of the matrix products alone
  // Per step; `seconds` and, unless it had to be measured again, `peak_flops` are the medians.
  std::vector<double> all_seconds, all_peaks;
  Profile profile;

  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
  double flops_per_second() const { return flops / seconds; }
};

StepBench bench_steps(const StepBenchRequest& request, const ProgressOutput& progress,
                      const Interrupt& interrupt);

}  // namespace thimble
