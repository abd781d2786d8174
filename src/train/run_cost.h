// What a config costs, before anything is allocated: the figures of `train --dry-run`.
//
// FLOPs per token, a multiply-add counted as two:
//   forward   2 x (elements of every matrix that a row meets: linears of the blocks, head, bigram projection)
//             + per layer 2 H D (context + 1): q.k and p.v, each 2 H D, over (context + 1) / 2 earlier tokens
//             on average
//   training  3 x forward: backward computes two products where forward computes one
//
// Memory: weights and gradients 4 bytes an element, each state of an update rule 4 of what it trains, averages 4.
// Activations are the memory plan (plan.h) of one micro-batch, with their gradients, after reuse. Beside them: what
// update rules work in, the programs that validation scores and generates text with, and the process. On the CPU the sum is
// what the system counts at the peak (VmHWM) to 10 %, pages of mapped data not counted: tests/e2e/memory_test.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "graph/memory_plan.h"
#include "tensor/device.h"

namespace thimble {

struct Summary {
  std::int64_t tensors = 0;
  std::int64_t parameters = 0;
  std::array<std::int64_t, kParamGroups> by_group{};
  std::array<std::vector<std::string>, kParamGroups> rules_by_group{};  // "Adam": what updates them

  double forward_flops_per_token = 0;
  double training_flops_per_token = 0;

  std::int64_t weight_bytes = 0;
  std::int64_t gradient_bytes = 0;
  std::int64_t optimizer_bytes = 0;   // averages included
  std::int64_t update_bytes = 0;      // what update rules work in
  std::int64_t validation_bytes = 0;  // programs that score some 8192 tokens and generate samples
  std::int64_t process_bytes = 0;     // about, with what matrix products pack into
  MemoryPlan plan;                    // of a micro-batch
  std::int64_t micro_batch_rows = 0;  // for which
  std::int64_t total_bytes() const {
    return weight_bytes + gradient_bytes + optimizer_bytes + update_bytes + plan.arena_bytes +
           validation_bytes + process_bytes;
  }

  std::int64_t tokens_per_step = 0;
  double training_tokens = 0;  // 0: the time decides
};

// Memory as it is planned for that device; a GPU's needs its plugin.
Summary summarise(const Config& config, Device device = Device::cpu);

std::string_view group_name(ParamGroup group);

// How many rows are computed at a time: about 8192 tokens, fewer where memory is short.

// The config with micro_batch filled in, unless it was given: the largest that leaves some of `available_bytes`
// free (0: not known, anything fits), cut so that all micro-batches of a step are equal, or about equal where
// few numbers divide its rows: then memory for both sizes is counted. One row that does not fit is an Error that says
// what it needs and what there is. The memory is that device's; a GPU's plan needs its plugin.
Config with_micro_batch(Config config, std::int64_t available_bytes, Device device = Device::cpu);

// What this process may still take; 0: not known.
std::int64_t available_memory();
std::int64_t available_memory(const DeviceRuntime& runtime);  // a GPU's is free memory of its own

}  // namespace thimble
