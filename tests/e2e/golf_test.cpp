// `thimble golf` as a replacement for `python3 train_gpt_mlx.py`: the same environment variables, a
// log that the same scripts can parse, and files that the other commands can read.
#include <fmt/format.h>

#include <csignal>
#include <regex>
#include <sstream>

#include "base/json.h"
#include "golf/golf_world.h"
#include "support/golden.h"
#include "support/mpirun.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

class Golf : public testing::Test {
 protected:
  Golf() : environment_(tiny_environment()) {
    write_tiny_shards(folder_);
    folder_.write("text.txt", tiny_text());
    const RunResult trained = run({"tokenizer", "train", "--kind", "sentencepiece", "--vocab-size",
                                   std::to_string(kTinyVocabulary), "text.txt", "-o", "made"});
    EXPECT_EQ(trained.exit_code, 0) << trained;
    std::filesystem::create_directories(folder_ / "data/tokenizers");
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder_ / "made"))
      if (file.path().extension() == ".model")
        std::filesystem::copy_file(file.path(), folder_ / "data/tokenizers/tiny.model");
    if (std::filesystem::is_regular_file(folder_ / "made"))
      std::filesystem::copy_file(folder_ / "made", folder_ / "data/tokenizers/tiny.model");
  }

  RunResult run(const std::vector<std::string>& arguments) const {
    return run_binary({.arguments = arguments, .folder = folder_.path()});
  }
  RunResult golf(std::vector<std::string> arguments = {}) const {
    arguments.insert(arguments.begin(), "golf");
    return run_binary({.arguments = arguments, .folder = folder_.path(), .environment = environment_});
  }

  RunResult golf_on_two_ranks(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "golf");
    return mpirun(2, {.arguments = arguments, .folder = folder_.path(), .environment = environment_});
  }

  // The values of `key` in all events of one kind in metrics.jsonl.
  std::vector<double> figures(const std::string& folder, std::string_view event, std::string_view key) const {
    std::vector<double> values;
    std::istringstream lines(folder_.read(folder + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);)
      if (const Json json = parse_json(line, "metrics"); json.at("event").as_string() == event)
        values.push_back(json.at(key).as_double());
    return values;
  }

  bool has_made_a_step() const {
    const std::filesystem::path metrics = folder_ / "logs/mlx_smoke/metrics.jsonl";
    return std::filesystem::exists(metrics) &&
           folder_.read("logs/mlx_smoke/metrics.jsonl").find("\"event\":\"step\"") != std::string::npos;
  }

  std::map<std::string, std::string> environment_;
  TempFolder folder_;
};

// Finds values like the scripts of the leaderboard.
std::vector<std::string> found(const std::string& log, const char* pattern) {
  std::vector<std::string> values;
  const std::regex regex(pattern);
  for (std::sregex_iterator match(log.begin(), log.end(), regex), end; match != end; ++match)
    values.push_back((*match)[1]);
  return values;
}

TEST_F(Golf, RunsAPublishedEnvironmentUnchanged) {
  const RunResult result = golf();
  ASSERT_EQ(result.exit_code, 0) << result;
  EXPECT_TRUE(result.out.starts_with("logs/mlx_smoke.txt\nrun_id:mlx_smoke\n")) << result;
  EXPECT_EQ(found(result.out, R"(model_params:(\d+))").size(), 1u);
  EXPECT_EQ(
      found(result.out, R"(step:(\d+)/12 train_loss:\d+\.\d+ train_time:\d+ms step_avg:\d+\.\d+ms)").size(),
      10u);
  EXPECT_EQ(found(result.out, R"(step:12/12 val_loss:(\d+\.\d+) val_bpb:\d+\.\d+)").size(), 1u);
  EXPECT_EQ(found(result.out, R"(serialized_model_int8_zlib:(\d+) bytes)").size(), 1u);
  EXPECT_EQ(found(result.out,
                  R"(final_int8_zlib_roundtrip val_loss:(\d+\.\d{4}) val_bpb:\d+\.\d{4} eval_time:\d+ms)")
                .size(),
            1u);
  EXPECT_EQ(
      found(result.out, R"(final_int8_zlib_roundtrip_exact val_loss:\d+\.\d{8} val_bpb:(\d+\.\d{8}))").size(),
      1u);
  const std::string file = folder_.read("logs/mlx_smoke.txt");
  EXPECT_TRUE(file.ends_with(result.out.substr(result.out.find('\n') + 1)))
      << "the file ends with the console's lines";
  for (const char* name : {"mlx_smoke_mlx_model.npz", "mlx_smoke_mlx_model.int8.ptz", "mlx_smoke.thimble",
                           "mlx_smoke/last.safetensors", "mlx_smoke/config.toml"})
    EXPECT_TRUE(std::filesystem::exists(folder_ / (std::string("logs/") + name))) << name;
}

