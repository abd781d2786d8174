// GPTQ compared with a direct implementation, which updates the inverse of H after every column.
#include "pack/gptq.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"
#include "pack/pack_estimate.h"
#include "pack/small_model.h"
#include "tensor/tensor.h"

namespace thimble {
namespace {

using Matrix = std::vector<std::vector<double>>;

// Inputs with strongly correlated columns, like those of a model.
std::vector<float> inputs(std::int64_t rows, std::int64_t width, unsigned seed) {
  const std::vector<float> few = random_values(rows * 4, 1, seed),
                           mix = random_values(4 * width, 1, seed + 1);
  std::vector<float> x = random_values(rows * width, 0.3f, seed + 2);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < width; ++c)
      for (std::int64_t k = 0; k < 4; ++k)
        x[static_cast<std::size_t>(r * width + c)] +=
            few[static_cast<std::size_t>(r * 4 + k)] * mix[static_cast<std::size_t>(k * width + c)];
  return x;
}

InputMoments moments_of(std::vector<float>& x, std::int64_t width) {
  InputMoments moments;
  const auto rows = static_cast<std::int64_t>(x.size()) / width;
  moments.add({0, 1 << 20, width}, make_tensor(x.data(), rows, width));
  return moments;
}

Matrix damped(const InputMoments::Moment& moment) {
  const auto n = static_cast<std::size_t>(moment.width());
  Matrix h(n, std::vector<double>(n));
  double mean = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) h[i][j] = moment.sums[i * n + j] / static_cast<double>(moment.rows);
    if (h[i][i] == 0) h[i][i] = 1;
    mean += h[i][i] / static_cast<double>(n);
  }
  for (std::size_t i = 0; i < n; ++i) h[i][i] += 0.01 * mean;
  return h;
}

// Gauss-Jordan elimination, for positive definite matrices.
Matrix inverse(Matrix a) {
  const std::size_t n = a.size();
  Matrix out(n, std::vector<double>(n));
  for (std::size_t i = 0; i < n; ++i) out[i][i] = 1;
  for (std::size_t p = 0; p < n; ++p) {
    const double pivot = a[p][p];
    for (std::size_t k = 0; k < n; ++k) {
      a[p][k] /= pivot;
      out[p][k] /= pivot;
    }
    for (std::size_t i = 0; i < n; ++i) {
      const double factor = a[i][p];
      if (i == p || factor == 0) continue;
      for (std::size_t k = 0; k < n; ++k) {
        a[i][k] -= factor * a[p][k];
        out[i][k] -= factor * out[p][k];
      }
    }
  }
  return out;
}

// Direct implementation: distributes the error of each column over all others by the inverse of
// their H, then removes the column from that inverse.
std::vector<std::int8_t> slow_codes(const InputMoments::Moment& moment, std::span<const float> row,
                                    double scale, double highest, std::span<const std::uint8_t> pruned) {
  const Matrix h = damped(moment);
  Matrix inverted = inverse(h);
  std::vector<std::size_t> order(h.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::size_t c) { return h[c][c]; });
  std::vector<double> w(row.begin(), row.end());
  std::vector<std::int8_t> codes(w.size());
  for (const std::size_t j : order) {
    const bool zero = scale == 0 || (!pruned.empty() && pruned[j]);
    const double code = zero ? 0 : std::clamp(std::nearbyint(w[j] / scale), -highest, highest);
    codes[j] = static_cast<std::int8_t>(code);
    const double error = (w[j] - code * scale) / inverted[j][j];
    for (std::size_t k = 0; k < w.size(); ++k) w[k] -= error * inverted[j][k];
    const std::vector<double> removed = inverted[j];
    const double own = removed[j];
    for (std::size_t i = 0; i < w.size(); ++i)
      for (std::size_t k = 0; k < w.size(); ++k) inverted[i][k] -= removed[i] * removed[k] / own;
  }
  return codes;
}

class Gptq : public testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Widths, Gptq, testing::Values(1, 2, 7, 64, 128, 131),
                         testing::PrintToStringParamName());

