// Sums of long f32 arrays, for gradient norms and losses. They run in f64 over fixed blocks: same
// bits for any number of threads.
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
