// How many rows are computed at a time: about 8192 tokens, fewer where memory is short.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace thimble {

// The config with micro_batch filled in, unless it was given: the largest that leaves some of `available_bytes`
// free (0: not known, anything fits), cut so that all micro-batches of a step are about equal. One row that does
// not fit is an Error that says what would.
Config with_micro_batch(Config config, std::int64_t available_bytes);

// What this process may still take; 0: not known.
std::int64_t available_memory();

}  // namespace thimble
