// The input moments of matrices computed on a GPU match those of the CPU.
#include "eval/eval_data.h"

#include <cmath>

#include "cuda/device.h"
#include "eval/small_model.h"

namespace thimble {
namespace {

TEST(CalibrateOnCuda, MatchesTheMomentsOfTheCpu) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const Context on_gpu(gpu.runtime), on_cpu;
  std::vector<std::int32_t> tokens(2000);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = i % 23 == 0 ? 1 : static_cast<std::int32_t>(2 + i * i % 50);
  const TokenSet set(tokens, {.bos = 1});
  for (const auto& [dtype, tolerance] : {std::pair{DType::f32, 1e-4}, {DType::bf16, 0.1}}) {
    SCOPED_TRACE(dtype_name(dtype));
    const auto gpu_model = small_model(on_gpu, 60, 32, "golf-plus", dtype);
    const auto cpu_model = small_model(on_cpu, 60, 32, "golf-plus", DType::f32);
    const Grid windows = calibration_windows(set, cpu_model->config(), 40 * 32);
    const InputMoments found = calibrate(*gpu_model, windows, ProgressOutput::nowhere());
    const InputMoments expected = calibrate(*cpu_model, windows, ProgressOutput::nowhere());
    ASSERT_EQ(found.all().size(), expected.all().size());
    for (const auto& [offset, moment] : expected.all()) {
      const InputMoments::Moment& other = found.all().at(offset);
      EXPECT_EQ(other.rows, moment.rows);
      const auto C = static_cast<std::size_t>(moment.width());
      for (std::size_t i = 0; i < C; ++i)
        for (std::size_t j = 0; j < C; ++j)
          ASSERT_NEAR(other.sums[i * C + j], moment.sums[i * C + j],
                      tolerance * std::sqrt(moment.sums[i * C + i] * moment.sums[j * C + j]) + 1e-6)
              << offset << ": " << i << ", " << j;
    }
  }
}

}  // namespace
}  // namespace thimble
