// Attention on the tensor cores: head sizes and lengths that the generic cases do not cover.
#include "cuda/device.h"
#include "ops/attention_cases.h"
#include "ops/op_harness.h"
#include "ops/tolerances.h"

namespace thimble {
namespace {

// Rounds to values that are exact in both bf16 and f16.
Values in_bf16(Values values) {
  for (double& number : values.numbers) number = to_f32(to_f16(to_f32(to_bf16(static_cast<float>(number)))));
  return values;
}

// Documents that end inside tiles, span several, or fill a tile; rows that do not fill the last
// tile; several ratios of query heads to kv heads.
std::vector<OpCase> cases_of(const std::vector<HeadSize>& sizes, double sign = 1) {
  Fill fill(&op::kAttention);
  std::vector<OpCase> cases;
  for (const HeadSize& s : sizes) {
    cases.push_back({s.text(),
                     {in_bf16(fill.rows(s.N, s.H * s.D)), in_bf16(fill.rows(s.N, s.K * s.D)),
                      in_bf16(fill.rows(s.N, s.K * s.D)), column(fill.first_rows(s.N, s.document))},
                     AttentionAttributes{static_cast<std::int32_t>(s.H), static_cast<std::int32_t>(s.K),
                                         static_cast<float>(sign / std::sqrt(static_cast<double>(s.D))),
                                         s.softcap, s.window}});
    cases.back().d_out = {in_bf16(fill.rows(s.N, s.H * s.D)), absent()};
  }
  return cases;
}

std::vector<OpCase> long_cases(double sign = 1) {
  std::vector<HeadSize> sizes;
  for (const std::int64_t D : {32, 64, 96, 128, 256})
    for (const HeadSize& s :
         {HeadSize{64, 2, 1, D, 1000}, HeadSize{128, 2, 2, D, 1000}, HeadSize{200, 4, 2, D, 30},
          HeadSize{515, 4, 2, D, 1000}, HeadSize{515, 3, 1, D, 90}, HeadSize{321, 4, 1, D, 150},
          HeadSize{67, 2, 1, D, 3}})
      sizes.push_back(s);
  return cases_of(sizes, sign);
}

// Windows shorter and longer than a tile, that end at its border or within it, with documents that
// start within a window; softcaps close to the scores.
std::vector<OpCase> masked_cases(double sign = 1) {
  std::vector<HeadSize> sizes;
  for (const std::int64_t D : {16, 32, 64, 96, 128, 256})
    for (const HeadSize& s :
         {HeadSize{130, 2, 1, D, 1000, true, 1}, HeadSize{515, 4, 2, D, 1000, true, 64},
          HeadSize{515, 3, 1, D, 90, true, 40}, HeadSize{700, 2, 2, D, 400, true, 129},
          HeadSize{321, 4, 1, D, 150, true, 1000}, HeadSize{200, 4, 2, D, 70, true, 0, 1.5f},
          HeadSize{421, 2, 1, D, 300, true, 100, 2}})
      sizes.push_back(s);
  std::vector<OpCase> cases = cases_of(sizes, sign);
  // A softmax over one row: dq and dk are zero.
  for (OpCase& one : cases)
    if (one.attributes.as<AttentionAttributes>().window == 1) one.min_scale = 1;
  return cases;
}

TEST(AttentionOnCuda, LongDocumentsMatchTheReference) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const Context context(gpu.runtime);
  const OpDefinition& def = op::kAttention;
  for (const OpCase& op_case : long_cases()) {
    SCOPED_TRACE(op_case.name);
    const Results reference = run_op(def, op_case, kReference);
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
      // A gap of 3 is not 16-byte aligned, which selects plain arithmetic.
      for (const std::int64_t gap : {0, 8, 3}) {
        SCOPED_TRACE(fmt::format("{}, gap {}", dtype_name(dtype), gap));
        const Conditions cuda = {.backend = cuda_backend(), .dtype = dtype, .layout = {gap, 0}};
        const Results found = run_op(def, op_case, cuda, context);
        expect_close(def, op_case, dtype, reference, found);
        expect_same_bits(found, run_op(def, op_case, cuda, context));
      }
  }
}

TEST(AttentionOnCuda, WindowsAndSoftcapsMatchTheReference) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const Context context(gpu.runtime);
  const OpDefinition& def = op::kAttention;
  for (const OpCase& op_case : masked_cases()) {
    SCOPED_TRACE(op_case.name);
    const Results reference = run_op(def, op_case, kReference);
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
      for (const std::int64_t gap : {0, 3}) {
        SCOPED_TRACE(fmt::format("{}, gap {}", dtype_name(dtype), gap));
        const Conditions cuda = {.backend = cuda_backend(), .dtype = dtype, .layout = {gap, 0}};
        const Results found = run_op(def, op_case, cuda, context);
        expect_close(def, op_case, dtype, reference, found);
        expect_same_bits(found, run_op(def, op_case, cuda, context));
      }
  }
}

