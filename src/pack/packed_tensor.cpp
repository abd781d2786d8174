#include "pack/packed_tensor.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/half.h"
#include "base/index.h"

namespace thimble {

namespace {

constexpr float kLargestHalf = 65504;

float rounded_to(float value, DType dtype) {
  if (dtype == DType::bf16) return to_f32(to_bf16(value));
  if (dtype == DType::f16) return to_f32(to_f16(value));
  return value;
}

void check_finite(const Param& param, std::span<const float> values) {
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (bad == values.end()) return;
  const std::int64_t at = bad - values.begin();
  fail(Hint{"the training diverged: take an earlier checkpoint"}, "{} holds {} in row {}, column {}",
       param.name, *bad, at / param.cols, at % param.cols);
}

bool fits_half(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::abs(value) <= kLargestHalf; });
}

void quantise_rows(const Param& param, std::span<const float> values, QuantiseRule rule, PackedTensor& out) {
  const std::size_t width = index_of(param.cols);
  for (std::int64_t row = 0; row < param.rows; ++row) {
    const std::size_t begin = index_of(row) * width;
    const float scale =
        quantise_row(values.subspan(begin, width), rule, std::span(out.q).subspan(begin, width));
    check(std::isfinite(scale), Hint{"name the tensor with --keep: it is stored as floats then"},
          "row {} of {} is too large to be quantised: its scale is beyond f16", row, param.name);
    out.scales.push_back(scale);
  }
}

}  // namespace

std::string_view name_of(Storage storage) {
  constexpr std::array<std::string_view, kStorages> kNames = {"F32", "F16", "I8", "I6", "I5", "I8"};
  return kNames[static_cast<std::size_t>(storage)];
}

std::int64_t scale_count(const Param& param, Storage storage) {
  if (!is_quantised(storage)) return 0;
  return storage == Storage::int8_whole ? 1 : param.rows;
}

std::int64_t scale_bytes(Storage storage) {
  return storage == Storage::int8_whole ? 4 : 2;
}

std::int64_t payload_bytes(const Param& param, Storage storage) {
  if (storage == Storage::f32) return 4 * param.count();
  if (storage == Storage::f16) return 2 * param.count();
  return param.count() + scale_count(param, storage) * scale_bytes(storage);
}

PackedTensor pack_tensor(const Param& param, std::span<const float> values, Storage storage,
                         const QuantiseRule& rule, DType restored) {
  check(std::cmp_equal(values.size(), param.count()), "[pack] {} values for {}, which has {}", values.size(),
        param.name, param.count());
  check_finite(param, values);
  if (storage == Storage::f16 && !fits_half(values)) storage = Storage::f32;
  PackedTensor out{.storage = storage, .restored = restored, .floats = {}, .q = {}, .scales = {}};
  if (!is_quantised(storage)) {
    out.floats.resize(values.size());
    const DType held = storage == Storage::f16 ? DType::f16 : DType::f32;
    std::ranges::transform(values, out.floats.begin(), [&](float value) { return rounded_to(value, held); });
    return out;
  }
  out.q.resize(values.size());
  if (storage == Storage::int8_whole)
    out.scales.push_back(quantise_whole(values, out.q));
  else
    quantise_rows(param, values, {bits_of(storage), rule.clip, rule.deviations}, out);
  return out;
}

void unpack_tensor(const Param& param, const PackedTensor& tensor, std::span<float> values) {
  if (!is_quantised(tensor.storage)) {
    std::ranges::transform(tensor.floats, values.begin(),
                           [&](float value) { return rounded_to(value, tensor.restored); });
    return;
  }
  const bool whole = tensor.storage == Storage::int8_whole;
  const std::size_t width = index_of(whole ? param.count() : param.cols);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = rounded_to(static_cast<float>(tensor.q[i]) * tensor.scales[i / width], tensor.restored);
}

PackingError packing_error(std::span<const float> before, std::span<const float> after) {
  PackingError error;
  double errors = 0, squares = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double difference = double{before[i]} - double{after[i]};
    errors += difference * difference;
    squares += double{before[i]} * double{before[i]};
    error.largest = std::max(error.largest, std::abs(difference));
  }
  if (before.empty()) return error;
  error.rms = std::sqrt(errors / static_cast<double>(before.size()));
  error.relative = squares > 0 ? std::sqrt(errors / squares) : 0;
  return error;
}

}  // namespace thimble