TEST_P(Gptq, CodesMatchTheFormula) {
  const std::int64_t width = GetParam(), rows = 11;
  std::vector<float> x = inputs(3 * width + 5, width, 5);
  if (width > 4)
    for (std::size_t i = 3; i < x.size(); i += static_cast<std::size_t>(width)) x[i] = 0;  // a dead column
  const InputMoments moments = moments_of(x, width);
  const InputMoments::Moment& moment = moments.all().begin()->second;
  const std::vector<float> values = random_values(rows * width, 0.1f, 9);
  std::vector<float> scales(static_cast<std::size_t>(rows), to_f32(to_f16(0.02f)));
  scales[2] = 0;
  std::vector<std::uint8_t> pruned(values.size());
  for (std::size_t i = 0; i < pruned.size(); i += 5) pruned[i] = 1;
  for (const bool prunes : {false, true}) {
    const auto marks = std::span<const std::uint8_t>(pruned).first(prunes ? pruned.size() : 0);
    std::vector<std::int8_t> q(values.size(), 99);
    gptq_rows(gptq_factor(moment), values, scales, 15, marks, q);
    for (std::size_t r = 0; r < scales.size(); ++r) {
      const std::size_t begin = r * static_cast<std::size_t>(width), count = static_cast<std::size_t>(width);
      const auto expected = slow_codes(moment, std::span(values).subspan(begin, count), double{scales[r]}, 15,
                                       prunes ? marks.subspan(begin, count) : marks);
      EXPECT_EQ(std::vector(q.begin() + static_cast<std::ptrdiff_t>(begin),
                            q.begin() + static_cast<std::ptrdiff_t>(begin + count)),
                expected)
          << "row " << r << (prunes ? ", pruned" : "");
    }
  }
}

// |X (W - Q)^T| squared.
double error_on(const std::vector<float>& x, std::int64_t width, std::span<const float> values, float scale,
                std::span<const std::int8_t> q) {
  const auto n = static_cast<std::size_t>(width);
  double sum = 0;
  for (std::size_t at = 0; at < x.size(); at += n)
    for (std::size_t row = 0; row < values.size(); row += n) {
      double out = 0;
      for (std::size_t c = 0; c < n; ++c)
        out += double{x[at + c]} * (double{values[row + c]} - double{scale} * q[row + c]);
      sum += out * out;
    }
  return sum;
}

