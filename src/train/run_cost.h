// Estimates the cost of a config before anything is allocated: the figures of `train --dry-run`.
//
// FLOPs per token, a multiply-add counted as two:
//   forward   2 x (elements of every matrix a row is multiplied by: the blocks' linears, head,
//             bigram projection) + per layer 2 H D (context + 1): q.k and p.v, each 2 H D per key,
//             over (context + 1) / 2 keys on average
//   training  3 x forward: backward computes two products where forward computes one, and one
//             where the matrix is frozen; the products of adapters are not counted
//
// Memory: 4 bytes per element for weights, gradients and averages, and for each optimizer state.
// Activations and their gradients are the memory plan (graph/memory_plan.h) of one micro-batch.
// Added to that are the workspace of the update rules, what validation and text generation need
// beyond the memory of the training program, and the process itself. On the CPU the sum is within
// 10 % of the peak resident set (VmHWM), not counting pages of mapped data:
// tests/e2e/memory_test.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "graph/memory_plan.h"
#include "model/stored_weights.h"
#include "tensor/device.h"

namespace thimble {

struct Summary {
  std::int64_t tensors = 0;
  std::int64_t parameters = 0;
  std::array<std::int64_t, kParamGroups> by_group{};
  std::array<std::vector<std::string>, kParamGroups> rules_by_group{};  // titles, such as "Adam"

  double forward_flops_per_token = 0;
  double training_flops_per_token = 0;

  std::int64_t base_bytes = 0;  // frozen weights, in memory and in mapped files, and one unpacked matrix
  std::int64_t weight_bytes = 0;
  std::int64_t gradient_bytes = 0;
  std::int64_t optimizer_bytes = 0;   // averages included
  std::int64_t update_bytes = 0;      // workspace of the update rules
  std::int64_t validation_bytes = 0;  // beyond the training program's memory, which validation uses
  std::int64_t process_bytes = 0;     // estimate, including pack buffers of matrix products
  MemoryPlan plan;                    // of one micro-batch
  std::int64_t micro_batch_rows = 0;  // rows of that micro-batch
  std::int64_t total_bytes() const {
    return base_bytes + weight_bytes + gradient_bytes + optimizer_bytes + update_bytes + plan.arena_bytes +
           validation_bytes + process_bytes;
  }

  std::int64_t tokens_per_step = 0;
  double training_tokens = 0;  // 0: limited by time, not by steps
};

// Memory is planned for `device`; planning for a GPU requires the CUDA plugin. A config with
// adapters needs the weights of their base; without them, only the parameters and FLOPs are right.
Summary summarize(const Config& config, Device device = Device::cpu, const StoredWeights* base = nullptr);

// A table of the parts of total_bytes(), in MiB.
std::string memory_text(const Summary& summary, std::size_t width);

std::string_view group_name(ParamGroup group);

// Returns the config with micro_batch filled in, unless it was given. Starts from about 8192 tokens
// (CPU) or 262144 tokens (GPU) at a time and halves that until the plan fits into 85 % of
// `available_bytes` (0: unknown, anything fits). The micro-batches of a step are equal, or about
// equal if its row count has few divisors; then memory for both sizes is counted. Throws Error if a
// single row does not fit. `available_bytes` is memory of `device`; a GPU plan requires the CUDA
// plugin.
Config with_micro_batch(Config config, std::int64_t available_bytes, Device device = Device::cpu,
                        const StoredWeights* base = nullptr);

// Memory still available to this process; 0: unknown.
std::int64_t available_memory();
std::int64_t available_memory(const DeviceRuntime& runtime);  // for a GPU: its free memory

}  // namespace thimble