TEST_F(Golf, HasTheSameLossesAsTrain) {
  environment_["VAL_LOSS_EVERY"] = "6";
  ASSERT_EQ(golf().exit_code, 0);
  std::vector<std::string> train = {"train",
                                    "--preset",
                                    "golf-mlx",
                                    "--data",
                                    "data/datasets/tiny",
                                    "--tokenizer",
                                    "data/tokenizers/tiny.model",
                                    "-o",
                                    "run"};
  for (const char* setting :
       {"steps=12", "batch_tokens=512", "span_tokens=64", "context=32", "layers=2", "dim=32", "heads=2",
        "kv_heads=1", "prime_steps=0", "max_seconds=0", "val_every=6"})
    train.insert(train.end(), {"--set", setting});
  const RunResult trained = run(train);
  ASSERT_EQ(trained.exit_code, 0) << trained;
  ASSERT_EQ(figures("run", "step", "loss").size(), 12u);
  EXPECT_EQ(figures("logs/mlx_smoke", "step", "loss"), figures("run", "step", "loss"));
  EXPECT_EQ(figures("logs/mlx_smoke", "validation", "val_bpb"), figures("run", "validation", "val_bpb"));
  const RunResult diff = run({"diff", "logs/mlx_smoke/last.safetensors", "run/last.safetensors", "--json"});
  EXPECT_EQ(parse_json(diff.out, "diff").at("max_abs").as_double(), 0.0) << diff;
}

TEST_F(Golf, WritesFilesThatOtherCommandsRead) {
  const RunResult golfed = golf();
  ASSERT_EQ(golfed.exit_code, 0) << golfed;
  const std::vector<std::string> model = {
      "--preset", "golf-mlx",   "--set",       "vocab_size=300",
      "--set",    "context=32", "--set",       "layers=2",
      "--set",    "dim=32",     "--set",       "heads=2",
      "--set",    "kv_heads=1", "--tokenizer", "data/tokenizers/tiny.model"};
  const auto import = [&](const std::string& from, const std::string& to) {
    std::vector<std::string> words = {"import", from, "-o", to};
    words.insert(words.end(), model.begin(), model.end());
    return run(words);
  };
  const RunResult raw = import("logs/mlx_smoke_mlx_model.npz", "raw.safetensors");
  ASSERT_EQ(raw.exit_code, 0) << raw;
  const RunResult diff = run({"diff", "raw.safetensors", "logs/mlx_smoke/last.safetensors", "--json"});
  EXPECT_EQ(parse_json(diff.out, "diff").at("max_abs").as_double(), 0.0) << diff;

  const RunResult int8 = import("logs/mlx_smoke_mlx_model.int8.ptz", "int8.safetensors");
  ASSERT_EQ(int8.exit_code, 0) << int8;
  const RunResult eval = run({"eval", "int8.safetensors", "--data", "data/datasets/tiny", "--json"});
  ASSERT_EQ(eval.exit_code, 0) << eval;
  const auto exact = found(golfed.out, R"(roundtrip_exact val_loss:\d+\.\d{8} val_bpb:(\d+\.\d{8}))");
  ASSERT_EQ(exact.size(), 1u);
  EXPECT_NEAR(parse_json(eval.out, "eval").at("val_bpb").as_double(), std::stod(exact[0]),
              2e-3);  // golf computes in f32
  EXPECT_EQ(run({"eval", "logs/mlx_smoke.thimble", "--data", "data/datasets/tiny"}).exit_code, 0);

  const RunResult alone = run({"inspect", "logs/mlx_smoke_mlx_model.npz"});
  EXPECT_EQ(alone.exit_code, 1);
  EXPECT_NE(alone.err.find("thimble import FILE --preset golf-mlx"), std::string::npos) << alone;
}

TEST_F(Golf, WarnsAboutUnknownAndIneffectiveVariablesOnStderr) {
  environment_["ITERATIONS"] = "1";
  environment_["ITERATION"] = "200";
  environment_["MLX_EAGER_EVAL"] = "1";
  const RunResult result = golf();
  ASSERT_EQ(result.exit_code, 0) << result;
  EXPECT_NE(result.err.find("ITERATION is set but not used: did you mean ITERATIONS?"), std::string::npos);
  EXPECT_NE(result.err.find("MLX_EAGER_EVAL does nothing"), std::string::npos) << result;
  EXPECT_EQ(result.out.find("EAGER"), std::string::npos) << "the log must only have the original's lines";
}

TEST_F(Golf, FlagsOverrideTheEnvironment) {
  const RunResult result =
      golf({"--steps", "2", "--run-id", "other", "-o", "elsewhere", "--set", "val_tokens=64"});
  ASSERT_EQ(result.exit_code, 0) << result;
  EXPECT_TRUE(result.out.starts_with("elsewhere/other.txt\nrun_id:other\n")) << result;
  EXPECT_EQ(found(result.out, R"(step:(\d+)/2 val_loss)"), std::vector<std::string>{"2"});
}

TEST_F(Golf, RejectsBadSettings) {
  environment_["NUM_HEADS"] = "5";
  const RunResult result = golf();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("model_dim must be divisible by num_heads: 32 / 5"), std::string::npos) << result;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "logs"));
}