TEST(Gptq, HalvesTheRoundingErrorOnUnseenInputs) {
  const std::int64_t width = 96, rows = 24;
  const std::vector<float> all = inputs(1200, width, 1);
  std::vector<float> seen(all.begin(), all.begin() + 800 * width);
  const std::vector<float> unseen(all.begin() + 800 * width, all.end());
  const std::vector<float> values = random_values(rows * width, 0.1f, 9);
  const float scale = to_f32(to_f16(0.05f));
  std::vector<std::int8_t> rounded(values.size()), solved(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    rounded[i] = static_cast<std::int8_t>(std::clamp(std::nearbyint(values[i] / scale), -15.0f, 15.0f));
  const std::vector<float> scales(rows, scale);
  gptq_rows(gptq_factor(moments_of(seen, width).all().begin()->second), values, scales, 15, {}, solved);
  EXPECT_LT(error_on(unseen, width, values, scale, solved),
            0.5 * error_on(unseen, width, values, scale, rounded));
}

TEST(Gptq, ResultDoesNotDependOnRowsOrThreads) {
  const std::int64_t width = 150, rows = 37;
  std::vector<float> x = inputs(400, width, 1);
  const GptqFactor factor = gptq_factor(moments_of(x, width).all().begin()->second);
  const std::vector<float> values = random_values(rows * width, 0.1f, 9), scales(rows, 0.02f);
  std::vector<std::int8_t> together(values.size()), alone(values.size());
  gptq_rows(factor, values, scales, 31, {}, together);
  const int threads = max_threads();
  set_threads(1);
  for (std::size_t r = 0; r < rows; ++r)
    gptq_rows(factor, std::span(values).subspan(r * width, width), std::span(scales).subspan(r, 1), 31, {},
              std::span(alone).subspan(r * width, width));
  set_threads(threads);
  EXPECT_EQ(together, alone);
}

TEST(Gptq, StopsOnInterrupt) {
  // Each of these takes many seconds for a large model.
  const ParamTable table(small_config("golf"));
  const std::vector<float> weights = random_weights(table);
  const std::vector<DType> types(table.all().size(), DType::f32);
  std::vector<float> x = inputs(500, 96, 1);
  const GptqFactors factors(moments_of(x, 96));
  const PackOptions options{.rule = {.bits = 6}, .gptq = &factors};
  const ProgressOutput nowhere;
  const Interrupt interrupt;
  std::raise(SIGTERM);
  EXPECT_THROW(GptqFactors(moments_of(x, 96), nowhere, &interrupt), Interrupted);
  EXPECT_THROW(pack_weights(table, weights, types, options, {}, nowhere, &interrupt), Interrupted);
  EXPECT_THROW(estimate_packing(table, weights, types, options, &interrupt), Interrupted);
}

TEST(InputMoments, AreTheSumOfProductsForEveryTypeAndAnyNumberOfCalls) {
  const std::int64_t width = 20, rows = 4500;  // more than one f32 product
  std::vector<float> x = inputs(rows, width, 3);
  for (float& value : x) value = to_f32(to_bf16(value));
  std::vector<bf16> narrow(x.size());
  std::ranges::transform(x, narrow.begin(), [](float value) { return to_bf16(value); });
  std::vector<f16> half(x.size());  // as computed by a GPU in f16
  std::ranges::transform(x, half.begin(), [](float value) { return to_f16(value); });
  InputMoments whole, parts;
  whole.add({0, 4, width}, make_tensor(x.data(), rows, width));
  parts.add({0, 4, width}, make_tensor(narrow.data(), 1000, width));
  parts.add({0, 4, width}, make_tensor(half.data() + 1000 * width, rows - 1000, width));
  const InputMoments::Moment& moment = whole.all().begin()->second;
  EXPECT_EQ(moment.rows, rows);
  EXPECT_EQ(parts.rows(), rows);
  for (std::size_t i = 0; i < width; ++i)
    for (std::size_t j = 0; j < width; ++j) {
      double sum = 0;
      for (std::size_t r = 0; r < rows; ++r) sum += double{x[r * width + i]} * double{x[r * width + j]};
      const double most = 1e-5 * std::sqrt(moment.sums[i * width + i] * moment.sums[j * width + j]);
      ASSERT_NEAR(moment.sums[i * width + j], sum, most);
      ASSERT_NEAR(parts.all().begin()->second.sums[i * width + j], sum, most);
    }
}

TEST(InputMoments, CoverEveryTensorOfTheirProduct) {
  const ParamTable table(small_config("golf"));
  std::vector<float> x = random_values(5 * 96, 1, 1);
  InputMoments moments;
  moments.add(table.qkv(1), make_tensor(x.data(), 5, 96));
  const InputMoments::Moment* found = moments.of(*table.find("blocks.1.attn.c_q.weight"));
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(moments.of(*table.find("blocks.1.attn.c_v.weight")), found);
  EXPECT_EQ(moments.of(*table.find("blocks.2.attn.c_q.weight")), nullptr);
  EXPECT_EQ(moments.of(*table.find("tok_emb.weight")), nullptr);
  x[7] = NAN;
  EXPECT_THROW(moments.add(table.qkv(1), make_tensor(x.data(), 5, 96)), Error);
}

TEST(PackWeights, GptqKeepsScalesAndPrunedWeights) {
  const ParamTable table(small_config("golf"));
  const std::vector<float> weights = random_weights(table);
  const std::vector<DType> types(table.all().size(), DType::f32);
  std::vector<float> x = inputs(500, 96, 1);
  InputMoments moments;
  for (int layer = 0; layer < 3; ++layer) moments.add(table.qkv(layer), make_tensor(x.data(), 500, 96));
  const GptqFactors factors(std::move(moments));
  PackOptions options = pack_options({.prune = 0.2, .gptq = true}, true);
  EXPECT_EQ(packing_name(options), "int6_clip_12.85_deviations, embedding int8_clip_20_deviations");
  const PackedWeights rounded = pack_weights(table, weights, types, options);
  options.gptq = &factors;
  EXPECT_EQ(packing_name(options), "int6_clip_12.85_deviations, embedding int8_clip_20_deviations, gptq");
  const PackedWeights solved = pack_weights(table, weights, types, options);
  EXPECT_EQ(solved.pruned, rounded.pruned);
  for (std::size_t i = 0; i < types.size(); ++i) {
    const PackedTensor &a = rounded.tensors[i], &b = solved.tensors[i];
    EXPECT_EQ(a.scales, b.scales);
    const Role role = table.all()[i].role;
    const bool seen =
        (role == Role::query || role == Role::key || role == Role::value) && is_quantized(a.storage);
    EXPECT_EQ(a.q != b.q, seen) << table.all()[i].name;
    for (std::size_t k = 0; seen && k < a.q.size(); ++k) EXPECT_LE(std::abs(b.q[k]), 31);
  }
  const auto embedding =
      std::ranges::find(table.all(), Role::token_embedding, &Param::role) - table.all().begin();
  EXPECT_EQ(solved.tensors[static_cast<std::size_t>(embedding)].storage, Storage::int8);
}

}  // namespace
}  // namespace thimble
