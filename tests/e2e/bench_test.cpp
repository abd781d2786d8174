// `thimble bench prefill|decode|tokenize|train`. Speed is not checked.
#include "base/json.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::bench_test {
namespace {

const std::vector<std::string> kTiny = {"--preset", "quick", "--set",      "layers=1", "--set",
                                        "dim=32",   "--set", "context=64", "--set",    "batch_tokens=64"};

RunResult bench(const std::string& what, std::vector<std::string> more, bool tiny = true) {
  std::vector<std::string> arguments = {"bench", what};
  if (tiny) arguments.insert(arguments.end(), kTiny.begin(), kTiny.end());
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_binary({.arguments = arguments});
}

Json json_of(const RunResult& run) {
  EXPECT_EQ(run.exit_code, 0) << run;
  return parse_json(run.out, "stdout");
}

// The fraction is left out if other programs disturbed the ceiling.
void expect_fraction(const Json& report, std::string_view key, double expected) {
  const Json* fraction = report.find(key);
  ASSERT_EQ(fraction != nullptr, expected <= 1) << expected;
  if (!fraction) return;
  EXPECT_NEAR(fraction->as_double(), expected, 1e-9);
}

TEST(Bench, PrefillIsComparedWithMatrixProducts) {
  const Json report = json_of(bench("prefill", {"--iterations", "3", "--max-tokens", "32", "--json"}));
  EXPECT_EQ(report.at("test").as_string(), "pp32");
  EXPECT_TRUE(report.at("passed").as_bool());
  EXPECT_EQ(report.at("samples").size(), 3u);
  EXPECT_GT(report.at("tokens_per_second").as_double(), 0);
  EXPECT_GT(report.at("gemm_peak_gflops").as_double(), 0);
  expect_fraction(report, "fraction_of_peak",
                  report.at("gflops").as_double() / report.at("gemm_peak_gflops").as_double());
}

TEST(Bench, DecodeIsComparedWithMemoryBandwidth) {
  const Json report = json_of(bench(
      "decode", {"--iterations", "2", "--max-tokens", "8", "--depth", "16", "--streams", "2", "--json"}));
  EXPECT_EQ(report.at("test").as_string(), "tg8 @ d16");
  EXPECT_EQ(report.at("streams").as_int(), 2);
  EXPECT_GT(report.at("read_gigabytes_per_second").as_double(), 0);
  expect_fraction(
      report, "fraction_of_ceiling",
      report.at("tokens_per_second").as_double() / report.at("ceiling_tokens_per_second").as_double());
}

TEST(Bench, OfAModelMeasuresPromptsAndDecoding) {
  std::vector<std::string> words = {"bench", "--iterations", "1", "--json", "--threads", "1"};
  words.insert(words.end(), kTiny.begin(), kTiny.end());
  const Json report = json_of(run_binary({.arguments = words}));
  EXPECT_EQ(report.at("prefill").at("test").as_string(), "pp64");
  EXPECT_EQ(report.at("decode").at("test").as_string(), "tg64");
  EXPECT_GT(report.at("decode").at("first_token_seconds").as_double(), 0);
  EXPECT_EQ(run_binary({.arguments = {"bench"}}).exit_code, 2);
}

TEST(Bench, TheDefaultLengthIsLimitedByTheContext) {
  EXPECT_EQ(json_of(bench("prefill", {"--iterations", "1", "--json"})).at("test").as_string(), "pp64");
  EXPECT_EQ(bench("prefill", {"--max-tokens", "65"}).exit_code, 2);
}

TEST(Bench, ExitsWithOneBelowMinTps) {
  const RunResult slow =
      bench("decode", {"--iterations", "1", "--max-tokens", "4", "--min-tps", "1e12", "--json"});
  EXPECT_EQ(slow.exit_code, 1) << slow;
  EXPECT_FALSE(parse_json(slow.out, "stdout").at("passed").as_bool());
  EXPECT_NE(slow.err.find("slower than --min-tps 1000000000000"), std::string::npos) << slow;
}

TEST(Bench, NeedsAModelOrAPreset) {
  EXPECT_EQ(bench("decode", {}, false).exit_code, 2);
  EXPECT_EQ(bench("decode", {"some/model"}).exit_code, 2);
  EXPECT_EQ(bench("decode", {"some/model", "--set", "layers=1"}, false).exit_code, 2);
}

TEST(Bench, TrainAcceptsAModel) {
  const TempFolder folder;
  const std::string text = folder.write("text.txt", std::string(3000, 'a')).string(),
                    run = (folder / "run").string();
  std::vector<std::string> train = {"train", "--data", text, "-o", run, "--steps", "2"};
  train.insert(train.end(), kTiny.begin(), kTiny.end());
  ASSERT_EQ(run_binary({.arguments = train}).exit_code, 0);
  const Json report =
      json_of(bench("train", {run, "--batch-tokens", "128", "--iterations", "1", "--json"}, false));
  EXPECT_EQ(report.at("step_tokens").as_int(), 128);
  for (const char* key : {"tokens_per_second", "gflops", "gemm_peak_gflops", "muon_seconds"})
    EXPECT_GE(report.at(key).as_double(), 0) << key;
  expect_fraction(report, "fraction_of_peak",
                  report.at("gflops").as_double() / report.at("gemm_peak_gflops").as_double());
  EXPECT_TRUE(report.at("passed").as_bool());
  EXPECT_EQ(report.at("samples").size(), 1u);
  EXPECT_EQ(report.at("peak_samples").size(), 1u);
  EXPECT_EQ(bench("train", {run}).exit_code, 2);  // with a preset as well
}

TEST(Bench, DecodeReadsWeightsInTheirStoredFormat) {
  const TempFolder folder;
  const std::string text = folder.write("text.txt", std::string(3000, 'a')).string(),
                    run = (folder / "run").string();
  ASSERT_EQ(run_binary({.arguments = {"train",
                                      "--data",
                                      text,
                                      "-o",
                                      run,
                                      "--preset",
                                      "llama",
                                      "--steps",
                                      "1",
                                      "--set",
                                      "layers=1",
                                      "--set",
                                      "dim=64",
                                      "--set",
                                      "heads=2",
                                      "--set",
                                      "kv_heads=1",
                                      "--set",
                                      "mlp_hidden=128",
                                      "--set",
                                      "context=64",
                                      "--set",
                                      "batch_tokens=64"}})
                .exit_code,
            0);
  const auto bytes_per_token = [&](const std::string& type) {
    const std::string file = (folder / (type + ".gguf")).string();
    const RunResult made =
        run_binary({.arguments = {"export", run, "--format", "gguf", "--type", type, "-o", file}});
    EXPECT_EQ(made.exit_code, 0) << made;
    return json_of(bench("decode",
                         {file, "--iterations", "1", "--max-tokens", "4", "--dtype", "f32", "--json"}, false))
        .at("bytes_per_token")
        .as_double();
  };
  const double wide = bytes_per_token("f32"), narrow = bytes_per_token("q8_0");
  EXPECT_LT(narrow, 0.4 * wide);
  EXPECT_GT(narrow, 0.2 * wide);
}

TEST(Bench, TrainCountsRecomputedBlocksOnce) {
  const auto flops = [](const char* setting) {
    const Json report = json_of(bench("train", {"--set", setting, "--iterations", "1", "--json"}));
    return report.at("gflops").as_double() * report.at("step_seconds").as_double();
  };
  EXPECT_NEAR(flops("checkpoint_activations=true") / flops("checkpoint_activations=false"), 1, 1e-6);
}

TEST(Bench, MeasuresTokenization) {
  const TempFolder folder;
  const std::string text = folder.write("text.txt", "the cat sat on the mat\n").string();
  const Json report =
      json_of(bench("tokenize", {"bytes", "--data", text, "--iterations", "2", "--json"}, false));
  EXPECT_EQ(report.at("kind").as_string(), "bytes");
  EXPECT_EQ(report.at("tokens").as_int(), 23);
  EXPECT_EQ(report.at("bytes_per_token").as_double(), 1);
  EXPECT_GT(report.at("tokens_per_second").as_double(), 0);
  EXPECT_TRUE(report.at("passed").as_bool());
  const RunResult nothing =
      bench("tokenize", {"bytes", "--data", folder.write("empty.txt", "").string()}, false);
  EXPECT_NE(nothing.err.find("empty.txt is empty"), std::string::npos) << nothing;
  const Json learned = json_of(bench("tokenize", {"--data", text, "--max-tokens", "5", "--json"}, false));
  EXPECT_EQ(learned.at("kind").as_string(), "bpe");
  EXPECT_EQ(learned.at("tokens").as_int(), 5);
}

}  // namespace
}  // namespace thimble::bench_test
