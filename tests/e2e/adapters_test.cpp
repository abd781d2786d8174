// Adapters from the command line: train --lora-rank, --adapter, merge, export --format peft.
#include <gtest/gtest.h>

#include "base/json.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::adapters_test {
namespace {

class Adapters : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = new TempFolder;
    folder->write("old.txt", text_of("the old story of a small red cat and its mat. "));
    folder->write("new.txt", text_of("a new tale: two dogs ran over seven green hills! "));
    run({"train", "--data",  "old.txt",   "--preset", "quick",   "--layers", "2",
         "--dim", "32",      "--context", "32",       "--steps", "30",       "--val-every",
         "0",     "--dtype", "f32",       "-o",       "base",    "--quiet"});
    run({"train", "--data", "new.txt", "--init", "base", "--lora-rank", "4", "--lr", "0.02", "--steps", "40",
         "--val-every", "0", "--dtype", "f32", "-o", "lora", "--quiet"});
  }
  static void TearDownTestSuite() { delete folder; }

  static std::string text_of(const std::string& sentence) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += sentence + std::to_string(i % 7) + "\n";
    return text;
  }

  static RunResult result_of(std::vector<std::string> words) {
    return run_binary({.arguments = std::move(words), .folder = folder->path()});
  }
  static std::string run(std::vector<std::string> words) {
    const RunResult result = result_of(std::move(words));
    EXPECT_EQ(result.exit_code, 0) << result;
    return result.out;
  }
  static double bits(std::vector<std::string> words) {
    words.insert(words.end(), {"--json", "--data", "new.txt", "--dtype", "f32"});
    return parse_json(run(words), "eval").at("val_bpb").as_double();
  }

  static TempFolder* folder;
};
TempFolder* Adapters::folder = nullptr;

TEST_F(Adapters, ImproveTheModelAndScale) {
  const double base = bits({"eval", "base"}), adapted = bits({"eval", "lora"});
  EXPECT_LT(adapted, base - 0.3);
  EXPECT_NEAR(bits({"eval", "base", "--adapter", "lora"}), adapted, 1e-4);
  EXPECT_NEAR(bits({"eval", "base", "--adapter", "lora:0.5", "--adapter", "lora:0.5"}), adapted, 1e-4);
  EXPECT_NEAR(bits({"eval", "base", "--adapter", "lora:0"}), base, 1e-4);
}

TEST_F(Adapters, MergedModelsAndExportsSayTheSame) {
  const auto greedy = [](const std::string& model) {
    return run({"generate", model, "two", "--max-tokens", "20", "--temperature", "0", "--dtype", "f32"});
  };
  const std::string expected = greedy("lora");
  run({"merge", "lora", "-o", "merged.safetensors"});
  EXPECT_EQ(greedy("merged.safetensors"), expected);
  run({"export", "lora", "--format", "peft", "-o", "peft"});
  EXPECT_EQ(greedy("peft"), expected);
  run({"export", "lora", "--format", "gguf", "--type", "f32", "-o", "lora.gguf"});
  EXPECT_EQ(greedy("lora.gguf"), expected);
  run({"merge", "base", "--adapter", "peft", "-o", "again.safetensors"});
  EXPECT_EQ(greedy("again.safetensors"), expected);
}

TEST_F(Adapters, PassTheChecks) {
  const RunResult result = result_of({"qa", "lora"});
  EXPECT_EQ(result.exit_code, 0) << result;
  EXPECT_NE(result.out.find("passed   golden"), std::string::npos) << result;
}

TEST_F(Adapters, MistakesAreSentences) {
  const auto error_of = [](std::vector<std::string> words) {
    const RunResult result = result_of(std::move(words));
    EXPECT_NE(result.exit_code, 0) << result;
    const std::size_t error = result.err.find("error: ");
    return result.err.substr(error, result.err.find('\n', error) - error);
  };
  EXPECT_EQ(error_of({"train", "--data", "new.txt", "--lora-rank", "4"}),
            "error: lora_rank trains adapters for a model, and none is named");
  EXPECT_EQ(error_of({"train", "--data", "new.txt", "--init", "lora", "--lora-rank", "4", "-o", "x"}),
            "error: lora/best.safetensors has adapters already");
  EXPECT_EQ(error_of({"train", "--data", "new.txt", "--init", "base", "--lora-rank", "999", "-o", "x"}),
            "error: lora_rank is 999, but model.layers.0.self_attn.q_proj.weight is only 32 x 32");
  EXPECT_EQ(error_of({"merge", "base", "-o", "x.safetensors"}).find("error: base/"), 0u);
  EXPECT_EQ(error_of({"generate", "base", "--adapter", "nothing"}),
            "error: --adapter: nothing does not exist");
  EXPECT_EQ(error_of({"export", "base", "--format", "peft", "-o", "x"}).find("error: base/"), 0u);
}

}  // namespace
}  // namespace thimble::adapters_test
