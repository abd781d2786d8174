// Predicting the packed size before compression.
#include "pack/pack_estimate.h"

#include <cmath>

#include "pack/small_model.h"

namespace thimble {
namespace {

struct Weights {
  ParamTable table{small_config("golf", {"dim=256", "mlp_hidden=512", "layers=2"})};
  std::vector<float> block = random_weights(table);
  std::vector<DType> types = std::vector<DType>(table.all().size(), DType::f32);
};

TEST(SizeModel, IsWithinThreePercentOfTheCodedSize) {
  const Weights w;
  for (const QuantizeRule& rule : {QuantizeRule{.bits = 8},
                                   {.bits = 6},
                                   {.bits = 5},
                                   {.bits = 6, .clip = Clip::deviation, .deviations = 12.85f}}) {
    const PackOptions options{.rule = rule};
    const auto tensors = pack_weights(w.table, w.block, w.types, options).tensors;
    for (const Codec codec : {Codec::zstd, Codec::range}) {
      const auto coded = static_cast<double>(coded_bytes(code_weights(w.table, tensors, codec)));
      const auto predicted = static_cast<double>(predicted_bytes(w.table, tensors, codec));
      EXPECT_NEAR(predicted / coded, 1, 0.03) << rule_name(rule) << ", " << name_of(codec);
      EXPECT_EQ(estimate_packing(w.table, w.block, w.types, {.rule = rule, .codec = codec}).bytes,
                predicted_bytes(w.table, tensors, codec));
    }
  }
}

// The range coder gains nothing on rows and columns that are all alike, and much on others.
TEST(SizeModel, AccountsForTheRangeCodersModelOfRowsAndColumns) {
  const ParamTable table(small_config("golf", {"dim=256", "mlp_hidden=1024", "layers=3"}));
  const std::vector<DType> types(table.all().size(), DType::f32);
  for (const bool alike : {true, false}) {
    std::vector<float> block = random_weights(table);
    for (const Param& param : table.all())
      for (std::int64_t i = 0; !alike && i < param.count(); ++i)
        param.in(std::span(block))[static_cast<std::size_t>(i)] *= static_cast<float>(1 + i % param.cols % 7);
    for (const QuantizeRule& rule :
         {QuantizeRule{.bits = 6}, {.bits = 6, .clip = Clip::deviation, .deviations = 12.85f}}) {
      const auto tensors = pack_weights(table, block, types, {.rule = rule}).tensors;
      const auto coded = static_cast<double>(coded_bytes(code_weights(table, tensors, Codec::range)));
      const auto predicted = static_cast<double>(predicted_bytes(table, tensors, Codec::range));
      EXPECT_NEAR(predicted / coded, 1, 0.01) << rule_name(rule) << (alike ? ", alike" : "");
    }
  }
}

// Published for normal rows: b - log2 k + 0.5 log2(pi e / 2) bits per weight.
TEST(SizeModel, MatchesThePublishedBitsOfNormalRows) {
  const Weights w;
  const PackOptions options{
      .rule = {.bits = 6, .clip = Clip::deviation, .deviations = 12.85f},
      .embedding = QuantizeRule{.bits = 6, .clip = Clip::deviation, .deviations = 12.85f}};
  const double bits = 8 * static_cast<double>(estimate_packing(w.table, w.block, w.types, options).bytes) /
                      static_cast<double>(w.table.count());
  EXPECT_NEAR(bits, 3.36, 0.10);  // plus scales and vectors
}

TEST(SizeModel, CoarserStepsAreSmallerAndLoseMore) {
  const Weights w;
  PackEstimate before{.bytes = std::uint64_t{1} << 40, .error = 0};
  for (const float clip : {8.0f, 12.85f, 20.0f, 32.0f}) {
    const PackEstimate estimate = estimate_packing(
        w.table, w.block, w.types, {.rule = {.bits = 6, .clip = Clip::deviation, .deviations = clip}});
    EXPECT_LT(estimate.bytes, before.bytes);
    EXPECT_GT(estimate.error, before.error);
    before = estimate;
  }
  EXPECT_NEAR(before.error, 32.0 / 31 / std::sqrt(12.0), 0.02) << "a step is 32 / 31 deviations";
}

TEST(SizeModel, AddsUpTheRoles) {
  const Weights w;
  const PackEstimate estimate = estimate_packing(w.table, w.block, w.types, pack_options({}, false));
  double bytes = 0, lost = 0, squares = 0;
  for (const RoleEstimate& role : estimate.roles) {
    EXPECT_GT(role.bytes, 0);
    EXPECT_GT(role.error(), 0);
    bytes += role.bytes;
    lost += role.lost;
    squares += role.squares;
  }
  EXPECT_LT(bytes, static_cast<double>(estimate.bytes)) << "vectors are not part of a role";
  EXPECT_GT(bytes, 0.9 * static_cast<double>(estimate.bytes));
  EXPECT_NEAR(std::sqrt(lost / squares), estimate.error, 1e-12);
  EXPECT_LT(estimate.of(PackRole::embedding).error(), estimate.of(PackRole::mlp).error());
}

}  // namespace
}  // namespace thimble
