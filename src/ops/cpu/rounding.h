// Whether the processor rounds f32 to bf16 in one instruction (AVX-512 BF16).
#pragma once

#include "base/machine.h"

namespace thimble::cpu {

// Inline: asked for every row.
inline bool rounds_bf16_in_hardware() {
  static const bool rounds = cpu_features().avx512_bf16;
  return rounds;
}

}  // namespace thimble::cpu
