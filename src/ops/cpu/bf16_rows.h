// linear in bf16 where a row must give the same bits whatever rows share the call: inference, from one row to a
// prompt. Rows of x meet rows of w as they lie, 32 columns at a time (AVX-512 BF16), four of each together: a prompt
// runs near the speed of a GEMM, one row at the speed of memory. A sum's order depends on the width of x alone.
#pragma once

#include "ops/linear.h"

namespace thimble::cpu {

// Outputs [begin, end) of all rows.
void invariant_linear_bf16(const Linear& op, std::int64_t begin, std::int64_t end);

}  // namespace thimble::cpu
