#include "ops/op_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "ops/attention_cases.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/fill.h"
#include "ops/head_loss.h"
#include "ops/linear.h"
#include "ops/low_rank.h"
#include "ops/norm.h"
#include "ops/residual.h"

namespace thimble {
namespace {

struct RowSize {
  std::int64_t N, C;
  bool large = false;

  std::string text() const { return fmt::format("N={} C={}", N, C); }
};
constexpr std::array kRowSizes = {RowSize{1, 1},          RowSize{2, 3},          RowSize{5, 8},
                                  RowSize{16, 17},        RowSize{37, 33},        RowSize{5, 64},
                                  RowSize{200, 96, true}, RowSize{19, 264, true}, RowSize{9, 520, true},
                                  RowSize{5, 1032, true}};

// With one column, the norm removes everything except eps from the gradient, so eps must be large.
float eps_for(const RowSize& s) {
  return s.C == 1 ? 0.25f : 1e-5f;
}

std::vector<OpCase> embedding_cases() {
  Fill fill(&op::kEmbedding);
  std::vector<OpCase> cases;
  for (const RowSize& s : kRowSizes)
    for (const std::int64_t V : {std::int64_t{1}, std::int64_t{7}, 2 * s.N}) {
      const Integers index = fill.draws(s.N, V);
      cases.push_back({fmt::format("{} V={}", s.text(), V),
                       {fill.rows(V, s.C), column(index), sorted_order(index, V)},
                       {}});
      cases.back().large = s.large;
      if (V != 7) continue;
      cases.push_back({s.text() + " without order", {fill.rows(V, s.C), column(index)}, {}});
      cases.back().inference = true;
    }
  return cases;
}

std::vector<OpCase> smear_cases() {
  Fill fill(&op::kSmear);
  std::vector<OpCase> cases;
  for (const RowSize& s : kRowSizes) {
    cases.push_back(
        {s.text(), {fill.rows(s.N, s.C), fill.vector(s.C), column(fill.previous_rows(s.N, 6))}, {}});
    cases.back().large = s.large;
    // Decoding: the rows of the previous tokens follow the N current ones, in any order.
    Integers previous = fill.distinct(s.N, s.N + 2);
    for (std::int32_t& row : previous) row = fill.below(4) == 0 ? -1 : row + static_cast<std::int32_t>(s.N);
    cases.push_back(
        {s.text() + " decoding", {fill.rows(2 * s.N + 2, s.C), fill.vector(s.C), column(previous)}, {}});
    cases.back().inference = true;
  }
  return cases;
}

std::vector<OpCase> rmsnorm_cases() {
  Fill fill(&op::kRmsNorm);
  std::vector<OpCase> cases;
  for (const RowSize& s : kRowSizes)
    for (const bool weight : {false, true}) {
      cases.push_back({s.text() + (weight ? " weight" : ""),
                       {fill.rows(s.N, s.C), weight ? fill.vector(s.C) : absent()},
                       RmsNormAttributes{eps_for(s), weight ? 0.70710678f : 1}});
      cases.back().large = s.large;
    }
  return cases;
}

std::vector<OpCase> layernorm_cases() {
  Fill fill(&op::kLayerNorm);
  std::vector<OpCase> cases;
  for (const RowSize& s : kRowSizes)
    for (const int vectors : {0, 1, 2, 3}) {
      const bool weight = vectors & 1, bias = vectors & 2;
      Values x = fill.rows(s.N, s.C);
      for (double& number : x.numbers) number = static_cast<float>(number + 1);  // mean 1
      cases.push_back({s.text() + (weight ? " weight" : "") + (bias ? " bias" : ""),
                       {x, weight ? fill.vector(s.C) : absent(), bias ? fill.vector(s.C) : absent()},
                       LayerNormAttributes{eps_for(s)}});
      cases.back().large = s.large;
      if (s.C == 1) cases.back().min_scale = 1;  // one column is its own mean: dx and dw are zero
    }
  return cases;
}

std::vector<OpCase> linear_cases() {
  struct Size {
    std::int64_t N, I, O;
    bool bias, invariant = false, large = false;
  };
  Fill fill(&op::kLinear);
  std::vector<OpCase> cases;
  for (const Size& s :
       {Size{1, 1, 1, false}, Size{1, 64, 33, true}, Size{2, 3, 5, true}, Size{5, 8, 17, false},
        Size{16, 17, 3, true}, Size{37, 33, 8, false}, Size{5, 64, 33, true},
        Size{200, 96, 160, true, false, true}, Size{65, 128, 64, false, false, true},
        Size{1, 1, 1, true, true}, Size{1, 64, 33, false, true}, Size{5, 17, 8, true, true},
        Size{37, 64, 96, false, true}, Size{3, 96, 200, true, true}, Size{70, 33, 130, true, true}}) {
    cases.push_back({fmt::format("N={} I={} O={}{}{}", s.N, s.I, s.O, s.bias ? " bias" : "",
                                 s.invariant ? " invariant" : ""),
                     {fill.rows(s.N, s.I), fill.rows(s.O, s.I), s.bias ? fill.vector(s.O) : absent()},
                     LinearAttributes{s.invariant}});
    cases.back().inference = s.invariant;
    cases.back().large = s.large;
  }
  return cases;
}

std::vector<OpCase> activation_cases() {
  constexpr std::array kKinds = {"relu", "relu2", "leaky_relu2", "gelu", "swiglu", "geglu"};
  Fill fill(&op::kActivation);
  std::vector<OpCase> cases;
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind)
    for (const RowSize& s : kRowSizes) {
      const auto which = static_cast<ActivationKind>(kind);
      cases.push_back({fmt::format("{} {}", kKinds[kind], s.text()),
                       {fill.rows(s.N, is_gated(which) ? 2 * s.C : s.C, 2)},
                       ActivationAttributes{which}});
      cases.back().large = s.large;
      if (s.C == 1) cases.back().min_scale = 1;  // a single value may be where 1 + tanh cancels
    }
  return cases;
}

// The widths of a residual op's scale: absent, shared, per channel.
std::vector<std::int64_t> scale_widths(const RowSize& s) {
  if (s.C == 1) return {0, 1};
  return {0, 1, s.C};
}

std::vector<OpCase> add_scaled_cases() {
  Fill fill(&op::kAddScaled);
  std::vector<OpCase> cases;
  for (const RowSize& s : kRowSizes)
    for (const std::int64_t width : scale_widths(s)) {
      cases.push_back({fmt::format("{} scale={}", s.text(), width),
                       {fill.rows(s.N, s.C), fill.rows(s.N, s.C), width ? fill.vector(width) : absent()},
                       AddScaledAttributes{width == s.C ? 0.5f : 1}});
      cases.back().large = s.large;
      cases.back().min_scale = width == 1 ? kOneSum : 0;
    }
  return cases;
}

std::vector<OpCase> residual_mix_cases() {
  Fill fill(&op::kResidualMix);
  std::vector<OpCase> cases;
  for (const RowSize& s : kRowSizes)
    for (const std::int64_t width : scale_widths(s)) {
      if (width == 0) continue;
      cases.push_back({fmt::format("{} mix={}", s.text(), width),
                       {fill.rows(s.N, s.C), fill.rows(s.N, s.C), fill.rows(2, width)},
                       {}});
      cases.back().large = s.large;
      cases.back().min_scale = width == 1 ? kOneSum : 0;
    }
  return cases;
}

std::vector<OpCase> residual_norm_cases() {
  Fill fill(&op::kResidualNorm);
  std::vector<OpCase> cases;
  for (const RowSize& s : kRowSizes)
    for (const std::int64_t width : scale_widths(s))
      for (const bool weight : {false, true}) {
        cases.push_back({fmt::format("{} scale={}{}", s.text(), width, weight ? " weight" : ""),
                         {fill.rows(s.N, s.C), fill.rows(s.N, s.C), width ? fill.vector(width) : absent(),
                          weight ? fill.vector(s.C) : absent()},
                         ResidualNormAttributes{eps_for(s), weight ? 0.5f : 1}});
        cases.back().large = s.large;
        cases.back().min_scale = width == 1 ? kOneSum : 0;
      }
  return cases;
}

std::vector<OpCase> gated_skip_cases() {
  Fill fill(&op::kGatedSkip);
  std::vector<OpCase> cases;
  for (const RowSize& s : kRowSizes)
    for (const float reach : {1.0f, 12.0f}) {  // gates that are nearly closed or open
      Values gate = fill.vector(s.C);
      for (double& number : gate.numbers) number = static_cast<float>(number * reach);
      cases.push_back({fmt::format("{} gates within {}", s.text(), reach),
                       {fill.rows(s.N, s.C), fill.rows(s.N, s.C), fill.vector(s.C), gate},
                       {}});
      cases.back().large = s.large;
      cases.back().min_scale = s.C == 1 ? kOneSum : 0;
    }
  return cases;
}

std::vector<OpCase> dropout_cases() {
  Fill fill(&op::kDropout);
  std::vector<OpCase> cases;
  for (const RowSize& s : kRowSizes)
    for (const float p : {0.0f, 0.1f, 0.5f}) {
      cases.push_back({fmt::format("{} p={}", s.text(), p),
                       {fill.rows(s.N, s.C), column({fill.below(1 << 30) * -2, fill.below(1 << 30)})},
                       DropoutAttributes{p, p > 0.2f ? 7u : 0u}});
      cases.back().large = s.large;
    }
  return cases;
}

std::vector<OpCase> gather_cases() {
  Fill fill(&op::kGather);
  std::vector<OpCase> cases;
  for (const RowSize& s : kRowSizes)
    for (const std::int64_t M : {std::int64_t{1}, (s.N + 1) / 2, s.N}) {
      cases.push_back(
          {fmt::format("{} M={}", s.text(), M), {fill.rows(s.N, s.C), column(fill.distinct(M, s.N))}, {}});
      cases.back().large = s.large;
    }
  return cases;
}

std::vector<OpCase> softcap_cases() {
  Fill fill(&op::kSoftcap);
  std::vector<OpCase> cases;
  for (const RowSize& s : kRowSizes)
    for (const float cap : {2.0f, 30.0f}) {
      cases.push_back(
          {fmt::format("{} cap={}", s.text(), cap), {fill.rows(s.N, s.C, cap)}, SoftcapAttributes{cap}});
      cases.back().large = s.large;
    }
  return cases;
}

std::vector<OpCase> head_loss_cases() {
  struct Size {
    std::int64_t N, C, V;
    std::int32_t chunk_rows;
    bool large = false;
  };
  Fill fill(&op::kHeadLoss);
  std::vector<OpCase> cases;
  for (const Size& s :
       {Size{1, 1, 2, 1024}, Size{2, 3, 5, 1024}, Size{5, 8, 17, 2}, Size{16, 17, 33, 16}, Size{9, 33, 8, 4},
        Size{5, 64, 37, 3}, Size{130, 64, 150, 48, true}, Size{9, 8, 301, 4, true}, Size{7, 8, 1000, 4, true},
        Size{5, 8, 1501, 2, true}, Size{3, 8, 2100, 2, true}})
    for (const float cap : {0.0f, 30.0f}) {
      cases.push_back({fmt::format("N={} C={} V={} chunk={} cap={}", s.N, s.C, s.V, s.chunk_rows, cap),
                       {fill.rows(s.N, s.C), fill.rows(s.V, s.C, 0.5f), column(fill.targets(s.N, s.V)),
                        fill.rows(s.N, 1)},
                       HeadLossAttributes{cap, s.chunk_rows}});
      cases.back().large = s.large;
    }
  return cases;
}

std::vector<OpCase> cast_cases() {
  Fill fill(&op::kCast);
  std::vector<OpCase> cases;
  for (const RowSize& s : kRowSizes)
    for (const DType to : {DType::bf16, DType::f16, DType::f32}) {
      cases.push_back(
          {fmt::format("{} to {}", s.text(), dtype_name(to)), {fill.rows(s.N, s.C)}, CastAttributes{to}});
      cases.back().large = s.large;
    }
  return cases;
}

std::vector<OpCase> fake_quant_cases() {
  Fill fill(&op::kFakeQuant);
  std::vector<OpCase> cases;
  for (const RowSize& s : kRowSizes)
    for (const std::int32_t bits : {8, 6, 5})
      for (const DType to : {DType::f32, DType::bf16, DType::f16}) {
        Values w = fill.rows(s.N, s.C, 0.8f);
        if (s.N > 2) std::fill_n(w.numbers.begin() + s.C, s.C, 0.0);  // a row of zeros
        cases.push_back({fmt::format("{} bits={} to {}", s.text(), bits, dtype_name(to)),
                         {w},
                         FakeQuantAttributes{bits, to}});
        cases.back().large = s.large;
      }
  return cases;
}

std::vector<OpCase> low_rank_cases() {
  struct Size {
    std::int64_t N;
    std::int32_t rank;
    std::array<std::int32_t, 3> widths;
    std::uint32_t adapted;
    bool large = false;
  };
  Fill fill(&op::kLowRank);
  std::vector<OpCase> cases;
  for (const Size& s :
       {Size{1, 1, {1, 0, 0}, 1}, Size{2, 3, {5, 0, 0}, 1}, Size{5, 4, {8, 3, 3}, 7},
        Size{37, 8, {33, 17, 17}, 5}, Size{16, 2, {64, 8, 8}, 6}, Size{3, 16, {130, 70, 0}, 2},
        Size{9, 8, {200, 264, 0}, 3, true}, Size{70, 16, {96, 0, 0}, 1, true}}) {
    std::int64_t columns = 0, outputs = 0, adapters = 0;
    for (std::size_t p = 0; p < 3; ++p) {
      columns += s.widths[p];
      if ((s.adapted >> p & 1u) == 0) continue;
      outputs += s.widths[p];
      ++adapters;
    }
    cases.push_back({fmt::format("N={} R={} O={} parts={:b}", s.N, s.rank, columns, s.adapted),
                     {fill.rows(s.N, columns), fill.rows(s.N, adapters * s.rank), fill.rows(outputs, s.rank)},
                     LowRankAttributes{s.rank == 3 ? 1.0f : 0.5f, s.rank, s.widths, s.adapted}});
    cases.back().large = s.large;
  }
  return cases;
}

constexpr std::uint32_t input_mask(std::initializer_list<int> list) {
  std::uint32_t mask = 0;
  for (int place : list) mask |= 1u << place;
  return mask;
}

// Properties, tolerances and a valid request for every op, with N = 6 rows, C = 8 columns, H = 4
// heads, K = 2, D = 3, V = 50. A missing op fails OpCases.EveryOpHasARowAndCases.
const std::vector<OpTestRow>& rows() {
  static const Shape kRows{6, 8}, kIntegers{6, 1, DType::i32}, kVector{1, 8}, kQueries{6, 12}, kKeys{6, 6};
  static const std::vector<OpTestRow> all = {
      {.op = &op::kEmbedding,
       .make_cases = embedding_cases,
       .facts = {.by_row = input_mask({1}), .matrix = 0, .scales = 3},
       .f32 = {0, 2e-6, "forward copies; a row of the gradient sums up to N rows in f32"},
       .half = {.forward = 0,
                .gradient = 0,
                .gradient_in_f32 = 2e-6,
                .reason = "forward copies; the gradient of the table is f32"},
       .good = {{{50, 8}, kIntegers, kIntegers}, {}}},
      {.op = &op::kSmear,
       .make_cases = smear_cases,
       .facts = {.full = input_mask({1}), .by_row = input_mask({2})},
       .f32 = {2e-6, 1e-6, "exp to a few u, then (1 - g) x + g x', which may cancel"},
       .good = {{kRows, kVector, kIntegers}, {}}},
      {.op = &op::kRmsNorm,
       .make_cases = rmsnorm_cases,
       .facts = {.full = input_mask({1}), .by_row = input_mask({0})},
       .f32 = {6e-7, 2e-6, "a mean over C and a root; backward subtracts a row's mean"},
       .good = {{kRows, kVector}, RmsNormAttributes{}}},
      {.op = &op::kLayerNorm,
       .make_cases = layernorm_cases,
       .facts = {.full = input_mask({1, 2}), .by_row = input_mask({0})},
       .f32 = {6e-7, 2e-6, "a mean over C and a root; backward subtracts a row's mean"},
       .good = {{kRows, kVector, kVector}, LayerNormAttributes{}}},
      {.op = &op::kLinear,
       .make_cases = linear_cases,
       .facts = {.full = input_mask({2}),
                 .bits_for_any_threads = false,
                 .by_row = input_mask({0}),
                 .matrix = 1,
                 .scales = 3},
       .f32 = {2e-6, 2e-6, "sums of up to 200 products in any order: sqrt(200) u"},
       .good = {{kRows, {5, 8}, {1, 5}}, LinearAttributes{}}},
      {.op = &op::kRope,
       .make_cases = rope_cases,
       .facts = {.full = input_mask({2, 3, 4}), .by_row = input_mask({0, 1})},
       .f32 = {6e-7, 2e-6, "a norm, then two products of a rotation"},
       .good = {{kQueries, kIntegers, {10, 2}, {1, 4}, {1, 3}}, RopeAttributes{4, true, 1e-6f}}},
      {.op = &op::kAttention,
       .make_cases = attention_cases,
       .facts = {.spreads_nan = true},
       .f32 = {1e-6, 3e-6,
               "exp of sums of D products; backward subtracts delta and sums over rows and heads"},
       .half = {.forward = 2,
                .gradient = 4,
                .reason = "probabilities are rounded before they are multiplied, and so is the result"},
       .good = {{kQueries, kKeys, kKeys, kIntegers}, AttentionAttributes{4, 2, 1}}},
      {.op = &op::kExclusiveAttention,
       .make_cases = exclusive_attention_cases,
       .facts = {.by_row = input_mask({0, 1})},
       .f32 = {1e-6, 1e-6, "y - (y . u) u may be much shorter than y"},
       .half = {.forward = 1, .gradient = 2, .reason = "one rounding; the result may be shorter than dy"},
       .good = {{kQueries, kKeys}, ExclusiveAttributes{4, 2}}},
      {.op = &op::kCachedAttention,
       .make_cases = cached_attention_cases,
       .facts = {.graded_outputs = 0, .state = input_mask({5, 6}), .by_row = input_mask({0, 1, 2, 3, 4})},
       .f32 = {1e-6, 0, "as attention; no backward"},
       .half = {.forward = 2,
                .gradient = 4,
                .reason = "probabilities are rounded before they are multiplied, and so is the result"},
       .good = {{kQueries, kKeys, kKeys, kIntegers, kIntegers, {20, 6}, {20, 6}},
                CachedAttentionAttributes{4, 2, 10, 1}}},
      {.op = &op::kActivation,
       .make_cases = activation_cases,
       .facts = {.by_row = input_mask({0})},
       .f32 = {5e-7, 5e-6, "exp or tanh to a few u; near saturation 1 - t^2 cancels"},
       .good = {{kRows}, ActivationAttributes{ActivationKind::swiglu}}},
      {.op = &op::kAddScaled,
       .make_cases = add_scaled_cases,
       .facts = {.full = input_mask({2}), .by_row = input_mask({0, 1})},
       .f32 = {2e-7, 4e-6, "two products and a sum; dscale of a channel sums few terms of both signs"},
       .good = {{kRows, kRows, kVector}, AddScaledAttributes{}}},
      {.op = &op::kResidualMix,
       .make_cases = residual_mix_cases,
       .facts = {.full = input_mask({2}), .by_row = input_mask({0, 1})},
       .f32 = {2e-7, 4e-6, "two products and a sum; dscale of a channel sums few terms of both signs"},
       .good = {{kRows, kRows, {2, 8}}, {}}},
      {.op = &op::kResidualNorm,
       .make_cases = residual_norm_cases,
       .facts = {.full = input_mask({2, 3}),
                 .graded_outputs = input_mask({0, 1}),
                 .by_row = input_mask({0, 1})},
       .f32 = {6e-7, 2e-5, "as rmsnorm; dscale of a channel sums few terms of both signs with that error"},
       .half = {.forward = 2,
                .gradient = 10,
                .reason = "s is rounded, then its norm; backward uses the rounded s, and dscale sums "
                          "terms of both signs"},
       .good = {{kRows, kRows, kVector, kVector}, ResidualNormAttributes{}}},
      {.op = &op::kGatedSkip,
       .make_cases = gated_skip_cases,
       .facts = {.full = input_mask({2, 3}), .by_row = input_mask({0, 1})},
       .f32 = {2e-6, 4e-6, "as smear; dw and dgate of a channel sum few terms of both signs"},
       .good = {{kRows, kRows, kVector, kVector}, {}}},
      {.op = &op::kDropout,
       .make_cases = dropout_cases,
       .f32 = {3e-7, 3e-7, "one product with 1 / (1 - p), itself rounded"},
       .good = {{kRows, {2, 1, DType::i32}}, DropoutAttributes{}}},
      {.op = &op::kGather,
       .make_cases = gather_cases,
       .facts = {.by_row = input_mask({1})},
       .f32 = {0, 0, "copies, or arithmetic that is f32 in the reference too"},
       .half = {.forward = 0, .gradient = 0, .reason = "copies, or roundings that the reference makes too"},
       .good = {{kRows, {4, 1, DType::i32}}, {}}},
      {.op = &op::kSoftcap,
       .make_cases = softcap_cases,
       .facts = {.by_row = input_mask({0})},
       .f32 = {5e-7, 5e-6, "exp or tanh to a few u; near saturation 1 - t^2 cancels"},
       .half = {.forward = 1,
                .gradient = 10,
                .reason =
                    "backward uses the rounded y: an error of 2u dy where tanh is saturated and dx is small"},
       .good = {{kRows}, SoftcapAttributes{}}},
      {.op = &op::kHeadLoss,
       .make_cases = head_loss_cases,
       .facts = {.full = input_mask({3}),
                 .graded_outputs = 0,
                 .loss_weight = 3,
                 .spreads_nan = true,
                 .bits_for_any_threads = false,
                 .matrix = 1,
                 .scales = 4},
       .f32 = {5e-6, 3e-6, "exp and log of sums of C products, with small results; dw sums over N rows"},
       .half = {.forward = 2,
                .gradient = 4,
                .reason = "probabilities are rounded before they are multiplied, and so is the result"},
       .good = {{kRows, {50, 8}, kIntegers, {6, 1}}, HeadLossAttributes{}}},
      {.op = &op::kCast,
       .make_cases = cast_cases,
       .facts = {.by_row = input_mask({0})},
       .f32 = {0, 0, "copies, or arithmetic that is f32 in the reference too"},
       .half = {.forward = 0, .gradient = 0, .reason = "copies, or roundings that the reference makes too"},
       .good = {{kRows}, CastAttributes{}}},
      {.op = &op::kFakeQuant,
       .make_cases = fake_quant_cases,
       .facts = {.full = input_mask({0})},
       .f32 = {0, 0, "copies, or arithmetic that is f32 in the reference too"},
       .good = {{kRows}, FakeQuantAttributes{}}},
      {.op = &op::kLowRank,
       .make_cases = low_rank_cases,
       .facts = {.bits_for_any_threads = false, .by_row = input_mask({0, 1})},
       .f32 = {2e-6, 3e-6, "sums of up to 16 products, then of N rows or 264 outputs, in any order"},
       .good = {{kRows, {6, 2}, {8, 2}}, LowRankAttributes{1, 2, {8, 0, 0}, 1}}},
  };
  return all;
}

void round_to_bf16(Values& values) {
  if (values.integers()) return;
  for (double& number : values.numbers) number = to_f32(to_bf16(static_cast<float>(number)));
}

void round_to_f16(Values& values) {
  if (values.integers()) return;
  for (double& number : values.numbers) number = to_f32(to_f16(static_cast<float>(number)));
}

void fill_gradients_of_outputs(Op op, std::vector<OpCase>& cases) {
  const OpDefinition& def = *op;
  Fill fill(op);
  for (OpCase& c : cases) {
    std::vector<Shape> in;
    for (const Values& values : c.in) in.push_back(values.shape);
    for (const Shape& out : def.shapes(in, c.attributes)) {
      const bool graded = !c.inference && has_bit(op_facts(op).graded_outputs, c.d_out.size());
      c.d_out.push_back(graded ? fill.rows(out.rows, out.cols) : absent());
      if (out.dtype != DType::f32) round_to_bf16(c.d_out.back());  // exact in f16 too
    }
  }
}

std::vector<OpCase> exact_cases(Op op) {
  const auto make = test_row(op).make_cases;
  std::vector<OpCase> cases = make ? make() : std::vector<OpCase>{};
  fill_gradients_of_outputs(op, cases);
  return cases;
}

std::vector<OpCase> rounded_cases(Op op, void (*round)(Values&)) {
  std::vector<OpCase> cases = cases_in(op, DType::f32);
  for (OpCase& c : cases) {
    for (std::size_t i = 0; i < c.in.size(); ++i)
      if (!has_bit(op_facts(op).full, i)) round(c.in[i]);
    for (Values& gradient : c.d_out) round(gradient);
  }
  return cases;
}

TEST(OpCases, EveryOpHasARowAndCases) {
  for (const OpDefinition& def : every_op()) EXPECT_GE(cases_in(&def, DType::f32).size(), 5u) << def.name;
}

// Otherwise, a test in f16 would compare infinities.
TEST(OpCases, AllValuesAreFiniteInF16) {
  for (const OpDefinition& def : every_op())
    for (const OpCase& c : cases_in(&def, DType::f16))
      for (const auto* tensors : {&c.in, &c.d_out})
        for (const Values& values : *tensors)
          for (const double number : values.numbers)
            ASSERT_TRUE(std::isfinite(number)) << def.name << " " << c.name;
}

}  // namespace

