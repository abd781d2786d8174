#include "formats/weights_write.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/half.h"

namespace thimble {

namespace {

constexpr std::size_t kConvertedAtOnce = 1 << 19;  // elements: a megabyte at a time
constexpr float kLargestHalf = 65504;

void check_fits_half(std::span<const float> values, const Param& param) {
  const auto too_large = std::ranges::find_if(
      values, [](float value) { return std::isfinite(value) && std::abs(value) > kLargestHalf; });
  if (too_large != values.end())
    fail(Hint{"write f32 or bf16"}, "{} holds {}, the largest f16 is {}", param.name, *too_large,
         kLargestHalf);
}

template <class Half, class Convert>
SafetensorsWriter::Source converted(std::span<const float> values, Convert convert) {
  return [values, convert](const SafetensorsWriter::Sink& sink) {
    std::vector<Half> piece;
    for (std::size_t begin = 0; begin < values.size(); begin += kConvertedAtOnce) {
      const auto part = values.subspan(begin, std::min(kConvertedAtOnce, values.size() - begin));
      piece.resize(part.size());
      std::ranges::transform(part, piece.begin(), convert);
      sink(std::as_bytes(std::span(piece)));
    }
  };
}

void add_tensor(SafetensorsWriter& writer, const Param& param, std::span<const float> values, DType dtype) {
  if (dtype == DType::f32) return writer.add(param.name, dtype, param.dims, std::as_bytes(values));
  if (dtype == DType::bf16)
    return writer.add(param.name, dtype, param.dims, converted<bf16>(values, to_bf16));
  check_fits_half(values, param);
  writer.add(param.name, dtype, param.dims, converted<f16>(values, to_f16));
}

}  // namespace

void add_weights(SafetensorsWriter& writer, const ParamTable& table, std::span<const float> block,
                 DType dtype, const std::function<bool(const Param&)>& wanted) {
  check(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
        "weights are written as f32, bf16 or f16, not {}", dtype_name(dtype));
  check(std::cmp_equal(block.size(), table.block_size()), "[model] {} weights for a block of {}",
        block.size(), table.block_size());
  for (const Param& param : table.all())
    if (!wanted || wanted(param)) add_tensor(writer, param, param.in(block), dtype);
}

}  // namespace thimble
