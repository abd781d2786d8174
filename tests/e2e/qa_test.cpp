// `thimble qa`
#include "base/json.h"
#include "e2e/golf_files.h"

namespace thimble {
namespace {

class QaCommand : public testing::Test {
 protected:
  QaCommand() {
    std::string text;
    for (int i = 0; i < 150; ++i) text += "line " + std::to_string(i * 7) + ": the cat sat on the mat.\n";
    folder_.write("text.txt", text);
    train({"-o", path("run"), "--steps", "20"});
  }

  RunResult train(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"train", "--data", path("text.txt")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    for (const char* setting : {"context=32", "layers=1", "dim=32", "heads=2", "kv_heads=1", "mlp_hidden=48",
                                "batch_tokens=64", "val_every=10"})
      arguments.insert(arguments.end(), {"--set", setting});
    const RunResult result = run_binary({.arguments = arguments});
    EXPECT_EQ(result.exit_code, 0) << result;
    return result;
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static RunResult qa(const std::string& model, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"qa", model};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_binary({.arguments = arguments});
  }

  TempFolder folder_;
};

TEST_F(QaCommand, ReportsEveryGate) {
  const RunResult run = qa(path("run"), {"--data", path("run/data"), "--json"});
  EXPECT_EQ(run.exit_code, 0) << run;
  const Json report = parse_json(run.out, "stdout");
  EXPECT_TRUE(report.at("passed").as_bool());
  EXPECT_EQ(report.at("executed").as_int(), 9);
  EXPECT_EQ(report.at("skipped").as_int(), 2);
  std::vector<std::string> names;
  for (const Json& gate : report.at("gates").as_array()) {
    names.push_back(gate.at("name").as_string());
    EXPECT_FALSE(gate.at("detail").as_string().empty()) << names.back();
    const std::string& status = gate.at("status").as_string();
    EXPECT_TRUE(status == "passed" || status == "skipped") << names.back();
  }
  EXPECT_EQ(names, (std::vector<std::string>{"integrity", "metadata", "tokenizer", "tensors", "logits",
                                             "decode", "chat", "golden", "bpb", "export", "throughput"}));
}

TEST_F(QaCommand, PrintsAReadableSummary) {
  const RunResult run = qa(path("run"));
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_NE(run.out.find("passed   golden"), std::string::npos) << run;
  EXPECT_NE(run.out.find("skipped  bpb         no data; pass --data\n"), std::string::npos) << run;
  EXPECT_TRUE(run.out.ends_with("passed: 8 passed, 0 failed, 3 skipped\n")) << run;
}

TEST_F(QaCommand, OneFailureIsExitCode1) {
  const RunResult slow = qa(path("run"), {"--min-tps", "1e12", "--json"});
  EXPECT_EQ(slow.exit_code, 1) << slow;
  EXPECT_FALSE(parse_json(slow.out, "stdout").at("passed").as_bool());

  std::string bytes = folder_.read("run/last.safetensors");
  bytes[bytes.size() / 2] ^= 4;
  const RunResult damaged = qa(folder_.write("damaged.safetensors", bytes).string());
  EXPECT_EQ(damaged.exit_code, 1) << damaged;
  EXPECT_NE(damaged.out.find("failed   integrity"), std::string::npos) << damaged;
}

TEST_F(QaCommand, MeasuresMemorization) {
  const std::vector<std::string> options = {"--memorized", "--tokens", "600", "--json"};
  const auto measured = [&](std::vector<std::string> more) {
    more.insert(more.end(), options.begin(), options.end());
    const RunResult run = qa(path("run"), more);
    EXPECT_EQ(run.exit_code, 0) << run;
    return parse_json(run.out, "stdout").at("memorization");
  };
  const Json of_run = measured({});
  EXPECT_GT(of_run.at("sampled").at("tokens").as_int(), 300);
  EXPECT_GT(of_run.at("held_out").at("ngrams").at("8").at("share").as_double(), 0.5);
  EXPECT_LE(of_run.at("longest").size(), 5u);
  EXPECT_EQ(measured({"--data", path("run/data")}), of_run);
  EXPECT_EQ(measured({"--data", path("text.txt")}), of_run) << "the text that the run was trained on";
  EXPECT_NE(measured({"--seed", "5"}), of_run);

  folder_.write("other.txt", folder_.read("text.txt") + "and one more line\n");
  const Json of_text = measured({"--data", path("other.txt")});
  EXPECT_TRUE(of_text.at("held_out").is_null());
  EXPECT_GT(of_text.at("training_tokens").as_int(), of_run.at("training_tokens").as_int());
  const Json compared = measured({"--data", path("other.txt"), "--val-data", path("text.txt")});
  EXPECT_EQ(compared.at("held_out").at("ngrams").at("16").at("share").as_double(), 1);

  EXPECT_NE(qa(path("run"), {"--memorized"}).out.find("sequences of 16 tokens"), std::string::npos);
}

TEST_F(QaCommand, TrainingEndsWithMemorization) {
  const Json trained = parse_json(train({"-o", path("long"), "--steps", "260", "--json"}).out, "stdout");
  const Json measured = trained.at("memorization");
  EXPECT_GT(measured.at("sampled").at("tokens").as_int(), 100);
  EXPECT_EQ(parse_json(folder_.read("long/run.json"), "run.json").at("memorization"), measured);
  EXPECT_NE(folder_.read("long/report.html").find("<h2>Memorization</h2>"), std::string::npos);
}

TEST_F(QaCommand, TooFewGatesAreExitCode1) {
  EXPECT_EQ(qa(path("run"), {"--require", "8"}).exit_code, 0);
  const RunResult few = qa(path("run"), {"--skip", "export", "--skip", "golden", "--require", "8"});
  EXPECT_EQ(few.exit_code, 1) << few;
  EXPECT_NE(few.out.find("6 checks ran, 8 are required"), std::string::npos) << few;
}

TEST_F(QaCommand, WrongUsageIsExitCode2) {
  EXPECT_EQ(qa(path("run"), {"--skip", "goldn"}).exit_code, 2);
  EXPECT_EQ(qa(path("run"), {"--require", "-1"}).exit_code, 2);
  EXPECT_EQ(qa(path("run"), {"--tokens", "100"}).exit_code, 2) << "applies to --memorized";
  EXPECT_EQ(qa(path("run"), {"--memorized", "--min-tps", "1"}).exit_code, 2);
  EXPECT_EQ(qa(path("run"), {"--memorized", "--tokens", "0"}).exit_code, 2);
  const RunResult spelled = qa(path("run"), {"--memorised"});
  EXPECT_EQ(spelled.exit_code, 2);
  EXPECT_NE(spelled.err.find("--memorized"), std::string::npos) << spelled;
  const RunResult elsewhere =
      qa(folder_.write("alone.safetensors", folder_.read("run/last.safetensors")).string(), {"--memorized"});
  EXPECT_EQ(elsewhere.exit_code, 2) << elsewhere;
  EXPECT_EQ(qa(path("nothing")).exit_code, 1);
}

TEST(Qa, FailsWithoutATokenizer) {
  const TempFolder folder;
  ASSERT_EQ(import_golden("golf_baseline_grad", (folder / "m").string()).exit_code, 0);
  const RunResult run = run_binary({.arguments = {"qa", (folder / "m").string()}});
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_NE(run.out.find("failed   tokenizer   the model has no tokenizer"), std::string::npos) << run;
  EXPECT_NE(run.out.find("no gguf export: "), std::string::npos)
      << run;  // because of U-Net skips; safetensors works
}

}  // namespace
}  // namespace thimble
