// Unit tests of the small parts of training.
#include <algorithm>
#include <csignal>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "base/signals.h"
#include "tokenizer/tokenizer_json.h"
#include "train/initial_weights.h"
#include "train/run_cost.h"
#include "train/step_runner.h"
#include "train/tiny_run.h"
#include "train/train_data.h"

namespace thimble {
namespace {

Config large() {
  ConfigBuilder builder;
  builder.preset("golf");
  builder.set("batch_tokens=98304");  // 96 rows
  return builder.resolve();
}

TEST(MicroBatch, HasAbout8192TokensInEqualPieces) {
  EXPECT_EQ(with_micro_batch(large(), 0).train.micro_batch, 8);
  Config odd = large();
  odd.train.batch_tokens = odd.train.span_tokens = 9 * 1024;
  EXPECT_EQ(with_micro_batch(odd, 0).train.micro_batch, 3)
      << "three equal ones: 5 and 4 would need two programs";
  odd.train.batch_tokens = odd.train.span_tokens = 11 * 1024;
  EXPECT_EQ(with_micro_batch(odd, 0).train.micro_batch, 6) << "6 and 5, not 8 and 3: only 1 divides 11";
}

TEST(MicroBatch, IsLargerOnAGpu) {
  EXPECT_EQ(with_micro_batch(large(), 0, Device::cuda).train.micro_batch, 96);
  Config larger = large();
  larger.train.batch_tokens = larger.train.span_tokens = 387 * 1024;
  EXPECT_EQ(with_micro_batch(larger, 0, Device::cuda).train.micro_batch, 129) << "three equal ones";
  larger.train.batch_tokens = larger.train.span_tokens = 257 * 1024;
  EXPECT_EQ(with_micro_batch(larger, 0, Device::cuda).train.micro_batch, 129) << "129 and 128, not 256 and 1";
  Config small = large();
  small.train.batch_tokens = small.train.span_tokens = 9 * 1024;
  EXPECT_EQ(with_micro_batch(small, 0, Device::cuda).train.micro_batch, 9);
}

TEST(MicroBatch, CountsTheProgramOfASmallerLastMicroBatch) {
  Config config = large();
  config.train.batch_tokens = config.train.span_tokens = 11 * 1024;
  Config given = config;
  given.train.micro_batch = 6;
  const std::int64_t one_program = summarise(given).total_bytes();
  EXPECT_EQ(with_micro_batch(config, one_program * 100 / 84).train.micro_batch, 3) << "6 and 5 do not fit";
  EXPECT_EQ(with_micro_batch(config, 2 * one_program * 100 / 84).train.micro_batch, 6);
}

TEST(MicroBatch, CountsProgramsWithAndWithoutTheLoopIfPrimingNeedsBoth) {
  Config config = large();
  config.model.loop_last = 3;
  config.model.loop_count = 1;
  config.train.loop_start = 0.5;
  config.train.prime_steps = 0;
  Config given = config;
  given.train.micro_batch = 8;
  const std::int64_t one_program = summarise(given).total_bytes();
  EXPECT_EQ(with_micro_batch(config, one_program * 100 / 84).train.micro_batch, 8);
  config.train.prime_steps = 2;  // creates the programs with the loop while those without it exist
  EXPECT_LT(with_micro_batch(config, one_program * 100 / 84).train.micro_batch, 8);
}

TEST(MicroBatch, ShrinksUntilItFitsAndFailsIfNothingFits) {
  const Config config = large();
  std::int64_t before = 9;
  for (std::int64_t rows : {8, 4, 1}) {
    Config given = config;
    given.train.micro_batch = rows;
    const std::int64_t needed = summarise(given).total_bytes();
    const Config fitted = with_micro_batch(config, needed * 100 / 84);
    EXPECT_LE(fitted.train.micro_batch, rows);
    EXPECT_LT(fitted.train.micro_batch, before);
    before = fitted.train.micro_batch;
    EXPECT_EQ(with_micro_batch(given, 1 << 20).train.micro_batch, rows)
        << "a given micro_batch is not changed";
  }
  try {
    with_micro_batch(config, 1 << 20);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("but only 1.00 MiB of memory is available"), std::string::npos)
        << error.what();
  }
}

TEST(SaveSignal, IsReportedOnce) {
  const SaveSignal signal;
  EXPECT_FALSE(signal.taken());
  std::raise(SIGUSR1);
  EXPECT_TRUE(signal.taken());
  EXPECT_FALSE(signal.taken());
}

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
  initialise(model.params(), 1, model.weights());
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

class Init : public TinyRun {
 protected:
  ModelFile trained() {
    run(request("base", {"steps=3", "val_every=0"}));
    return open_model(folder_ / "base");
  }
};

TEST_F(Init, TakesSettingsAndWeightsFromTheModel) {
  const ModelFile model = trained();
  ConfigBuilder settings;
  settings.preset("quick");
  settings.set("context=32");
  take_model_settings(model, false, settings);
  const Config config = settings.resolve();
  EXPECT_EQ(config.model.layers, 2);
  EXPECT_EQ(config.model.context, 32) << "set by the user";
  EXPECT_TRUE(std::ranges::equal(initial_weights(model, config.model), model.weights));
}

TEST_F(Init, RejectsAnotherPresetAndListsEverySetting) {
  const ModelFile model = trained();
  ConfigBuilder settings;
  settings.preset("golf");
  try {
    take_model_settings(model, true, settings);
    FAIL();
  } catch (const Error& error) {
    const std::string what = error.what();
    for (const char* part : {"layers is 2, the preset has 9", "mlp is swiglu, the preset has relu2",
                             "dim is 32", "unet_skips is false"})
      EXPECT_NE(what.find(part), std::string::npos) << part << "\n" << what;
    EXPECT_EQ(what.find("context"), std::string::npos) << "may differ: " << what;
  }
}

TEST_F(Init, ListsEveryTensorThatDoesNotFit) {
  const ModelFile model = trained();
  ModelConfig other = model.config.model;
  other.layers = 3;
  other.mlp_hidden = 64;
  other.qk_norm = false;
  try {
    initial_weights(model, resolved(other));
    FAIL();
  } catch (const Error& error) {
    const std::string what = error.what();
    for (const char* part : {"model.layers.2.self_attn.q_proj.weight is missing",
                             "model.layers.0.mlp.up_proj.weight is [48, 32], expected [64, 32]",
                             "model.layers.1.self_attn.q_norm.weight is not part of the new model"})
      EXPECT_NE(what.find(part), std::string::npos) << part << "\n" << what;
  }
}

// The same number of tokens but with other texts, so the embedding rows would be meaningless.
TEST_F(Init, RejectsAnotherTokenizer) {
  const ModelFile model = trained();
  check_same_tokens(model, *load_tokenizer("bytes"));
  check_same_tokens(model, *make_bytes_tokenizer({"<s>"}));  // only a special token differs
  try {
    check_same_tokens(model, *load_tokenizer("bytes:chat"));
    FAIL();
  } catch (const Error& error) {
    const std::string what = error.what();
    for (const char* part : {"252 tokens differ",
                             "the first is id 5, \"\\u0004\" in the model and \"\\u0000\" in the tokenizer"})
      EXPECT_NE(what.find(part), std::string::npos) << part << "\n" << what;
  }
}

TEST_F(Init, ARunStartsFromTheGivenWeights) {
  const ModelFile model = trained();
  TrainRequest tuned = request("tuned", {"lr=0", "steps=2"});
  tuned.config.optimizer.lr = 1e-12;
  tuned.config.optimizer.matrix_lr = 1e-12;
  tuned.initial_weights = initial_weights(model, tuned.config.model);
  run(tuned);
  const ModelFile after = open_model(folder_ / "tuned");
  for (std::size_t i = 0; i < after.weights.size(); ++i)
    ASSERT_NEAR(after.weights[i], model.weights[i], 1e-9) << i;
}

TEST_F(Init, Step0IsTheBestIfTrainingMakesTheModelWorse) {
  const ModelFile model = trained();
  TrainRequest tuned = request("tuned", {"steps=6", "val_every=3", "keep=1"});
  tuned.config.optimizer.lr = tuned.config.optimizer.matrix_lr = 10;
  tuned.initial_weights = initial_weights(model, tuned.config.model);
  const TrainResult result = run(tuned);
  EXPECT_EQ(result.best_step, 0);
  EXPECT_LT(result.best_val_loss, result.val_loss);
  EXPECT_EQ(open_model(folder_ / "tuned").weights, model.weights)
      << "opening a run folder opens its best checkpoint";
}

TEST(TokenizerSpec, ParsesAKindAndANumber) {
  const auto spec = TokenizerSpec::parse("bpe:512");
  ASSERT_TRUE(spec);
  EXPECT_EQ(spec->kind, TokenizerKind::bpe);
  EXPECT_EQ(spec->vocab_size, 512);
  EXPECT_EQ(TokenizerSpec::parse("bpe:4k")->vocab_size, 4000);
  EXPECT_EQ(TokenizerSpec::parse("sentencepiece:1024")->kind, TokenizerKind::sentencepiece);
  for (const char* other : {"bytes", "bytes:chat", "C:/tokenizer.json", "tokenizer.json"})
    EXPECT_FALSE(TokenizerSpec::parse(other)) << other;
  for (const char* wrong : {"bpe:", "bpe:0", "bpe:-3", "bpe:many", "sentencepiece:99999999"})
    EXPECT_THROW(TokenizerSpec::parse(wrong), Error) << wrong;
}

class Learned : public TinyRun {};

TEST_F(Learned, ATokenizerForChatsIsTrainedOnContentsNotOnJson) {
  const Interrupt interrupt;
  const auto learn = [&](const char* spec, const char* file, DataKind kind) {
    return learn_tokenizer(*TokenizerSpec::parse(spec), {.data = folder_ / file, .kind = kind},
                           ProgressOutput::nowhere(), interrupt);
  };
  const auto chats = learn("bpe:280", "chats.jsonl", DataKind::chat);
  EXPECT_LE(chats->vocab_size(), 280);
  EXPECT_TRUE(chats->id_of("<assistant>"));
  EXPECT_FALSE(chats->id_of("messages"));
  std::vector<TokenId> ids;
  chats->encode("it is", ids);
  EXPECT_LE(ids.size(), 3u) << "words of the answers should be tokens";
  const auto text = learn("bpe:280", "text.txt", DataKind::text);
  EXPECT_FALSE(text->id_of("<assistant>"));
  EXPECT_EQ(text->vocab_size(), 280);
}

}  // namespace
}  // namespace thimble
