// The quantiser: one rule per number of bits, used by fake quantisation in training and by the packer. One
// scale a row.
//
//   8 bits  int8_clean_per_row_v1 (parameter-golf 1.8): clip = quantile(|row|, 0.9999984),
//           scale = max(clip, 1) / 127, q = round(clamp(w, -clip, clip) / scale) in [-127, 127]
//   6 bits  scale = f16(max(|row|) / 31), q = round(w / scale) in [-32, 31]     (parameter-golf 2.8)
//   5 bits  scale = f16(max(|row|) / 15), q = round(w / scale) in [-16, 15]
//
// Rounding is half to even. The stored scale is f16, and the value read back is q times that. (8 bits: q is
// computed with the f32 scale, as the published script does.) A row of zeros has q = 0.
//
// A packer may choose where a row is clipped (parameter-golf 2.12). Then, with h = 127, 31 or 15,
// scale = f16(clip / h) and q = round(w / scale) in [-h, h]:
//
//   search     clip = quantile(|row|, p), for the p of {1, 0.99999, 0.9999, 0.9995, 0.999} with the least
//              squared error
//   deviation  clip = k standard deviations of the row (n - 1 in the denominator); a row without any: max(|row|)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace thimble {

enum class Clip : std::uint8_t { standard, search, deviation };

struct QuantiseRule {
  int bits = 8;  // 8, 6 or 5
  Clip clip = Clip::standard;
  float deviations = 0;  // k, of Clip::deviation

  bool operator==(const QuantiseRule&) const = default;
};

// Linear interpolation between the sorted |values|, in f32; fraction in [0, 1]; no values: 0. NaN anywhere
// gives NaN.
float quantile_of_magnitudes(std::span<const float> values, double fraction);

// Fills q and returns the stored scale. A row with NaN or infinity gives a NaN scale: it stays visible.
float quantise_row(std::span<const float> row, const QuantiseRule& rule, std::span<std::int8_t> q);
inline float quantise_row(std::span<const float> row, int bits, std::span<std::int8_t> q) {
  return quantise_row(row, QuantiseRule{.bits = bits}, q);
}

// How a row is rounded: q = round(clamp(w, -clip, clip) / scale) in [lowest, highest]; q times `stored` is read back. A
// scale of 0 says that every q is 0.
struct Rounding {
  float clip, scale, lowest, highest, stored;
};

// By the standard clip, for a row of `count` finite values whose largest two magnitudes are these. (All that it takes,
// but for 8 bits in rows of more than half a million: nothing.)
std::optional<Rounding> rounding_by_largest(int bits, std::size_t count, float largest, float second);

// What int8_clean_per_row_v1 does to a tensor that is no matrix: one scale for all of it, f32 and without a
// floor (1 where it would be 0). NaN as above.
float quantise_whole(std::span<const float> values, std::span<std::int8_t> q);

}  // namespace thimble
