#include <cmath>
#include <csignal>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "data/build.h"
#include "data/manifest.h"
#include "data/shard.h"
#include "formats/model_file.h"
#include "formats/safetensors.h"
#include "support/ticking_progress.h"
#include "train/metrics.h"
#include "train/run_folder.h"
#include "train/tiny_run.h"

namespace thimble {
namespace {

class Training : public TinyRun {};

std::vector<Json> events_of(const std::filesystem::path& metrics) {
  std::vector<Json> events;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) events.push_back(parse_json(line, "line"));
  return events;
}

TEST_F(Training, MicroBatchesDoNotChangeTheResult) {
  const TrainResult one = run(request("one", {"micro_batch=4", "dtype=f32"})),
                    several = run(request("several", {"micro_batch=1", "dtype=f32"}));
  EXPECT_NEAR(one.val_loss, several.val_loss, 1e-3);
}

TEST_F(Training, WritesACompleteRunFolder) {
  const TrainResult result = run(request("run"));
  EXPECT_EQ(result.status, RunStatus::completed);
  EXPECT_EQ(result.steps, 20);
  EXPECT_EQ(result.tokens, 20 * 64);
  EXPECT_LT(result.val_bpb, 8);
  for (const char* name :
       {"config.toml", "data.json", "data/manifest.json", "metrics.jsonl", "run.json", "tokenizer.json",
        "last.safetensors", "best.safetensors", "checkpoints/step-00000020.safetensors"})
    EXPECT_TRUE(std::filesystem::exists(folder_ / "run" / name)) << name;
  EXPECT_EQ(std::filesystem::hard_link_count(folder_ / "run" / "last.safetensors"),
            result.best_step == 20 ? 3u : 2u);
  const ModelFile model = open_model(folder_ / "run");
  EXPECT_EQ(open_tokenizer(model)->vocab_size(), model.config.model.vocab_size);
}

TEST_F(Training, RunJsonRecordsEveryCall) {
  run_until(request("run"), 9);
  run(resumed("run"));
  const Json record = parse_json(folder_.read("run/run.json"), "run.json");
  EXPECT_EQ(record.at("status").as_string(), "completed");
  ASSERT_EQ(record.at("calls").size(), 2u);
  const Json& second = record.at("calls").as_array()[1];
  EXPECT_EQ(second.at("first_step").as_int(), 9);
  EXPECT_EQ(second.at("last_step").as_int(), 20);
  EXPECT_EQ(second.at("started").as_string().size(), 20u);
  for (const char* key : {"command", "finished", "host", "version", "compiler", "tokens_per_second"})
    EXPECT_NE(second.find(key), nullptr) << key;
}

TEST_F(Training, KeepsTheNewestCheckpointsAndTheBest) {
  run(request("run", {"checkpoint_every=2", "keep=2"}));
  int steps = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "run" / "checkpoints"))
    steps += entry.is_regular_file();
  EXPECT_EQ(steps, 2);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run" / "best.safetensors"));
}

TEST_F(Training, EveryValidationWritesACheckpoint) {
  const std::vector<std::string> settings = {"lr=0", "matrix_lr=0", "embed_lr=0", "scalar_lr=0", "keep=9"};
  TrainRequest unvalidated = request("unvalidated", settings);
  unvalidated.source.val_fraction = 0;
  std::string logged;
  run(unvalidated,
      Log(LogLevel::warning, [&](LogLevel, std::string_view line) { logged += std::string(line) + "\n"; }));
  EXPECT_NE(logged.find("no validation data"), std::string::npos) << logged;
  EXPECT_EQ(run(request("run", settings)).best_step, -1) << "the loss is constant: that of step 0";
  for (const char* name : {"run", "unvalidated"})
    for (const char* step : {"06", "12", "18", "20"})
      EXPECT_TRUE(std::filesystem::exists(folder_ / name / "checkpoints" /
                                          ("step-000000" + std::string(step) + ".safetensors")))
          << name << " " << step;
}

