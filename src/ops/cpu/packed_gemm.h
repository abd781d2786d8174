// Matrix products of our own: f32 arithmetic on panels that are expanded from f32 or bf16 while they are packed.
//
// oneDNN 2.6 has no products of bf16 below AVX-512. In f32 by AVX2 it is as fast as these on average, but only these have
// the same bits for any number of threads: sums run over k in blocks of at most kBlockDepth, which are added in order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/gemm.h"

namespace thimble::cpu {

// Whether products of this dtype are made here at the CPU level in effect.
bool packed_gemm_pays(DType dtype);

// Memory that packed_gemm works in: panels of both factors, and sums in f32 for a result in bf16.
std::int64_t packed_gemm_bytes(std::int64_t M, std::int64_t N, std::int64_t K, DType result);

// As Gemm::run.
void packed_gemm(const Operand& a, const Operand& b, const Tensor& c, bool add, const Tensor& bias,
                 std::byte* memory);

}  // namespace thimble::cpu
