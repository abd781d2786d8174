// How fast this machine reads memory: the ceiling of decoding, which reads every weight for every token.
#pragma once

#include <cstdint>

#include "base/interrupt.h"

namespace thimble {

// Bytes per second with all threads, over a buffer of that size: one that fits the caches is read at their speed, as a
// model of that size would be. The best of some passes, `seconds` in all.
double read_bandwidth(std::int64_t buffer_bytes, double seconds, const Interrupt* interrupt = nullptr);

}  // namespace thimble
