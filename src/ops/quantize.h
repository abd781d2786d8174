// The quantizer of fake quantization and of the packer: one rule per bit width, one scale per row.
//
//   8 bits  int8_clean_per_row_v1 of parameter-golf: clip = quantile(|row|, 0.9999984),
//           scale = max(clip, 1) / 127, q = round(clamp(w, -clip, clip) / scale) in [-127, 127]
//   6 bits  scale = f16(max(|row|) / 31), q = round(w / scale) in [-32, 31]
//   5 bits  scale = f16(max(|row|) / 15), q = round(w / scale) in [-16, 15]
//
// Rounding is half to even. The stored scale is f16, and the dequantized value is q times the
// stored scale. For 8 bits, q is computed with the f32 scale, as in parameter-golf's script. A row
// of zeros has q = 0.
//
// The packer may instead choose where each row is clipped. With h = 127, 31 or 15, the scale is
// then f16(clip / h) and q = round(w / scale) in [-h, h]:
//
//   search     clip = quantile(|row|, p), with the p of {1, 0.99999, 0.9999, 0.9995, 0.999} that
//              has the least squared error
//   deviation  clip = k standard deviations of the row (n - 1 in the denominator), or max(|row|) if
//              the deviation is 0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace thimble {

enum class Clip : std::uint8_t { standard, search, deviation };

struct QuantizeRule {
  int bits = 8;  // 8, 6 or 5
  Clip clip = Clip::standard;
  float deviations = 0;  // k, for Clip::deviation

  bool operator==(const QuantizeRule&) const = default;
};

// Linear interpolation between the sorted |values|, in f32. fraction is in [0, 1]. No values give
// 0; any NaN gives NaN.
float quantile_of_magnitudes(std::span<const float> values, double fraction);

// Fills q and returns the stored scale. A row with NaN or infinity returns a NaN scale.
float quantize_row(std::span<const float> row, const QuantizeRule& rule, std::span<std::int8_t> q);
inline float quantize_row(std::span<const float> row, int bits, std::span<std::int8_t> q) {
  return quantize_row(row, QuantizeRule{.bits = bits}, q);
}

// Rounding parameters of a row: q = round(clamp(w, -clip, clip) / scale) in [lowest, highest],
// dequantized as q * stored. If scale is 0, every q is 0.
struct Rounding {
  float clip, scale, lowest, highest, stored;
};

// The rounding for the standard clip of a row of `count` finite values, computed from its two
// largest magnitudes. nullopt if these are not sufficient (8 bits, rows of more than half a million
// values).
std::optional<Rounding> rounding_by_largest(int bits, std::size_t count, float largest, float second);

// The rule of int8_clean_per_row_v1 for a tensor that is not a matrix: one f32 scale for all
// values, without a lower bound (1 if it would be 0). NaN or infinity returns a NaN scale.
float quantize_tensor(std::span<const float> values, std::span<std::int8_t> q);

}  // namespace thimble
