// How fast a model trains here: whole optimizer steps on random tokens, beside what the machine's matrix products reach
// on the same shapes in the same minute.
#pragma once

#include <cstdint>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
#include "config/config.h"
#include "graph/program.h"
#include "ops/cpu/gemm.h"

namespace thimble {

// Every product of a forward pass, equal shapes counted together.
std::vector<ProductShape> products_of(const ModelConfig& config);

struct StepBenchRequest {
  Config config;  // resolved
  DType dtype = DType::f32;
  std::int64_t steps = 3;
  bool profile = false;  // time every op: a little slower
};

struct StepBench {
  std::int64_t tokens = 0;       // of one step
  double seconds = 0;            // of one step: the median
  double optimizer_seconds = 0;  // of them
  double flops = 0;              // of one step's matrix products and attention; the optimizer's not counted
  double peak_flops = 0;         // per second: the same products alone
  std::vector<double> all_seconds, all_peaks;  // of every step, and before each: what medians are taken of
  Profile profile;

  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
  double flops_per_second() const { return flops / seconds; }
  double fraction_of_peak() const { return flops_per_second() / peak_flops; }
};

StepBench bench_steps(const StepBenchRequest& request, const ProgressOutput& progress,
                      const Interrupt& interrupt);

}  // namespace thimble
