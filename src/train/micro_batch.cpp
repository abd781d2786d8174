#include "train/micro_batch.h"

#include <algorithm>

#include "base/error.h"
#include "base/machine.h"
#include "base/table.h"
#include "model/summary.h"

namespace thimble {

namespace {

constexpr double kUsable = 0.85;  // of what is available: validation, checkpoints and others need some, too

// A card is busy with many rows only: products and everything between them run fastest with so many tokens at a time
// (bench/cuda_step.cpp).
constexpr std::int64_t kCardTokens = 262144;

std::int64_t wanted_rows(const Config& config, Device device) {
  if (device == Device::cpu) return micro_batch_rows(config);
  const std::int64_t all = std::max<std::int64_t>(1, config.train.batch_tokens / config.model.context);
  return std::clamp<std::int64_t>(kCardTokens / config.model.context, 1, all);
}

Summary summary_of(const Config& config, std::int64_t rows, Device device) {
  Config with_rows = config;
  with_rows.train.micro_batch = rows;
  return summarise(with_rows, device);
}

std::int64_t arena_bytes(const Config& config, std::int64_t rows, Device device) {
  return rows == 0 ? 0 : summary_of(config, rows, device).plan.arena_bytes;
}

// What is left of a step for the last micro-batch has a program of its own, which stays beside the other. Priming makes
// those of a loop ready while those of the time before it are there.
std::int64_t needed_bytes(const Config& config, std::int64_t rows, std::int64_t all, Device device) {
  const std::int64_t left = all % rows;
  std::int64_t needed = summary_of(config, rows, device).total_bytes() + arena_bytes(config, left, device);
  if (config.model.loop_count == 0 || config.train.loop_start == 0 || config.train.prime_steps < 2)
    return needed;
  Config before = config;
  before.model.loop_on = false;
  return needed + arena_bytes(before, rows, device) + arena_bytes(before, left, device);
}

// The most rows that divide a step and need no second program, unless they are half of `most` or fewer.
std::int64_t even_rows(std::int64_t all, std::int64_t most) {
  for (std::int64_t rows = most; 2 * rows > most; --rows)
    if (all % rows == 0) return rows;
  return most;
}

}  // namespace

Config with_micro_batch(Config config, std::int64_t available_bytes, Device device) {
  std::int64_t& rows = config.train.micro_batch;
  if (rows > 0) {
    rows = micro_batch_rows(config);
    return config;
  }
  const std::int64_t all = std::max<std::int64_t>(1, config.train.batch_tokens / config.model.context);
  const std::int64_t wanted = wanted_rows(config, device);
  std::int64_t pieces = (all + wanted - 1) / wanted;
  const auto usable = static_cast<std::int64_t>(kUsable * static_cast<double>(available_bytes));
  while (true) {
    const std::int64_t fewer = even_rows(all, (all + pieces - 1) / pieces);
    if (available_bytes == 0 || needed_bytes(config, fewer, all, device) <= usable) {
      rows = fewer;
      return config;
    }
    check(fewer > 1, Hint{"lower context, dim, layers or vocab_size"},
          "training one row at a time needs {}, {} of {}memory is available",
          in_bytes(static_cast<double>(needed_bytes(config, 1, all, device))),
          in_bytes(static_cast<double>(available_bytes)), device == Device::cuda ? "the GPU's " : "");
    pieces = std::min(all, 2 * pieces);
  }
}

std::int64_t available_memory() {
  const Machine machine = probe_machine();
  if (machine.container_memory_bytes <= 0) return machine.available_bytes;
  return std::min(machine.available_bytes, machine.container_memory_bytes);
}

std::int64_t available_memory(const DeviceRuntime& runtime) {
  return runtime.device() == Device::cpu ? available_memory() : runtime.available_bytes();
}

}  // namespace thimble
