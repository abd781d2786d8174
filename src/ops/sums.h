// Sums over long runs of f32, in f64, over fixed blocks: the same bits for any number of threads. Gradient
// norms, loss sums.
#pragma once

#include <span>

namespace thimble {

namespace ref {
double sum_of_squares(std::span<const float> values);
double weighted_sum(std::span<const float> values, std::span<const float> weights);
}  // namespace ref

namespace cpu {
double sum_of_squares(std::span<const float> values);
double weighted_sum(std::span<const float> values, std::span<const float> weights);
}  // namespace cpu

}  // namespace thimble
