#include "train/micro_batch.h"

#include <algorithm>

#include "base/error.h"
#include "base/machine.h"
#include "base/table.h"
#include "model/summary.h"

namespace thimble {

namespace {

constexpr double kUsable = 0.85;  // of what is available: validation, checkpoints and others need some, too

std::int64_t needed_bytes(const Config& config, std::int64_t rows) {
  Config with_rows = config;
  with_rows.train.micro_batch = rows;
  return summarise(with_rows).total_bytes();
}

}  // namespace

Config with_micro_batch(Config config, std::int64_t available_bytes) {
  std::int64_t& rows = config.train.micro_batch;
  if (rows > 0) {
    rows = micro_batch_rows(config);
    return config;
  }
  const std::int64_t all = config.train.batch_tokens / config.model.context;
  std::int64_t pieces = (all + micro_batch_rows(config) - 1) / micro_batch_rows(config);
  const auto usable = static_cast<std::int64_t>(kUsable * static_cast<double>(available_bytes));
  while (true) {
    const std::int64_t fewer = (all + pieces - 1) / pieces;
    if (available_bytes == 0 || needed_bytes(config, fewer) <= usable) {
      rows = fewer;
      return config;
    }
    check(fewer > 1, Hint{"lower context, dim, layers or vocab_size"},
          "training one row at a time needs {}, {} of memory is available",
          in_bytes(static_cast<double>(needed_bytes(config, 1))),
          in_bytes(static_cast<double>(available_bytes)));
    pieces = std::min(all, 2 * pieces);
  }
}

std::int64_t available_memory() {
  const Machine machine = probe_machine();
  if (machine.container_memory_bytes <= 0) return machine.available_bytes;
  return std::min(machine.available_bytes, machine.container_memory_bytes);
}

}  // namespace thimble
