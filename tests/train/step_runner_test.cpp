// Seeds of dropout, and the programs that a step runner keeps.
#include <set>

#include "base/rng.h"
#include "train/step_runner.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

TEST(DropoutSeed, IsDifferentForEveryMicroBatchOfEveryStep) {
  const TrainConfig config;
  const std::shared_ptr<Communicator> ranks = single_rank();
  std::set<std::uint64_t> seeds;
  constexpr std::size_t kMicroBatches = 9000;
  for (const std::int64_t step : {0, 1, 2})
    for (std::size_t i = 0; i < kMicroBatches; ++i) seeds.insert(dropout_seed(config, *ranks, step, i));
  EXPECT_EQ(seeds.size(), 3 * kMicroBatches);
}

// The seeds of earlier versions, so that their runs resume with the same bits.
TEST(DropoutSeed, OfTheFirst4096MicroBatchesIsFixed) {
  const TrainConfig config;
  const std::shared_ptr<Communicator> ranks = single_rank();
  for (const auto& [step, i] : {std::pair{0u, 0u}, {3u, 5u}, {7u, 4095u}})
    EXPECT_EQ(dropout_seed(config, *ranks, step, i),
              Rng(static_cast<std::uint64_t>(config.seed), (step * 4096u + i) * 2, 0xD20).next_u64());
}

TEST_F(TinyRun, ProgramsOfAnEarlierPhaseAreFreed) {
  const Config looped = config({"loop_count=1", "batch_tokens=48"});  // micro-batches of 2 rows and of 1
  const Context context;
  Model model(looped.model, context);
  initialize(model.params(), 1, model.weights());
  model.set_loop(false);
  Optimizer optimizer(model.params(), looped.optimizer, context);
  std::vector<std::int32_t> tokens(200);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i);
  const TokenSet set(tokens, TokenMarks{});
  BatchLoader loader(set, loader_settings(looped, {}, *single_rank()), looped.model);
  const ByteTable bytes(*load_tokenizer("bytes"), static_cast<TokenId>(looped.model.vocab_size));
  const std::shared_ptr<Communicator> ranks = single_rank();
  const auto steps = make_step_runner({looped, context, model, optimizer, loader, bytes, *ranks});
  steps->run({.step = 0});
  EXPECT_EQ(model.programs(), 2u);
  steps->run({.step = 1, .qat_bits = 6});
  EXPECT_EQ(model.programs(), 2u) << "those without QAT are freed";
  model.set_loop(true);
  steps->run({.step = 2, .qat_bits = 6});
  EXPECT_EQ(model.programs(), 2u) << "those without the loop are freed";
}

}  // namespace
}  // namespace thimble
