// Vectorized fake quantization has the same bits as the packer's quantizer.
#include "ops/cast.h"

#include <bit>

#include "ops/fill.h"
#include "ops/op_harness.h"
#include "ops/quantize.h"

namespace thimble {
namespace {

Values rows_with_corners(std::int64_t width) {
  Values w = Fill(&op::kFakeQuant).rows(6, width, 0.3f);
  const auto at = [&](std::int64_t row) { return w.numbers.begin() + row * width; };
  std::fill_n(at(1), width, 0.0);
  std::fill_n(at(2), width, -2.5);  // all values have the maximum magnitude
  // Ties between two steps, and -0.
  for (std::int64_t i = 0; i < width; ++i) at(3)[i] = 0.125 * (i % 9 - 4);
  at(3)[0] = 0.5 * 15.5 / 15;
  at(4)[width / 2] = 40;  // two outliers: in a long row the second determines the scale
  if (width > 128) at(4)[width / 2 - 64] = -39;  // in the same lane for every vector length
  std::fill_n(at(5), width, 1e-9);               // a scale that f16 rounds to 0 or a subnormal
  return w;
}

void expect_bits_of_the_quantizer(const Values& w, std::int32_t bits) {
  const auto width = static_cast<std::size_t>(w.shape.cols);
  OpCase op_case;
  op_case.in = {w};
  op_case.attributes = FakeQuantAttributes{bits, DType::f32};
  op_case.inference = true;
  const Results results = run_op(op::kFakeQuant, op_case, kCpu);
  for (std::size_t row = 0; row < static_cast<std::size_t>(w.shape.rows); ++row) {
    const std::vector<float> values(w.numbers.begin() + static_cast<std::ptrdiff_t>(row * width),
                                    w.numbers.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
    std::vector<std::int8_t> q(width);
    const float scale = quantize_row(values, bits, q);
    for (std::size_t i = 0; i < width; ++i) {
      const float expected = scale * static_cast<float>(q[i]);
      const auto found = static_cast<float>(results[0].numbers[row * width + i]);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(found), std::bit_cast<std::uint32_t>(expected))
          << "row " << row << ", column " << i << ": " << found << " for " << expected;
    }
  }
}

TEST(FakeQuant, HasTheSameBitsAsTheQuantizer) {
  for (const std::int64_t width : {1, 2, 3, 15, 16, 17, 100, 512, 1030})
    for (const std::int32_t bits : {8, 6, 5}) {
      SCOPED_TRACE(fmt::format("{} columns, {} bits", width, bits));
      expect_bits_of_the_quantizer(rows_with_corners(width), bits);
    }
}

TEST(FakeQuant, LongRowsUseTheQuantizer) {
  constexpr std::int64_t kWidth = 700'000;
  EXPECT_FALSE(rounding_by_largest(8, kWidth, 1, 1));
  expect_bits_of_the_quantizer(Fill(&op::kFakeQuant).rows(1, kWidth, 0.3f), 8);
}

}  // namespace
}  // namespace thimble
