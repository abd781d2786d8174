// Attention to what slots hold, without vectors: what cached_attention.cu has no kernel for. Keys and values are appended.
#pragma once

#include "ops/cached_attention.h"

namespace thimble::cuda {

void attend_plainly(const Context& context, const CachedAttention& op);

}  // namespace thimble::cuda