TEST_F(Training, TheDataTableCountsOnlyTokensThatAreRead) {
  std::string logged;
  const Log log(LogLevel::info, [&](LogLevel, std::string_view line) { logged += std::string(line) + "\n"; });
  folder_.write("text.txt", sample_text().substr(0, 700));  // 630 tokens fill only one row of 512
  run(request("text", {"context=512", "batch_tokens=512", "steps=1"}), log);
  EXPECT_NE(logged.find("bytes per token         1.00\n"), std::string::npos) << logged;
  logged.clear();
  // Conversations of about 34 tokens in rows of 48: about one position in three is padding.
  const TrainResult chats = run(chat_request("chats", {"context=48", "batch_tokens=480", "steps=30"}), log);
  ASSERT_LT(chats.tokens, 30 * 480 * 8 / 10);
  const std::string row = "planned tokens";
  std::string number = logged.substr(logged.find(row) + row.size());
  number.erase(number.find('\n'));
  std::erase_if(number, [](char c) { return c < '0' || c > '9'; });
  EXPECT_NEAR(std::stod(number), static_cast<double>(chats.tokens), 30 * 480 * 0.02) << logged;
}

TEST_F(Training, MetricsContainUpdateRatiosPerGroup) {
  run(request("run", {"steps=50", "clip=0.0001"}));
  int measured = 0;
  for (const Json& event : events_of(folder_ / "run" / "metrics.jsonl")) {
    if (event.at("event").as_string() != "step") continue;
    EXPECT_TRUE(event.at("clipped").as_bool());
    EXPECT_GT(event.at("bytes").as_int(), 0);
    const Json* ratio = event.find("update_ratio");
    if (!ratio) continue;
    ++measured;
    for (const char* group : {"embedding", "matrix", "scalar"}) {
      EXPECT_GT(ratio->at(group).as_double(), 1e-7) << group;
      EXPECT_LT(ratio->at(group).as_double(), 1) << group;
    }
  }
  EXPECT_EQ(measured, 2);
}

TEST_F(Training, AnExistingRunIsNotOverwritten) {
  run(request("run"));
  EXPECT_THROW(run(request("run")), Error);
  TrainRequest again = request("run");
  again.force = true;
  EXPECT_EQ(run(again).status, RunStatus::completed);
}

TEST_F(Training, ARunningRunIsLocked) {
  run_until(request("run"), 2);
  const std::string before = last("run");
  PosixFileOps ops;
  const MetricsFile live(ops, RunFolder(ops, folder_ / "run").metrics());  // as held by a training process
  folder_.write("run/checkpoints/.step-00000003.safetensors.tmp", "half a checkpoint");
  const auto files = folder_.files();
  TrainRequest forced = request("run");
  forced.force = true;
  for (const TrainRequest& intruder : {forced, resumed("run"), request("run")}) {
    EXPECT_THROW(run(intruder), Error);
    EXPECT_EQ(folder_.files(), files);
    EXPECT_EQ(last("run"), before);
  }
}

