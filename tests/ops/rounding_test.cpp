// f32 to bf16 and f16 rounds to nearest, ties to even, on every instruction set.
#include <bit>
#include <cmath>
#include <limits>

#include "ops/cast.h"
#include "ops/instruction_set.h"
#include "ops/op_harness.h"

namespace thimble {
namespace {

// Ties and their neighbours, both signs, the ends of the range, infinities and NaN.
std::vector<float> numbers_that_are_hard_to_round() {
  std::vector<float> numbers;
  for (const std::uint32_t upper :
       {0x3F80u, 0x3F81u, 0x3FFFu, 0x4049u, 0x0080u, 0x7F7Fu, 0x7F80u, 0x7FC0u, 0x0000u})
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
      for (const std::uint32_t sign : {0u, 0x80000000u})
        numbers.push_back(std::bit_cast<float>(sign | upper << 16 | lower));
  return numbers;
}

bool below_normal(float value) {
  return std::abs(value) < std::numeric_limits<float>::min();
}

// All lengths up to several vectors, to round every number in whole and in partial vectors.
TEST(Rounding, CastRoundsToNearestEvenOnEveryInstructionSet) {
  const std::vector<float> numbers = numbers_that_are_hard_to_round();
  for (const CpuLevel level : cpu_levels()) {
    SCOPED_TRACE(cpu_level_name(level));
    const InstructionSet chosen(level);
    for (std::size_t length = 1; length <= numbers.size(); ++length) {
      std::vector<float> row(numbers.end() - static_cast<std::ptrdiff_t>(length), numbers.end());
      std::vector<bf16> bf16s(length);
      std::vector<f16> f16s(length);
      const auto columns = static_cast<std::int64_t>(length);
      const auto cast = [&](const Tensor& from, const Tensor& to) {
        (*cpu_backend().find(op::kCast))
            .forward(Context(), {.in = {&from, 1},
                                 .out = {&to, 1},
                                 .d_out = {},
                                 .d_in = {},
                                 .attributes = CastAttributes{to.dtype},
                                 .scratch = {}});
      };
      cast(make_tensor(row.data(), 1, columns), make_tensor(bf16s.data(), 1, columns));
      cast(make_tensor(row.data(), 1, columns), make_tensor(f16s.data(), 1, columns));
      for (std::size_t i = 0; i < length; ++i) {
        SCOPED_TRACE(fmt::format("{:x}", std::bit_cast<std::uint32_t>(row[i])));
        ASSERT_EQ(f16s[i].bits, to_f16(row[i]).bits);
        // AVX-512 BF16 treats numbers below 2^-126 as 0.
        if (below_normal(row[i]) && to_f32(bf16s[i]) == 0) continue;
        ASSERT_EQ(bf16s[i].bits, to_bf16(row[i]).bits);
      }
    }
  }
}

}  // namespace
}  // namespace thimble