// Hopper's own kernels need a positive scale: a negative one selects the portable kernels.
TEST(AttentionOnCuda, ThePortableKernelsMatchTheReference) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const Context context(gpu.runtime);
  const OpDefinition& def = op::kAttention;
  std::vector<OpCase> cases = long_cases(-1);
  std::ranges::move(masked_cases(-1), std::back_inserter(cases));
  for (const OpCase& op_case : cases) {
    SCOPED_TRACE(op_case.name);
    const Conditions cuda = {.backend = cuda_backend(), .dtype = DType::bf16};
    const Results found = run_op(def, op_case, cuda, context);
    expect_close(def, op_case, DType::bf16, run_op(def, op_case, kReference), found);
    expect_same_bits(found, run_op(def, op_case, cuda, context));
  }
}

// The context lengths of training.
TEST(AttentionOnCuda, CompleteContextsMatchTheReference) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const Context context(gpu.runtime);
  const OpDefinition& def = op::kAttention;
  for (const OpCase& op_case :
       cases_of({HeadSize{1024, 2, 1, 64, 100'000}, HeadSize{2100, 1, 1, 64, 100'000},
                 HeadSize{1024, 1, 1, 128, 100'000}, HeadSize{1024, 2, 1, 32, 100'000},
                 HeadSize{1500, 2, 1, 64, 400}, HeadSize{2100, 1, 1, 64, 100'000, true, 512},
                 HeadSize{2100, 2, 1, 64, 900, true, 300}, HeadSize{1100, 1, 1, 256, 100'000, true, 512}})) {
    SCOPED_TRACE(op_case.name);
    const Results reference = run_op(def, op_case, kReference);
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const Conditions cuda = {.backend = cuda_backend(), .dtype = dtype};
      const Results found = run_op(def, op_case, cuda, context);
      expect_close(def, op_case, dtype, reference, found);
      expect_same_bits(found, run_op(def, op_case, cuda, context));
    }
  }
}

// A gradient does not depend on which other gradients are requested.
TEST(AttentionOnCuda, EachGradientIsIndependentOfTheOthers) {
  const auto gpu = find_gpu();
  if (!gpu.runtime) GTEST_SKIP() << gpu.reason;
  const Context context(gpu.runtime);
  const OpDefinition& def = op::kAttention;
  for (const OpCase& op_case : cases_of({HeadSize{200, 4, 2, 64, 70}, HeadSize{150, 2, 1, 128, 70},
                                         HeadSize{150, 2, 1, 256, 70, true, 30, 2}})) {
    Conditions cuda = {.backend = cuda_backend(), .dtype = DType::bf16};
    const Results all = gradients(run_op(def, op_case, cuda, context));
    for (std::size_t input = 0; input < 3; ++input) {
      SCOPED_TRACE(fmt::format("{}, only input {}", op_case.name, input));
      cuda.requested = 1u << input;
      const Results alone = gradients(run_op(def, op_case, cuda, context));
      ASSERT_EQ(alone.size(), 1u);
      EXPECT_EQ(alone[0].name, gradient_name(input));
      EXPECT_EQ(alone[0].numbers, all[input].numbers);
    }
  }
}

}  // namespace
}  // namespace thimble
