// How many rows are computed at a time: about 8192 tokens, fewer where memory is short.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "tensor/device.h"

namespace thimble {

// The config with micro_batch filled in, unless it was given: the largest that leaves some of `available_bytes`
// free (0: not known, anything fits), cut so that all micro-batches of a step are equal, or about equal where
// few numbers divide its rows: then memory for both sizes is counted. One row that does not fit is an Error that says
// what it needs and what there is. The memory is that device's; a card's plan needs its plugin.
Config with_micro_batch(Config config, std::int64_t available_bytes, Device device = Device::cpu);

// What this process may still take; 0: not known.
std::int64_t available_memory();
std::int64_t available_memory(const DeviceRuntime& runtime);  // a card's is free memory of its own

}  // namespace thimble
