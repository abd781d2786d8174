// The golden output that `thimble train` stores and `thimble qa` checks.
#include "train/validation.h"

#include <numeric>

#include "infer/generate.h"
#include "qa/model_facts.h"
#include "support/message_of.h"
#include "tokenizer/chat_layout.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

class Golden : public TinyRun {
 protected:
  // Greedy output of the saved model, generated with the batcher.
  std::vector<TokenId> greedy_output(const std::string& run) const {
    const ModelFile file = open_model(folder_ / run / "last.safetensors");
    const auto tokenizer = open_tokenizer(file);
    const Context context;
    Model model = make_model(file, context);
    Batcher batcher(model, tokenizer.get());
    const auto samples =
        generate(batcher, {.prompt = {bos_of(*tokenizer)}, .sampling = {.temperature = 0}, .max_tokens = 15});
    std::vector<TokenId> ids;
    for (const TokenScore& token : samples[0].tokens) ids.push_back(token.id);
    return ids;
  }

  // The nats of the ids, scored with the saved model.
  double nats_in(const std::string& run, const std::vector<TokenId>& ids) const {
    const ModelFile file = open_model(folder_ / run / "last.safetensors");
    const Context context;
    Model model = make_model(file, context);
    std::vector<std::int32_t> input = {bos_of(*open_tokenizer(file))};
    input.insert(input.end(), ids.begin(), ids.end() - 1);
    const auto scores = model.score(grid_rows(model.config(), std::ssize(ids), input, ids));
    return std::accumulate(scores.nats.begin(), scores.nats.end(), 0.0);
  }

  GoldenOutput recorded_in(const std::string& run) const {
    const ModelFile file = open_model(folder_ / run / "last.safetensors");
    return golden_from(*find_metadata(file, kGoldenKey), *find_metadata(file, kGoldenNatsKey), 257);
  }
};

TEST_F(Golden, EqualsGreedyDecodingOfTheSavedModel) {
  run(request("raw", {"dtype=f32"}));
  run(request("averaged", {"dtype=f32", "ema_decay=0.8"}));
  for (const char* name : {"raw", "averaged"}) {
    const GoldenOutput golden = recorded_in(name);
    ASSERT_EQ(golden.ids.size(), 16u);  // the context
    EXPECT_NEAR(golden.nats, nats_in(name, golden.ids), 1e-4) << name;
    EXPECT_EQ(greedy_output(name), std::vector<TokenId>(golden.ids.begin(), golden.ids.begin() + 15)) << name;
  }
}

// With an average, the golden output uses other weights than training does.
TEST_F(Golden, RecordingDoesNotChangeTheRun) {
  run(request("seldom", {"ema_decay=0.8", "val_every=0"}));
  run(request("often", {"ema_decay=0.8", "val_every=0", "checkpoint_every=1"}));
  const ModelFile seldom = open_model(folder_ / "seldom" / "last.safetensors"),
                  often = open_model(folder_ / "often" / "last.safetensors");
  EXPECT_EQ(seldom.weights, often.weights);
  EXPECT_EQ(recorded_in("seldom").ids, recorded_in("often").ids);
  EXPECT_EQ(recorded_in("seldom").nats, recorded_in("often").nats);
}

TEST_F(Golden, BitsPerByteAreRecordedOnlyForValidatedSteps) {
  run_until(request("run", {"val_every=6"}), 7);
  const ModelFile last = open_model(folder_ / "run" / "last.safetensors"),
                  best = open_model(folder_ / "run" / "best.safetensors");
  EXPECT_EQ(*last.step, 7);
  EXPECT_EQ(find_metadata(last, kValBpbKey), nullptr);
  EXPECT_EQ(*best.step, 6);
  EXPECT_NE(find_metadata(best, kValBpbKey), nullptr);
}

TEST(GoldenText, RoundTripsAndIsValidated) {
  CheckpointRecord record;
  append_golden({}, record);
  EXPECT_TRUE(record.empty());
  append_golden({.ids = {5, 0, 256}, .nats = 1.25}, record);
  ASSERT_EQ(record.size(), 2u);
  const GoldenOutput back = golden_from(record[0].second, record[1].second, 257);
  EXPECT_EQ(back.ids, (std::vector<TokenId>{5, 0, 256}));
  EXPECT_EQ(back.nats, 1.25);
  for (const char* text : {"5 257", "-1", "5  6", "x", "1 2.5", "99999999999999999999"})
    EXPECT_NE(message_of([&] { golden_from(text, "1", 257); }), "nothing was thrown") << text;
  for (const char* nats : {"", "nan", "inf", "-1", "1x"})
    EXPECT_NE(message_of([&] { golden_from("5", nats, 257); }), "nothing was thrown") << nats;
  std::string many;
  for (std::int64_t i = 0; i <= kGoldenTokens; ++i) many += "7 ";
  many.pop_back();
  EXPECT_NE(message_of([&] { golden_from(many, "1", 257); }), "nothing was thrown");
}

}  // namespace
}  // namespace thimble
