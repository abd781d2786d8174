// Packing single tensors: compared with a slow reference implementation, and what is rejected.
#include "pack/packed_tensor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "pack/small_model.h"
#include "tensor/tensor.h"

namespace thimble {
namespace {

constexpr std::int64_t kOddShapes[][2] = {{1, 1}, {1, 7}, {7, 1}, {3, 17}, {16, 64}, {5, 513}};

std::vector<float> packed_and_back(const Param& param, const std::vector<float>& values, Storage storage,
                                   DType restored = DType::f32) {
  const PackedTensor packed = pack_tensor(param, values, storage, {}, restored);
  EXPECT_EQ(packed.storage, storage);
  std::vector<float> back(values.size(), 99);
  unpack_tensor(param, packed, back);
  return back;
}

double half_to_even(double x) {
  const double below = std::floor(x), rest = x - below;
  if (rest != 0.5) return rest < 0.5 ? below : below + 1;
  return std::fmod(below, 2) == 0 ? below : below + 1;
}

// The published rule for one row, implemented by sorting.
std::vector<float> slow_int8(std::vector<float> row) {
  std::vector<float> sorted = row;
  for (float& w : sorted) w = std::abs(w);
  std::ranges::sort(sorted);
  const float place = 0.9999984f * static_cast<float>(row.size() - 1), share = place - std::floor(place);
  const auto below = static_cast<std::size_t>(place), above = std::min(below + 1, row.size() - 1);
  const float low = sorted[below], high = sorted[above];
  const float clip = share < 0.5f ? low + share * (high - low) : high - (high - low) * (1 - share);
  const float scale = clip < 1 ? 1.0f / 127 : clip / 127;
  for (float& w : row) {
    const float clipped = w > clip ? clip : w < -clip ? -clip : w;
    w = static_cast<float>(half_to_even(clipped / scale)) * to_f32(to_f16(scale));
  }
  return row;
}

std::vector<float> slow_narrow(std::vector<float> row, float highest) {
  float largest = 0;
  for (const float w : row) largest = std::max(largest, std::abs(w));
  const float scale = to_f32(to_f16(largest / highest));
  for (float& w : row) {
    const double steps = scale > 0 ? half_to_even(w / scale) : 0;
    w = static_cast<float>(std::min<double>(highest, std::max<double>(-highest - 1, steps))) * scale;
  }
  return row;
}

std::vector<float> slow(const std::vector<float>& values, std::size_t width, Storage storage) {
  std::vector<float> out;
  for (std::size_t begin = 0; begin < values.size(); begin += width) {
    const std::vector<float> row(values.begin() + static_cast<std::ptrdiff_t>(begin),
                                 values.begin() + static_cast<std::ptrdiff_t>(begin + width));
    const std::vector<float> done = storage == Storage::int8   ? slow_int8(row)
                                    : storage == Storage::int6 ? slow_narrow(row, 31)
                                                               : slow_narrow(row, 15);
    out.insert(out.end(), done.begin(), done.end());
  }
  return out;
}

TEST(PackedTensor, MatchesTheSlowReference) {
  for (const auto& [rows, cols] : kOddShapes)
    for (const Storage storage : {Storage::int8, Storage::int6, Storage::int5})
      for (const float deviation : {0.0f, 1e-9f, 0.02f, 0.5f, 1.0f, 40.0f, 2e5f}) {
        SCOPED_TRACE(fmt::format("[{}, {}] as {}, deviation {}", rows, cols, name_of(storage), deviation));
        const Param param = matrix_param(rows, cols);
        std::vector<float> values = random_values(rows * cols, deviation, 5);
        if (values.size() > 2) values[1] = -0.0f;
        // -0 and 0 compare equal; everything else must be bit-identical.
        EXPECT_EQ(packed_and_back(param, values, storage),
                  slow(values, static_cast<std::size_t>(cols), storage));
      }
}

TEST(PackedTensor, SingleScaleMatchesTheSlowReference) {
  for (const float deviation : {0.0f, 0.01f, 3.0f, 1e7f}) {
    const Param param = vector_param(1001);
    const std::vector<float> values = random_values(1001, deviation, 8);
    std::vector<float> sorted = values;
    for (float& w : sorted) w = std::abs(w);
    std::ranges::sort(sorted);
    const float place = 0.9999984f * 1000, share = place - 999;
    const float clip = sorted[1000] - (sorted[1000] - sorted[999]) * (1 - share);
    const float scale = clip > 0 ? clip / 127 : 1;
    std::vector<float> expected;
    for (const float w : values)
      expected.push_back(static_cast<float>(half_to_even(std::min(clip, std::max(-clip, w)) / scale)) *
                         scale);
    EXPECT_EQ(packed_and_back(param, values, Storage::int8_whole), expected) << deviation;
  }
}

TEST(PackedTensor, FloatsAreRoundedToTheirStorage) {
  const Param param = matrix_param(3, 5);
  const std::vector<float> values = random_values(15, 1, 2);
  EXPECT_EQ(packed_and_back(param, values, Storage::f32), values);
  const std::vector<float> halves = packed_and_back(param, values, Storage::f16);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(halves[i], to_f32(to_f16(values[i])));
}

TEST(PackedTensor, SourceTypeIsRestored) {
  const Param param = matrix_param(4, 9);
  const std::vector<float> values = random_values(36, 1, 3);
  for (const Storage storage :
       {Storage::f32, Storage::f16, Storage::int8, Storage::int6, Storage::int8_whole}) {
    const std::vector<float> plain = packed_and_back(param, values, storage);
    const std::vector<float> rounded = packed_and_back(param, values, storage, DType::bf16);
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(rounded[i], to_f32(to_bf16(plain[i])));
  }
}

TEST(PackedTensor, ValuesTooLargeForF16StayF32) {
  const Param param = matrix_param(1, 2);
  const std::vector<float> values = {65505, 1};
  const PackedTensor packed = pack_tensor(param, values, Storage::f16, {}, DType::f32);
  EXPECT_EQ(packed.storage, Storage::f32);
  EXPECT_EQ(packed.floats, values);
}

TEST(PackedTensor, NanAndInfinityAreRejectedByName) {
  const Param param = matrix_param(2, 3);
  for (const Storage storage :
       {Storage::f32, Storage::f16, Storage::int8, Storage::int6, Storage::int8_whole})
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      const std::vector<float> values = {1, 2, 3, 4, bad, 6};
      try {
        pack_tensor(param, values, storage, {}, DType::f32);
        FAIL() << "packed " << bad;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("matrix contains"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("row 1, column 1"), std::string::npos) << error.what();
      }
    }
}

TEST(PackedTensor, RowTooLargeForAnF16ScaleIsRejected) {
  const Param param = matrix_param(2, 2);
  const std::vector<float> values = {1, 2, 1e8f, 3};
  for (const Storage storage : {Storage::int8, Storage::int6, Storage::int5})
    EXPECT_THROW(pack_tensor(param, values, storage, {}, DType::f32), Error);
}

TEST(PackedTensor, PayloadCountsIntegersAsBytes) {
  const Param param = matrix_param(3, 5);
  EXPECT_EQ(payload_bytes(param, Storage::f32), 60);
  EXPECT_EQ(payload_bytes(param, Storage::f16), 30);
  EXPECT_EQ(payload_bytes(param, Storage::int8), 15 + 3 * 2);
  EXPECT_EQ(payload_bytes(param, Storage::int6), 15 + 3 * 2);
  EXPECT_EQ(payload_bytes(param, Storage::int8_whole), 15 + 4);
}

TEST(PackingError, IsMeasured) {
  const std::vector<float> before = {3, -4, 0, 0}, after = {3, -3, 0, 0};
  const PackingError error = packing_error(before, after);
  EXPECT_DOUBLE_EQ(error.rms, 0.5);
  EXPECT_DOUBLE_EQ(error.largest, 1);
  EXPECT_DOUBLE_EQ(error.relative, 0.2);
  EXPECT_EQ(packing_error({}, {}).rms, 0);
}

}  // namespace
}  // namespace thimble
