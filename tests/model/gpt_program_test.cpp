// Captured GPU decoding steps: bucket sizes and padding rows. Also the program cache.
#include <gtest/gtest.h>

#include "model/gpt_program.h"
#include "model/random_model.h"
#include "support/message_of.h"

namespace thimble {
namespace {

TEST(GpuBuckets, HaveIntermediateSizesFrom48RowsOn) {
  for (const auto& [rows, bucket] : {std::pair<std::int64_t, std::int64_t>(1, 1),
                                     {2, 2},
                                     {3, 4},
                                     {5, 8},
                                     {17, 32},
                                     {33, 48},
                                     {48, 48},
                                     {49, 64},
                                     {64, 64},
                                     {65, 96},
                                     {97, 128},
                                     {600, 768},
                                     {769, 1024},
                                     {4096, 4096}})
    EXPECT_EQ(gpu_bucket(rows), bucket) << rows;
  for (std::int64_t rows = 1; rows < 5000; ++rows) {
    ASSERT_GE(gpu_bucket(rows), rows);
    ASSERT_EQ(gpu_bucket(gpu_bucket(rows)), gpu_bucket(rows)) << "a bucket size maps to itself";
  }
}

// With a smear gate (golf-plus) the previous tokens follow the rows.
TEST(FilledUp, RowsKeepTheirTokensAndPaddingHasNoSlot) {
  for (const char* preset : {"golf-plus", "golf", "microgpt"}) {
    SCOPED_TRACE(preset);
    const ModelConfig config = small_config(preset);
    const std::vector<DecodeRow> decoded = {
        {.token = 7, .position = 0, .slot = 2, .wants_logits = false},
        {.token = 9, .previous = 3, .before_previous = 4, .position = 5, .slot = 0},
        {.token = 11, .previous = 9, .before_previous = 3, .position = 6, .slot = 0}};
    const Rows rows = decode_rows(config, 3, decoded), padded = padded_rows(rows, 8, 4);
    ASSERT_EQ(padded.count(), 8);
    const std::size_t halves = config.smear_gate ? 2 : 1;
    for (const auto* each : {&padded.token, &padded.bucket, &padded.embedded_position})
      EXPECT_EQ(each->size(), 8 * halves);
    for (std::size_t n = 0; n < decoded.size(); ++n) {
      EXPECT_EQ(padded.token[n], decoded[n].token);
      EXPECT_EQ(padded.bucket[n], rows.bucket[n]);
      EXPECT_EQ(padded.position[n], decoded[n].position);
      EXPECT_EQ(padded.slot[n], decoded[n].slot);
      ASSERT_EQ(padded.previous[n] >= 0, rows.previous[n] >= 0);
      if (padded.previous[n] < 0) continue;
      const auto before = static_cast<std::size_t>(padded.previous[n]),
                 was = static_cast<std::size_t>(rows.previous[n]);
      EXPECT_EQ(padded.token[before], decoded[n].previous);
      EXPECT_EQ(padded.bucket[before], rows.bucket[was]);
      EXPECT_EQ(padded.embedded_position[before], rows.embedded_position[was]);
    }
    for (std::size_t n = decoded.size(); n < 8; ++n) {
      EXPECT_EQ(padded.slot[n], -1);
      EXPECT_EQ(padded.position[n], 0);
      EXPECT_EQ(padded.previous[n], -1);
    }
    EXPECT_EQ(padded.gather, (std::vector<std::int32_t>{1, 2, 0, 0}));
  }
}

TEST(FilledUp, RejectsMoreRowsThanTheBucket) {
  const ModelConfig config = small_config("golf");
  const Rows rows = decode_rows(config, 1, std::vector<DecodeRow>(3));
  EXPECT_NE(message_of([&] { padded_rows(rows, 2, 3); }).find("cannot pad 3 rows to 2"), std::string::npos);
}

std::vector<float> gradients_of(Model& model, const Rows& rows) {
  std::vector<float> gradients(model.weights().size());
  model.add_gradients(rows, gradients, {});
  return gradients;
}

TEST(LentMemory, ScoringAndDecodingBetweenStepsChangeNoBits) {
  const ModelConfig config = small_config("llama");
  const Context context;
  std::mt19937 random(3);
  const auto tokens = random_tokens(random, config, 96);
  const Rows rows = grid_rows(config, 24, tokens, tokens),
             two = grid_rows(config, 24, std::span(tokens).first(48), std::span(tokens).first(48));
  Model scored = random_model(config, context, DType::bf16),
        decoded = random_model(config, context, DType::bf16),
        trained = random_model(config, context, DType::bf16),
        all = random_model(config, context, DType::bf16);
  const std::vector<float> nats = scored.score(rows).nats, fewer = scored.score(two).nats,
                           gradients = gradients_of(trained, rows);
  const DecodeRow row{.token = tokens[0]};
  const auto logits = [&](Model& model) {
    KvCache cache = model.make_cache(1);
    const Tensor values = model.decode(decode_rows(config, 1, std::span(&row, 1)), cache);
    return std::vector<float>(values.row<float>(0), values.row<float>(0) + values.cols);
  };
  const std::vector<float> expected = logits(decoded);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(gradients_of(all, rows), gradients);
    EXPECT_EQ(all.score(rows).nats, nats);
    EXPECT_EQ(all.score(two).nats, fewer);
    EXPECT_EQ(logits(all), expected);
  }
  all.keep_training_programs({}, {});
  EXPECT_EQ(all.programs(), 0u) << "those that use memory of dropped ones are dropped, too";
}

TEST(ProgramCache, CreatesEachProgramOnce) {
  EXPECT_EQ(row_bucket(1), 1);
  EXPECT_EQ(row_bucket(5), 8);
  EXPECT_EQ(row_bucket(64), 64);
  ProgramCache<int> cache;
  int made = 0;
  const auto make = [&] { return std::make_unique<int>(++made); };
  const ProgramKey key{.rows = 8, .purpose = ForDecoding{.gathered = 1}};
  EXPECT_EQ(cache.get(key, make), 1);
  EXPECT_EQ(cache.get(key, make), 1);
  EXPECT_EQ(cache.get({.rows = 8, .purpose = ForDecoding{.gathered = 1, .slots = 2}}, make), 2);
  // Programs for different purposes are distinct even if their numbers are equal.
  EXPECT_EQ(cache.get({.rows = 8, .purpose = ForTraining{.qat_bits = 1}}, make), 3);
  EXPECT_EQ(cache.get({.rows = 8, .purpose = ForTraining{.qat_bits = 1, .recompute = true}}, make), 4);
  EXPECT_EQ(cache.get({.rows = 8, .purpose = ForScoring{.logits = true}}, make), 5);
  EXPECT_EQ(cache.size(), 5u);
}

}  // namespace
}  // namespace thimble
