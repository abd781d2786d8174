// `thimble train --dry-run`: resolved settings and their cost, for every preset.
#include "base/json.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::dry_run_test {
namespace {

RunResult dry_run(std::vector<std::string> more) {
  std::vector<std::string> arguments = {"train", "--dry-run"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_binary({.arguments = arguments});
}

Json json_of(const RunResult& run) {
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(run.err, "");
  return parse_json(run.out, "stdout");
}

TEST(DryRun, WarnsAboutASettingWithoutEffect) {
  const RunResult run = dry_run({"--preset", "microgpt", "--set", "muon_momentum=0.9"});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_NE(run.err.find("warning: muon_momentum has no effect: muon_steps is 0"), std::string::npos) << run;
}

class EveryPreset : public testing::TestWithParam<const char*> {};

TEST_P(EveryPreset, PrintsItsTable) {
  const RunResult run = dry_run({"--preset", GetParam()});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(run.err, "");
  for (const char* word : {"vocab_size", "loss_on", "embedding", "matrix", "scalar", "total",
                           "FLOPs per token", "parameter gradients", "optimizer", "activations", "total"})
    EXPECT_NE(run.out.find(word), std::string::npos) << word << "\n" << run;
}

TEST_P(EveryPreset, PrintsOneObject) {
  const Json report = json_of(dry_run({"--preset", GetParam(), "--json"}));
  EXPECT_EQ(report.at("preset").as_string(), GetParam());
  const Json& parameters = report.at("parameters");
  std::int64_t sum = 0;
  for (const char* group : {"embedding", "head", "matrix", "scalar"}) sum += parameters.at(group).as_int();
  EXPECT_EQ(parameters.at("total").as_int(), sum);
  EXPECT_EQ(report.at("flops_per_token").at("training").as_int(),
            3 * report.at("flops_per_token").at("forward").as_int());
  for (const char* part : {"weights", "gradients", "optimizer", "activations"})
    EXPECT_GT(report.at("memory_bytes").at(part).as_int(), 0) << part;
}

INSTANTIATE_TEST_SUITE_P(DryRun, EveryPreset,
                         testing::Values("quick", "chat", "golf", "golf-mlx", "golf-plus", "microgpt",
                                         "llama", "qwen2", "qwen3", "export"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(DryRun, PrintsTheMemoryFirstAndTheSettingsLast) {
  const RunResult run = dry_run({});
  EXPECT_TRUE(run.out.starts_with("memory in total ")) << run;
  EXPECT_LT(run.out.find("FLOPs per token"), run.out.find("activations"));
  EXPECT_LT(run.out.find("activations"), run.out.find("vocab_size"));
}

TEST(DryRun, RefusesDataWithoutText) {
  TempFolder folder;
  for (const char* text : {"", "<|endoftext|>\n<|endoftext|>\n"}) {
    const auto file = folder.write("empty.txt", text);
    const RunResult run = dry_run({"--data", file.string()});
    EXPECT_EQ(run.exit_code, 1) << run;
    EXPECT_NE(run.err.find("empty.txt contains nothing to train on"), std::string::npos) << run;
  }
}

TEST(DryRun, GolfHasThePublishedSize) {
  const Json report = json_of(dry_run({"--preset", "golf", "--json"}));
  EXPECT_EQ(report.at("parameters").at("total").as_int(), 17059912);
  EXPECT_EQ(report.at("config").at("head_dim").as_int(), 64);
}

TEST(DryRun, TakesTheVocabularySizeFromTheTokenizer) {
  const auto tokens = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"--preset", "microgpt", "--json"});
    return json_of(dry_run(more)).at("config").at("vocab_size").as_int();
  };
  TempFolder folder;
  folder.write("text.txt", "a sample text\n");
  EXPECT_EQ(tokens({}), 4096);
  EXPECT_EQ(tokens({"--tokenizer", "bytes"}), 257);
  EXPECT_EQ(tokens({"--tokenizer", "bpe:700"}), 700);
  EXPECT_EQ(tokens({"--data", (folder / "text.txt").string()}), 257);
  const RunResult missing = dry_run({"--tokenizer", (folder / "no.json").string()});
  EXPECT_NE(missing.exit_code, 0) << missing;
  EXPECT_NE(missing.err.find("no.json"), std::string::npos) << missing;
}

TEST(DryRun, ReadsSettingsFromFilesAssignmentsAndFlags) {
  TempFolder folder;
  const auto file = folder.write("mine.toml", "layers = 5\nheads = 4\n");
  const Json report =
      json_of(dry_run({"--preset", "golf", "--config", file.string(), "--set", "dim=256", "--rope-base",
                       "5e5", "--tie-embeddings", "false", "--mlp=gelu", "--json"}));
  const Json& config = report.at("config");
  EXPECT_EQ(config.at("layers").as_int(), 5);
  EXPECT_EQ(config.at("head_dim").as_int(), 64);
  EXPECT_EQ(config.at("rope_base").as_double(), 5e5);
  EXPECT_EQ(config.at("tie_embeddings").as_bool(), false);
  EXPECT_EQ(config.at("mlp_hidden").as_int(), 1024);
}

TEST(DryRun, DepthPrintsItsDerivations) {
  const RunResult run = dry_run({"--preset", "golf", "--depth", "12"});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_TRUE(
      run.out.starts_with("layers = 12: the depth\n"
                          "dim = 640: 12 layers x 512/9, to the nearest multiple of 128\n"
                          "heads = 10: dim 640 / head_dim 64\n"))
      << run;
  const Json report = json_of(dry_run({"--preset", "llama", "--depth", "4", "--dim", "384", "--json"}));
  EXPECT_EQ(report.at("config").at("dim").as_int(), 384);
  EXPECT_EQ(report.at("config").at("heads").as_int(), 6);
  EXPECT_GE(report.at("derivations").size(), 8u);
}

TEST(DryRun, ExplainsErrors) {
  struct Case {
    std::vector<std::string> arguments;
    int exit_code;
    std::string message;
  };
  TempFolder folder;
  const auto file = folder.write("bad.toml", "dim = 512\nrope_bas = 1.0\n").string();
  const std::vector<Case> cases = {
      {{"--set", "rope_bas=3"}, 2, "error: --set: unknown key 'rope_bas'\nhint: did you mean rope_base?\n"},
      {{"--rope-bas", "3"},
       2,
       "error: unknown option --rope-bas for 'train'\nhint: did you mean --rope-base?\n"},
      {{"--config", file},
       1,
       fmt::format("error: {}:2: unknown key 'rope_bas'\nhint: did you mean rope_base?\n", file)},
      {{"--preset", "golf", "--dim", "500"}, 1, "error: dim (500) must be divisible by heads (8)\n"},
      {{"--logit-softcap=-1"}, 2, "error: --logit-softcap: logit_softcap must not be negative, found -1\n"},
      {{"--preset", "golff"}, 2, "error: --preset expects chat, export, golf"},
      {{"--preset", "microgpt", "--depth", "4"}, 1, "error: --depth works only for presets with RoPE"},
      {{"--depth", "0"}, 2, "error: --depth expects a whole number from 1 to 1024, found '0'\n"},
      {{"--depth", "2", "--init", "a-model"}, 2, "error: --depth and --init both determine the model"},
      {{"--config", "nowhere.toml"}, 1, "error: cannot read nowhere.toml"},
  };
  for (const Case& wrong : cases) {
    const RunResult run = dry_run(wrong.arguments);
    EXPECT_EQ(run.exit_code, wrong.exit_code) << run;
    EXPECT_EQ(run.out, "");
    EXPECT_TRUE(run.err.starts_with(wrong.message)) << run;
  }
}

}  // namespace
}  // namespace thimble::dry_run_test
