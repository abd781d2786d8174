// Memorization, measured at the end of a run.
#include "base/json.h"
#include "base/rng.h"
#include "train/tiny_run.h"

namespace thimble::train_memorization_test {
namespace {

// Random words, so that the text has no long repetitions.
std::string random_words(int count, std::uint64_t seed) {
  Rng random(seed);
  std::string text;
  for (int i = 0; i < count; ++i) {
    for (std::uint64_t left = 2 + random.below(6); left > 0; --left)
      text += static_cast<char>('a' + random.below(26));
    text += i % 10 == 9 ? "\n" : " ";
  }
  return text;
}

class MemorizationOfRuns : public TinyRun {
 protected:
  TrainRequest words(const std::string& run, const char* steps) const {
    TrainRequest request =
        this->request(run, {"context=128", "batch_tokens=512", "val_every=0", std::string("steps=") + steps});
    request.source.data = folder_.write("words.txt", random_words(60, 1));
    request.source.val_data = folder_.write("other.txt", random_words(200, 2));
    request.memorization_tokens = 1000;
    return request;
  }
};

TEST_F(MemorizationOfRuns, AModelThatOverfitRepeatsItsText) {
  TrainRequest request = words("run", "250");
  request.source.val_data.clear();  // a run with validation opens as its best checkpoint
  request.source.val_fraction = 0;
  const TrainResult overfit = run(request);
  ASSERT_TRUE(overfit.memorization.has_value());
  EXPECT_GT(overfit.memorization->sampled.run_share(), 0.5);
  EXPECT_GT(overfit.memorization->sampled.gram_share(2), 0.5);
  EXPECT_TRUE(overfit.memorization->repeats_training_data());
  EXPECT_FALSE(overfit.memorization->has_short_texts());
  ASSERT_FALSE(overfit.memorization->longest.empty());
  const VerbatimRun& longest = overfit.memorization->longest.front();
  EXPECT_GE(longest.characters, 60);
  EXPECT_EQ(longest.document, 1u);
  EXPECT_EQ(random_words(60, 1).substr(longest.offset, longest.text.size()), longest.text);
  const Json record = parse_json(folder_.read("run/run.json"), "run.json");
  EXPECT_EQ(record.at("memorization"), overfit.memorization->to_json());
  EXPECT_EQ(record.at("calls").size(), 1u);
}

TEST_F(MemorizationOfRuns, AFreshModelDoesNot) {
  const TrainResult fresh = run(words("run", "40"));
  ASSERT_TRUE(fresh.memorization.has_value());
  EXPECT_GT(fresh.memorization->sampled.tokens, 100);
  EXPECT_EQ(fresh.memorization->sampled.run_share(), 0);
  EXPECT_FALSE(fresh.memorization->repeats_training_data());
  ASSERT_TRUE(fresh.memorization->held_out.has_value());
  EXPECT_EQ(fresh.memorization->held_out->run_share(), 0);
  EXPECT_EQ(fresh.memorization->held_out->gram_share(0), 0) << "random words have no common sequences";
}

TEST_F(MemorizationOfRuns, MeasuringDoesNotChangeTraining) {
  TrainRequest request = words("measured", "40");
  run(request);
  request.run = folder_ / "not";
  request.memorization_tokens = 0;
  const TrainResult without = run(request);
  EXPECT_FALSE(without.memorization.has_value());
  EXPECT_EQ(parse_json(folder_.read("not/run.json"), "run.json").find("memorization"), nullptr);
  EXPECT_TRUE(last("measured") == last("not"));
}

TEST_F(MemorizationOfRuns, ShortAndUnfinishedRunsAreNotMeasured) {
  EXPECT_FALSE(run(words("short", "10")).memorization.has_value());
  TrainRequest request = words("stopped", "40");
  request.stop_after = 35;
  EXPECT_FALSE(run(request).memorization.has_value());
  EXPECT_TRUE(run(again(words("stopped", "40"))).memorization.has_value())
      << "the resumed run reaches its end";
}

TEST_F(MemorizationOfRuns, AnswersOfChatsAreMeasured) {
  TrainRequest request = chat_request("chat", {"context=64", "batch_tokens=512", "val_every=0", "steps=60"});
  request.memorization_tokens = 500;
  const TrainResult chats = run(request);
  ASSERT_TRUE(chats.memorization.has_value());
  EXPECT_TRUE(chats.memorization->chats);
  EXPECT_TRUE(chats.memorization->has_short_texts());
  EXPECT_GT(chats.memorization->held_out->whole, 0);
  EXPECT_LT(chats.memorization->held_out->characters, 12 * chats.memorization->held_out->texts);
}

}  // namespace
}  // namespace thimble::train_memorization_test
