// Comparing two files of tensors.
#include "formats/trace.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "formats/safetensors_bytes.h"

namespace thimble {
namespace {

using Floats = std::vector<float>;
constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

std::string file_of(const std::vector<std::pair<std::string, Floats>>& tensors) {
  SafetensorsWriter writer;
  for (const auto& [name, values] : tensors)
    writer.add(name, DType::f32, {static_cast<std::int64_t>(values.size())}, bytes_of(values));
  return written(writer, WithDigest::yes);
}

FileDifference diff(const std::string& a, const std::string& b, DiffOptions options = {}) {
  return compare_files(view_of(a), view_of(b), options);
}

FileDifference diff_of(const Floats& a, const Floats& b, double tolerance = 0) {
  return diff(file_of({{"x", a}}), file_of({{"x", b}}), {.tolerance = tolerance});
}

TEST(TensorDiff, MeasuresCommonTensors) {
  const FileDifference found = diff_of({3, 4, 0}, {3, 3.5, 0}, 0.5);
  ASSERT_EQ(found.tensors.size(), 1u);
  EXPECT_EQ(found.tensors[0].max_abs, 0.5);
  EXPECT_NEAR(found.tensors[0].cosine, 23 / (5 * std::sqrt(21.25)), 1e-12);
  EXPECT_NEAR(found.tensors[0].relative_l2, 0.5 / std::sqrt(21.25), 1e-12);
  EXPECT_TRUE(found.equal);
  EXPECT_FALSE(diff_of({3, 4, 0}, {3, 3.5, 0}, 0.4999).equal);
}

TEST(TensorDiff, HandlesNanAndInfinity) {
  EXPECT_TRUE(diff_of({kNone, kInfinite, -0.0f}, {kNone, kInfinite, 0.0f}).equal);
  for (const auto& [a, b] :
       {std::pair(kNone, 1.0f), {1.0f, kNone}, {kInfinite, -kInfinite}, {kInfinite, 1.0f}}) {
    EXPECT_FALSE(diff_of({a}, {b}, 1e300).equal) << a << " and " << b;
    EXPECT_EQ(diff_of({a}, {b}).max_abs, kInfinite);
  }
}

TEST(TensorDiff, ListsTensorsOfOneSide) {
  const std::string a = file_of({{"x", {1}}, {"a", {1}}}), b = file_of({{"b", {1}}, {"x", {1}}});
  const FileDifference found = diff(a, b);
  EXPECT_EQ(found.only_a, std::vector<std::string>{"a"});
  EXPECT_EQ(found.only_b, std::vector<std::string>{"b"});
  EXPECT_TRUE(found.equal);
  EXPECT_FALSE(diff(a, b, {.tolerance = 1, .strict = true}).equal);
  EXPECT_TRUE(diff(a, a, {.tolerance = 0, .strict = true}).equal);
}

TEST(TensorDiff, DifferentShapesAreDifferent) {
  const FileDifference found = diff_of({1, 2}, {1, 2, 3}, 100);
  EXPECT_FALSE(found.equal);
  EXPECT_FALSE(found.tensors[0].same_shape());
}

TEST(TensorDiff, ComparesValuesNotTypes) {
  SafetensorsWriter narrow, wide;
  const std::vector<std::int32_t> small = {1, 2};
  const std::vector<std::int64_t> large = {1, 5};
  narrow.add("n", DType::i32, {2}, bytes_of(small));
  wide.add("n", DType::i64, {2}, bytes_of(large));
  EXPECT_EQ(diff(written(narrow, WithDigest::no), written(wide, WithDigest::no)).max_abs, 3);
}

TEST(TensorDiff, IntegersBeyondDoublePrecisionDiffer) {
  constexpr std::int64_t kLast = std::int64_t{1} << 53, kLeast = std::numeric_limits<std::int64_t>::min();
  const auto file = [](std::int64_t value) {
    SafetensorsWriter writer;
    const std::vector<std::int64_t> values = {value};
    writer.add("n", DType::i64, {1}, bytes_of(values));
    return written(writer, WithDigest::no);
  };
  EXPECT_EQ(diff(file(kLast), file(kLast + 1)).max_abs, 1);
  EXPECT_FALSE(diff(file(kLast), file(kLast + 1)).equal);
  EXPECT_EQ(diff(file(kLeast), file(-(kLeast + 1))).max_abs, std::ldexp(1, 64));
}

TEST(TensorDiff, NoCommonTensorIsAnError) {
  EXPECT_THROW(diff(file_of({{"a", {1}}}), file_of({{"b", {1}}})), Error);
}

}  // namespace
}  // namespace thimble
