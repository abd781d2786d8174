// The golf-plus preset with every technique, from the first step to the artifact, scaled down.
#include <fmt/format.h>

#include <sstream>

#include "base/json.h"
#include "e2e/settings.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::golf_plus_test {
namespace {

std::string documents() {
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += fmt::format("line {} of a text: the cat sat on mat {}.\n{}", i * 7, i * i,
                        i % 20 == 19 ? "<|endoftext|>\n" : "");
  return text;
}

class GolfPlus : public testing::Test {
 protected:
  GolfPlus() { folder_.write("text.txt", documents()); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  RunResult train(const std::string& name, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"train",          "--preset", "golf-plus", "--data",
                                          path("text.txt"), "-o",       path(name)};
    const std::vector<std::string> settings = settings_beside(
        more, {"context=128", "layers=2", "dim=64", "heads=2", "kv_heads=1", "mlp_hidden=192",
               "bigram_buckets=64", "bigram_dim=32", "batch_tokens=512", "max_seconds=0", "prime_steps=2",
               "steps=30", "warmdown=20", "swa_every=2", "val_every=0", "muon_momentum_steps=10"});
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_binary({.arguments = arguments});
  }

  std::vector<Json> metrics(const std::string& name) const {
    std::vector<Json> events;
    std::istringstream lines(folder_.read(name + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) events.push_back(parse_json(line, "metrics"));
    return events;
  }

  TempFolder folder_;
};

TEST_F(GolfPlus, TrainsPacksAndMeasuresWithTwoCommands) {
  const RunResult trained = train("a run");
  ASSERT_EQ(trained.exit_code, 0) << trained;
  EXPECT_NE(
      trained.err.find("training uses Muon (weight decay 0.04), int8 QAT, SWA below 0.5 of the rate every 2 steps"),
      std::string::npos)
      << trained;
  // The next command is printed, quoted for the shell, as it is run below.
  EXPECT_NE(trained.out.find(fmt::format("next step (6 bits, 3 % pruned, bits per byte at stride 64):\n"
                                         "  thimble pack '{0}' --data '{0}/data' -o '{0}.thimble'\n",
                                         path("a run"))),
            std::string::npos)
      << trained;

  // Every step was quantized, SWA averaged weights, and the last validation scored the averages.
  int steps = 0;
  std::string validated;
  for (const Json& event : metrics("a run")) {
    if (event.at("event").as_string() == "validation") validated = event.at("weights").as_string();
    if (event.at("event").as_string() != "step") continue;
    ++steps;
    EXPECT_EQ(event.at("qat_bits").as_int(), 8);
  }
  EXPECT_EQ(steps, 30);
  EXPECT_EQ(validated, "swa");

  const std::vector<std::string> pack = {"pack", path("a run"),        "--data", path("a run/data"),
                                         "-o",   path("a run.thimble")};
  const RunResult packed = run_binary({.arguments = pack});
  ASSERT_EQ(packed.exit_code, 0) << packed;
  for (const char* part : {"trained with", "int8 QAT", "pruned", "parameter-golf size", "self-contained",
                           "bits per byte", "context 128, stride 64, per document", "int6"})
    EXPECT_NE(packed.out.find(part), std::string::npos) << part << "\n" << packed;

  std::vector<std::string> again = pack;
  again.insert(again.end(), {"--force", "--json"});
  const RunResult as_json = run_binary({.arguments = again});
  ASSERT_EQ(as_json.exit_code, 0) << as_json;
  const Json report = parse_json(as_json.out, "pack --json");
  EXPECT_EQ(report.at("stride").as_int(), 64);
  EXPECT_GT(report.at("pruned").as_int(), 0);
  EXPECT_GE(report.at("quantized_tensors").as_int(), 4);
  EXPECT_TRUE(report.at("golf").at("fits").as_bool());

  // The figures of the summary are those of eval at the same stride.
  for (const auto& [model, key] :
       {std::pair{"a run", "val_bpb_before"}, {"a run.thimble", "val_bpb_after"}}) {
    const RunResult eval = run_binary(
        {.arguments = {"eval", path(model), "--data", path("a run/data"), "--stride", "64", "--json"}});
    ASSERT_EQ(eval.exit_code, 0) << eval;
    EXPECT_EQ(parse_json(eval.out, "eval").at("val_bpb").as_double(), report.at(key).as_double()) << model;
  }
}

TEST_F(GolfPlus, EveryTechniqueChangesTheWeights) {
  ASSERT_EQ(train("all", {"--steps", "12"}).exit_code, 0);
  for (const char* without : {"muon_weight_decay=0", "qat_bits=0", "swa_start=0", "smear_gate=false",
                              "isolate=false", "bigram_buckets=0 bigram_dim=0", "clip=0"}) {
    std::vector<std::string> more = {"--steps", "12", "--force"};
    std::istringstream settings(without);
    for (std::string setting; settings >> setting;) more.insert(more.end(), {"--set", setting});
    const RunResult result = train("less", more);
    ASSERT_EQ(result.exit_code, 0) << result;
    const RunResult diff = run_binary(
        {.arguments = {"diff", path("all/last.safetensors"), path("less/last.safetensors"), "--json"}});
    double largest = 0;
    const Json report = parse_json(diff.out, "diff");
    for (const Json& tensor : report.at("tensors").as_array())
      if (tensor.at("name").as_string() == "blocks.1.mlp.fc.weight")
        largest = tensor.at("max_abs").as_double();
    EXPECT_GT(largest, 1e-6) << without << "\n" << diff;
  }
}

}  // namespace
}  // namespace thimble::golf_plus_test
