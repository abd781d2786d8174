// Measures training speed: complete optimizer steps on random tokens, compared with the machine's
// matrix products of the same shapes, timed just before each step.
#pragma once

#include <cstdint>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
#include "config/config.h"
#include "graph/program.h"
#include "ops/cpu/gemm.h"

namespace thimble {

// All matrix products of a forward pass; equal shapes are merged into one entry with a count.
std::vector<ProductShape> products_of(const ModelConfig& config);

struct StepBenchRequest {
  Config config;  // resolved
  DType dtype = DType::f32;
  std::int64_t steps = 3;
  bool profile = false;  // time every op; slightly slower
};

struct StepBench {
  std::int64_t tokens = 0;       // of one step
  double seconds = 0;            // of one step: the median
  double optimizer_seconds = 0;  // the optimizer's part of one step: the median
  double flops = 0;              // of one step's matrix products and attention, without the optimizer
  double peak_flops = 0;         // per second, of the matrix products alone
  std::vector<double> all_seconds, all_peaks;  // per step; `seconds` and `peak_flops` are the medians
  Profile profile;

  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
  double flops_per_second() const { return flops / seconds; }
  double fraction_of_peak() const { return flops_per_second() / peak_flops; }
};

StepBench bench_steps(const StepBenchRequest& request, const ProgressOutput& progress,
                      const Interrupt& interrupt);

}  // namespace thimble