TEST_F(Golf, ListsTheVariables) {
  const RunResult result = golf({"--list-env"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(matches_golden(result.out, "golf/variables.txt"));
}

TEST_F(Golf, AnInterruptedRunIsFinishedWithResume) {
  environment_["ITERATIONS"] = "1000000";
  environment_["WARMUP_STEPS"] = "0";
  const RunResult result = run_binary({.arguments = {"golf"},
                                       .folder = folder_.path(),
                                       .environment = environment_,
                                       .signal = SIGINT,
                                       .signal_when = [&] { return has_made_a_step(); }});
  EXPECT_EQ(result.exit_code, 130) << result;
  const std::vector<std::string> step = found(result.err, R"(interrupted at step (\d+);.* with --resume)");
  ASSERT_EQ(step.size(), 1u) << result;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "logs/mlx_smoke/last.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "logs/mlx_smoke_mlx_model.npz"));

  environment_["ITERATIONS"] = std::to_string(std::stol(step[0]) + 2);
  const RunResult resumed = golf({"--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed;
  EXPECT_EQ(found(resumed.out, R"(step:(\d+)/\d+ val_loss)"),
            std::vector<std::string>{environment_["ITERATIONS"]});
  for (const char* name : {"mlx_smoke_mlx_model.npz", "mlx_smoke_mlx_model.int8.ptz", "mlx_smoke.thimble"})
    EXPECT_TRUE(std::filesystem::exists(folder_ / (std::string("logs/") + name))) << name;
  const RunResult again = golf({"--resume"});
  EXPECT_EQ(again.exit_code, 1) << again;
  EXPECT_NE(again.err.find("logs/mlx_smoke.thimble already exists: the run is finished"), std::string::npos)
      << again;
  environment_.erase("RUN_ID");
  EXPECT_EQ(golf({"--resume"}).exit_code, 2);
}

TEST_F(Golf, TorchWritesItsFilesIntoTheOutputFolder) {
  environment_["ITERATIONS"] = "0";
  const RunResult named = golf({"--like", "torch", "-o", "out"});
  ASSERT_EQ(named.exit_code, 0) << named;
  const auto exists = [&](const std::string& file) { return std::filesystem::exists(folder_ / file); };
  EXPECT_TRUE(exists("out/final_model.pt") && exists("out/final_model.int8.ptz"));
  EXPECT_FALSE(exists("final_model.pt") || exists("final_model.int8.ptz"));
  ASSERT_EQ(golf({"--like", "torch"}).exit_code, 0);
  EXPECT_TRUE(exists("final_model.pt") && exists("final_model.int8.ptz")) << "as train_gpt.py does";
}

// Shards written by a Python script in the published format and, if they exist, the published
// files.
TEST(GolfOfOthers, RunsWithThePublishedTokenizerAndShards) {
  const auto shards =
      golden_and_shared({"shards/fineweb_train_000000.bin"}, {"fixtures/shards/fineweb_train_000000.bin"});
  const auto tokenizers =
      golden_and_shared({"tokenizers/golf_1024.model"}, {"fixtures/sentencepiece/fineweb_1024_bpe.model"});
  ASSERT_EQ(shards.size(), tokenizers.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const TempFolder folder;
    auto environment = tiny_environment();
    environment["VOCAB_SIZE"] = "1024";
    environment["ITERATIONS"] = "3";
    environment["DATA_PATH"] = shards[i].parent_path().string();
    environment["TOKENIZER_PATH"] = tokenizers[i].string();
    const RunResult result =
        run_binary({.arguments = {"golf"}, .folder = folder.path(), .environment = environment});
    ASSERT_EQ(result.exit_code, 0) << result;
    EXPECT_NE(result.out.find("/fineweb_val_*.bin tokens:4096\n"), std::string::npos);
  }
}

TEST_F(Golf, TwoRanksShareSpansAndWriteOneLog) {
  if (const std::string why = no_mpirun(); !why.empty()) GTEST_SKIP() << why;
  const std::vector<std::string> words = {"--like", "torch", "--set", "dtype=f32", "--set", "muon_dtype=f32"};
  environment_["RUN_ID"] = "one";
  const RunResult one = golf(words);
  ASSERT_EQ(one.exit_code, 0) << one;
  environment_["RUN_ID"] = "two";
  const RunResult two = golf_on_two_ranks(words);
  ASSERT_EQ(two.exit_code, 0) << two;
  EXPECT_NE(one.out.find("world_size:1 grad_accum_steps:8"), std::string::npos) << one;
  const std::string line = "world_size:2 grad_accum_steps:4";
  ASSERT_NE(two.out.find(line), std::string::npos) << two;
  EXPECT_EQ(two.out.find(line), two.out.rfind(line)) << two;
  const std::vector<double> alone = figures("logs/one", "step", "loss"),
                            shared = figures("logs/two", "step", "loss");
  ASSERT_EQ(alone.size(), 12u);
  ASSERT_EQ(shared.size(), 12u);
  for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(shared[i] / alone[i], 1, 1e-4) << i;
}

}  // namespace
}  // namespace thimble