TEST_F(Training, RejectsAMixOfTextAndShards) {
  BuildRequest build{.inputs = {(folder_ / "text.txt").string()},
                     .tokenizer = load_tokenizer("bytes"),
                     .folder = folder_ / "shards"};
  build.val_fraction = 0.2;
  build_dataset(build, Log::nowhere(), ProgressOutput::nowhere());
  const auto refusal = [&](const char* data, const char* val_data) -> std::string {
    TrainRequest mixed = request("run");
    mixed.source.data = folder_ / data;
    mixed.source.val_data = folder_ / val_data;
    try {
      run(mixed);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_NE(refusal("text.txt", "shards").find("is a folder of shards"), std::string::npos);
  EXPECT_NE(refusal("shards", "text.txt").find("--val-data must be one too"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_F(Training, AShardThatShrinksEndsTheRunWithASavedState) {
  TrainRequest shrinking = request("run", {"checkpoint_every=20"});
  const std::filesystem::path shard = folder_ / "run/data/data_train_000000.bin";
  std::string intact;
  double now = 0;
  shrinking.clock = [&] {  // called twice in each step
    if ((now += 1) == 19) {
      intact = read_file(shard, 1 << 20);
      std::filesystem::resize_file(shard, 1500);
    }
    return now;
  };
  EXPECT_THROW(run(shrinking), ShardError);
  const std::int64_t saved = OpenedCheckpoint(folder_ / "run/last.safetensors").head.state.step;
  EXPECT_GE(saved, 9);
  EXPECT_LT(saved, 12) << "saved by a validation";
  folder_.write("run/data/data_train_000000.bin", intact);
  EXPECT_EQ(run(resumed("run", {"checkpoint_every=20"})).status, RunStatus::completed);
  run(request("straight", {"checkpoint_every=20"}));
  EXPECT_EQ(last("straight"), last("run"));
}

TEST_F(Training, ATokenOutsideTheVocabularyEndsTheRunWithASavedState) {
  const std::filesystem::path shards = folder_ / "shards";
  std::filesystem::create_directory(shards);
  std::vector<std::int32_t> tokens(4000);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i % 50);
  PosixFileOps ops;
  for (const char* name : {"text_train_000000.bin", "text_val_000000.bin"}) {
    ShardWriter writer(300);
    writer.add(tokens);
    writer.write(ops, shards / name, Existing::refuse);
  }
  TrainRequest request = this->request("run", {"checkpoint_every=20"});
  request.source.data = shards;
  double now = 0;
  request.clock = [&] {  // called twice in each step
    if ((now += 1) == 19) {
      std::fstream file(shards / "text_train_000000.bin", std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(kShardHeaderBytes);
      for (int i = 0; i < 4000; ++i) file.write("\x2b\x01", 2);  // 299; the vocabulary has fewer tokens
    }
    return now;
  };
  try {
    run(request);
    FAIL();
  } catch (const ShardError& error) {
    const std::string what = error.what();
    for (const char* part : {"text_train_000000.bin: token 299 at position ", "the vocabulary of 257 tokens"})
      EXPECT_NE(what.find(part), std::string::npos) << what;
  }
  EXPECT_GE(OpenedCheckpoint(folder_ / "run/last.safetensors").head.state.step, 9);
}

TEST_F(Training, ARunThatIsTooSlowForItsTimeStopsWithTheStepsThatFit) {
  const auto every_half_second = [] { return [now = 0.0]() mutable { return now += 0.5; }; };
  TrainRequest request = this->request("run");
  request.clock = every_half_second();  // a step takes 1 s, so 20 steps take 20 s
  request.most_seconds = 30;
  const TrainResult in_time = run(request);
  EXPECT_EQ(in_time.status, RunStatus::completed);
  EXPECT_EQ(in_time.steps_in_time, 0);

  request.run = folder_ / "late";
  request.clock = every_half_second();
  request.most_seconds = 12;
  const TrainResult late = run(request);
  EXPECT_EQ(late.status, RunStatus::stopped);
  EXPECT_EQ(late.steps, 6) << "at the first validation";
  EXPECT_GE(late.steps_in_time, 10);
  EXPECT_LE(late.steps_in_time, 12);
  // It ends as if the user had stopped it there and chosen the number of steps.
  const std::string steps = fmt::format("steps={}", late.steps_in_time);
  EXPECT_EQ(run(resumed("late", {steps})).steps, late.steps_in_time);
  run_until(this->request("by-hand"), 6);
  run(resumed("by-hand", {steps}));
  EXPECT_EQ(folder_.read("late/last.safetensors"), folder_.read("by-hand/last.safetensors"));
}

TEST_F(Training, WritingAndReadingCheckpointsShowProgress) {
  const Interrupt interrupt;
  TickingProgress saving, resuming;
  TrainRequest first = request("run");
  first.stop_after = 2;
  train(first, Log::nowhere(), saving.output(), interrupt);
  EXPECT_TRUE(saving.shows("writing")) << saving.lines;
  train(resumed("run"), Log::nowhere(), resuming.output(), interrupt);
  EXPECT_TRUE(resuming.shows("reading")) << resuming.lines;
  EXPECT_TRUE(resuming.shows("verifying")) << resuming.lines;
}

TEST_F(Training, AModifiedShardIsNoticedBeforeTheFirstStep) {
  run_until(request("run"), 3);
  std::string bytes = folder_.read("run/data/data_train_000000.bin");
  bytes.back() ^= 1;
  folder_.write("run/data/data_train_000000.bin", bytes);
  EXPECT_THROW(run(resumed("run")), ShardError);
}

TEST_F(Training, LeavesOutLongChatsIfAsked) {
  folder_.write("chats.jsonl", sample_chats(30) + R"([{"role": "user", "content": ")" + std::string(60, 'x') +
                                   R"("}, {"role": "assistant", "content": "y"}])");
  const auto documents = [&](const std::string& name, std::int64_t longest) {
    TrainRequest chats = chat_request(name, {"context=48", "batch_tokens=96", "steps=1"});
    chats.source.longest_chat = longest;
    run(chats);
    const Manifest manifest = Manifest::parse(folder_.read(name + "/data/manifest.json"), "manifest");
    return manifest.train.documents + manifest.val.documents;
  };
  EXPECT_EQ(documents("all", 0), 31u);
  EXPECT_EQ(documents("short", 48), 30u);
}

TEST_F(Training, KnowsItsHeldOutDataAndItsTrainingText) {
  run(request("run", {"steps=1"}));
  EXPECT_EQ(held_out_data(folder_ / "run"), folder_ / "run/data");
  EXPECT_TRUE(is_training_data(folder_ / "run", folder_ / "text.txt"));
  EXPECT_FALSE(is_training_data(folder_ / "run", folder_ / "run/data"));
  EXPECT_FALSE(is_training_data(folder_ / "run", folder_ / "chats.jsonl"));
  TrainRequest on_shards = request("on-shards", {"steps=1"});
  on_shards.source.data = folder_ / "run/data";
  run(on_shards);
  EXPECT_EQ(held_out_data(folder_ / "on-shards"), folder_ / "run/data");
}

TEST(DataSettingsFile, OfEarlierVersionsIsRead) {
  const DataSettings settings{.data = "/a.txt", .documents = DocumentSplit::line, .longest_chat = 64};
  const DataSettings same = DataSettings::from_json(settings.to_json(), "data.json");
  EXPECT_EQ(same.documents, DocumentSplit::line);
  EXPECT_EQ(same.longest_chat, 64);
  const DataSettings old = DataSettings::from_json(
      R"({"data": "/a.txt", "val_data": "", "val_fraction": 0.1, "kind": "text", "order": "shuffled"})",
      "data.json");
  EXPECT_EQ(old.documents, DocumentSplit::end_of_text);
  EXPECT_EQ(old.longest_chat, 0);
}

TEST_F(Training, AFailedStartLeavesNoFolder) {
  TrainRequest bad = request("run");
  bad.source.data = folder_ / "missing.txt";
  EXPECT_THROW(run(bad), Error);
  EXPECT_THROW(run(request("run", {"context=8192", "batch_tokens=8192"})), Error) << "longer than the text";
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_F(Training, NamedValidationDataThatIsEmptyIsAnError) {
  TrainRequest bad = request("run");
  bad.source.val_data = folder_.write("empty.txt", "");
  EXPECT_THROW(run(bad), Error);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_F(Training, AFailedStartDoesNotBlockTheFolder) {
  PosixFileOps ops;
  RunFolder failed(ops, folder_ / "run");
  failed.create();
  failed.write_text("config.toml", "left by a start that ran out of memory");
  { const MetricsFile metrics(ops, failed.metrics()); }
  EXPECT_EQ(run(request("run")).status, RunStatus::completed);
}

TEST_F(Training, WeightsThatAreNotFiniteEndTheRunAsDiverged) {
  run_until(request("run"), 2);
  OpenedCheckpoint checkpoint(folder_ / "run" / "last.safetensors");
  checkpoint.model.weights()[5] = NAN;
  checkpoint.write();
  const TrainResult result = run(resumed("run"));
  EXPECT_EQ(result.status, RunStatus::diverged);
  ASSERT_TRUE(result.diagnosis);
  EXPECT_EQ(result.diagnosis->limit, Limit::optimization);
}

TEST_F(Training, DivergenceKeepsTheLastGoodCheckpoint) {
  // Every update multiplies the weights by 1 - 100 * 100, so they soon overflow f32.
  const TrainResult result =
      run(request("run", {"lr=100", "matrix_lr=100", "weight_decay=100", "muon_weight_decay=100",
                          "warmup_steps=0", "checkpoint_every=1"}));
  EXPECT_EQ(result.status, RunStatus::diverged);
  EXPECT_LT(result.steps, 20);
  OpenedCheckpoint good(result.checkpoint);
  EXPECT_GT(good.head.state.step, 0);
  for (float weight : good.model.weights()) ASSERT_TRUE(std::isfinite(weight));
}

const std::vector<std::string> kRisingLoss = {"lr=100",   "matrix_lr=100", "clip=0",
                                              "steps=80", "val_every=10",  "checkpoint_every=4"};

TEST_F(Training, ALossThatRisesFarAboveItsLowestEndsTheRunAsDiverged) {
  const TrainResult result = run(request("run", kRisingLoss));
  EXPECT_EQ(result.status, RunStatus::diverged);
  EXPECT_LT(result.steps, 40);
  EXPECT_EQ(result.best_step, -1) << "no validation was better than that of step 0";
  ASSERT_TRUE(result.diagnosis);
  EXPECT_EQ(result.diagnosis->limit, Limit::optimization);
  EXPECT_NE(result.diagnosis->advice.find("a lower learning rate"), std::string::npos);
  std::vector<std::string> settings = kRisingLoss;
  settings.emplace_back("stop_on_divergence=false");
  const TrainResult all = run(request("all", settings));
  EXPECT_EQ(all.status, RunStatus::completed);
  EXPECT_EQ(all.diagnosis.value().limit, Limit::optimization);
}

TEST_F(Training, AResumedRunDivergesAtTheSameStep) {
  const TrainResult straight = run(request("straight", kRisingLoss));
  run_until(request("resumed", kRisingLoss), 15);
  const TrainResult result = run(resumed("resumed", kRisingLoss));
  EXPECT_EQ(result.status, RunStatus::diverged);
  EXPECT_EQ(result.steps, straight.steps);
  EXPECT_EQ(last("resumed"), last("straight"));
}

TEST_F(Training, DivergenceKeepsTheBestCheckpoint) {
  const ModelFile model = (run(request("base")), open_model(folder_ / "base"));
  TrainRequest tuned = request("tuned", {"steps=80", "val_every=1", "clip=0"});
  tuned.config.optimizer.lr = tuned.config.optimizer.matrix_lr = 100;
  tuned.initial_weights = weights_of(model);
  const TrainResult result = run(tuned);
  EXPECT_EQ(result.status, RunStatus::diverged);
  EXPECT_EQ(result.checkpoint, folder_ / "tuned" / "best.safetensors");
  EXPECT_EQ(OpenedCheckpoint(result.checkpoint).head.state.step, 0);
}

TEST_F(Training, TargetValLossEndsTheRunWithSuccess) {
  const std::vector<std::string> settings = {"steps=60", "val_every=2", "target_val_loss=4.5"};
  const TrainResult straight = run(request("straight", settings));
  EXPECT_EQ(straight.status, RunStatus::target_reached);
  EXPECT_LE(straight.val_loss, 4.5);
  EXPECT_LT(straight.steps, 60);
  run_until(request("resumed", settings), straight.steps - 3);
  EXPECT_EQ(run(resumed("resumed", settings)).status, RunStatus::target_reached);
  EXPECT_EQ(last("resumed"), last("straight"));
  EXPECT_THROW(run(resumed("straight", settings)), Error);
  const TrainResult more = run(resumed("straight", {"steps=60", "val_every=2"}));
  EXPECT_EQ(more.status, RunStatus::completed);
}

TEST_F(Training, EpochsAreConvertedToSteps) {
  TrainRequest two = request("run");
  two.config.train.steps = 0;
  two.config.train.epochs = 2;
  const TrainResult result = run(two);
  EXPECT_EQ(result.status, RunStatus::completed);
  EXPECT_NEAR(result.epochs, 2, 0.02);
  const Config stored = OpenedCheckpoint(result.checkpoint).head.config;
  EXPECT_EQ(stored.train.steps, result.steps) << "the schedule and a resume need the number of steps";
  EXPECT_EQ(stored.train.epochs, 0);
}

TEST_F(Training, AContextLargerThanTheDataIsAnErrorThatNamesTheLargest) {
  TrainRequest wide = request("run", {"context=8192", "batch_tokens=8192", "micro_batch=1"});
  try {
    run(wide);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the context is 8192"), std::string::npos) << error.what();
    EXPECT_NE(error.hint().find("--context"), std::string::npos) << error.hint();
  }
}

TEST_F(Training, EarlyStopWaitsForPatienceAndMinSteps) {
  // With such a large min_delta no validation counts as an improvement.
  const TrainResult early = run(request("early", {"steps=100", "val_every=2", "patience=3", "min_delta=50"}));
  EXPECT_EQ(early.status, RunStatus::early_stop);
  EXPECT_EQ(early.steps, 6) << "three do not improve on step 0 by min_delta";
  const TrainResult later =
      run(request("later", {"steps=100", "val_every=2", "patience=3", "min_delta=50", "min_steps=15"}));
  EXPECT_EQ(later.steps, 16);
  EXPECT_THROW(run(resumed("early", {"steps=100", "val_every=2", "patience=3", "min_delta=50"})), Error);
  EXPECT_EQ(run(resumed("early", {"steps=100", "val_every=2", "patience=0", "min_delta=50"})).status,
            RunStatus::completed);
}

TEST_F(Training, ATimeLimitAloneEndsARun) {
  const TrainResult result =
      run(request("run", {"steps=0", "max_seconds=1", "val_every=0", "schedule=linear"}));
  EXPECT_EQ(result.status, RunStatus::wallclock);
  EXPECT_GT(result.steps, 0);
  EXPECT_GE(result.seconds, 0.2);
  double least = 1;
  for (const Json& event : events_of(folder_ / "run" / "metrics.jsonl"))
    if (const Json* multiplier = event.find("lr_multiplier"))
      least = std::min(least, multiplier->as_double());
  EXPECT_LT(least, 0.5) << "the learning rate should follow the time";
}

TEST_F(Training, StoresTheAutomaticSettingsInTheConfig) {
  run(request("run", {"steps=1", "val_every=0"}));
  const OpenedCheckpoint checkpoint(folder_ / "run" / "last.safetensors");
  EXPECT_NE(checkpoint.head.config.train.dtype, ComputeDType::automatic);
  EXPECT_GT(checkpoint.head.config.train.micro_batch, 0);
}

TEST_F(Training, F32AndBf16ReachSimilarLosses) {
  const TrainResult exact = run(request("f32", {"dtype=f32"})),
                    rounded = run(request("bf16", {"dtype=bf16"}));
  EXPECT_NE(exact.val_loss, rounded.val_loss);
  EXPECT_NEAR(exact.val_loss, rounded.val_loss, 0.05);
}

TEST_F(Training, PrimingDoesNotChangeTheResult) {
  run(request("straight"));
  run(request("primed", {"prime_steps=3"}));
  OpenedCheckpoint straight(folder_ / "straight" / "last.safetensors"),
      primed(folder_ / "primed" / "last.safetensors");
  EXPECT_TRUE(std::ranges::equal(straight.model.weights(), primed.model.weights()));
  EXPECT_EQ(straight.head.state, primed.head.state);
}

TEST_F(Training, QatStartsAtAStepOrFraction) {
  const auto losses = [&](const std::string& run_name, std::vector<std::string> settings) {
    settings.push_back("val_every=0");
    run(request(run_name, settings));
    std::vector<double> values;
    for (const Json& event : events_of(folder_ / run_name / "metrics.jsonl"))
      if (const Json* loss = event.find("loss")) values.push_back(loss->as_double());
    return values;
  };
  const auto plain = losses("plain", {});
  const auto by_step = losses("step", {"qat_bits=5", "qat_start=10"});
  const auto by_fraction = losses("fraction", {"qat_bits=5", "qat_start=0.5"});
  EXPECT_EQ(by_step, by_fraction);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(plain[i], by_step[i]) << i;
  EXPECT_NE(plain[10], by_step[10]);
}

TEST_F(Training, AveragedWeightsAreValidatedAndSavedAsTheModel) {
  for (const char* setting : {"ema_decay=0.8", "swa_start=0.9"}) {
    const std::string name = std::string(setting).substr(0, 3);
    const TrainResult result = run(request(name, {setting, "swa_every=2", "val_every=20"}));
    OpenedCheckpoint checkpoint(folder_ / name / "last.safetensors");
    const ModelFile saved = open_model(folder_ / name / "last.safetensors");
    EXPECT_TRUE(std::ranges::equal(saved.weights, checkpoint.averaging.average()));
    EXPECT_FALSE(std::ranges::equal(saved.weights, checkpoint.model.weights()));
    EXPECT_NE(checkpoint.file.find("optim.raw." + checkpoint.model.params().all().front().name), nullptr);
    const auto events = events_of(folder_ / name / "metrics.jsonl");
    EXPECT_EQ(events.back().at("weights").as_string(), name);
    EXPECT_DOUBLE_EQ(events.back().at("val_loss").as_double(), result.val_loss);
  }
}

TEST_F(Training, ValidatingTheAverageDoesNotChangeTraining) {
  run(request("often", {"ema_decay=0.8", "val_every=1"}));
  run(request("never", {"ema_decay=0.8", "val_every=0"}));
  OpenedCheckpoint often(folder_ / "often" / "last.safetensors"),
      never(folder_ / "never" / "last.safetensors");
  EXPECT_TRUE(std::ranges::equal(often.model.weights(), never.model.weights()));
  EXPECT_TRUE(std::ranges::equal(often.averaging.average(), never.averaging.average()));
}

TEST_F(Training, OverfitsAKilobyteOfText) {
  const std::string text = sample_text().substr(0, 1024);
  folder_.write("text.txt", text);
  folder_.write("other.txt", sample_text().substr(2000));
  TrainRequest overfit = request("run", {"context=64", "batch_tokens=512", "dim=64", "mlp_hidden=192",
                                         "steps=250", "val_every=0", "micro_batch=8"});
  overfit.source.val_data = folder_ / "other.txt";
  const TrainResult result = run(overfit);
  EXPECT_LT(result.train_loss, 0.05);
  ASSERT_TRUE(result.diagnosis);
  EXPECT_EQ(result.diagnosis->limit, Limit::data) << result.diagnosis->text();
}

TEST_F(Training, TrainsOnlyOnTheAnswersOfChats) {
  const TrainResult result = run(chat_request("run", {"context=64", "batch_tokens=256", "steps=30"}));
  EXPECT_EQ(result.status, RunStatus::completed);
  EXPECT_LT(result.tokens, 30 * 256) << "padding is not counted";
  EXPECT_EQ(open_model(folder_ / "run").layout, kRolesLayout);
  for (const Json& event : events_of(folder_ / "run" / "metrics.jsonl")) {
    const Json* targets = event.find("targets");
    EXPECT_TRUE(!targets || targets->as_int() < 256 / 2);
  }
}

}  // namespace
}  // namespace thimble