// Created on demand: most processes run the tests of one op.
const std::vector<OpCase>& cases_in(Op op, DType dtype) {
  static std::map<std::pair<Op, DType>, std::vector<OpCase>> made;
  const bool rounded = dtype == DType::bf16 || dtype == DType::f16;
  const std::pair key(op, rounded ? dtype : DType::f32);
  if (!made.contains(key))
    made[key] =
        rounded ? rounded_cases(op, dtype == DType::bf16 ? round_to_bf16 : round_to_f16) : exact_cases(op);
  return made[key];
}

std::vector<OpCase> cases_stored(Op op, DType dtype, Storing storing) {
  std::vector<OpCase> cases = cases_in(op, dtype);
  for (OpCase& c : cases) {
    c.frozen = op_facts(op).matrix;
    Values& matrix = c.in[static_cast<std::size_t>(c.frozen)];
    for (std::size_t i = 0; i < matrix.numbers.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const double scale = scale_of(storing, at / matrix.shape.cols, at % matrix.shape.cols);
      double& number = matrix.numbers[i];
      if (storing == Storing::bf16)
        number = to_f32(to_bf16(static_cast<float>(number)));
      else if (storing == Storing::f16)
        number = to_f32(to_f16(static_cast<float>(number)));
      else
        number = scale * std::clamp(std::nearbyint(number / scale), -128.0, 127.0);
    }
  }
  return cases;
}

const OpTestRow& test_row(Op op) {
  const auto row = std::ranges::find(rows(), op, &OpTestRow::op);
  if (row != rows().end()) return *row;
  static const OpTestRow kNone;
  return kNone;
}

}  // namespace thimble
