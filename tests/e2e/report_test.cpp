// `thimble report`, `plot`, `compare` and the dashboard on the command line.
#include <csignal>
#include <sstream>

#include "base/json.h"
#include "base/table.h"
#include "support/pseudo_terminal.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::report_test {
namespace {

RunResult run(std::vector<std::string> arguments, RunOptions options = {}) {
  options.arguments = std::move(arguments);
  return run_binary(options);
}

class SeeingARun : public testing::Test {
 protected:
  SeeingARun() {
    std::string text;
    for (int i = 0; i < 150; ++i) text += "line " + std::to_string(i * 7) + ": the cat sat on the mat.\n";
    folder_.write("text.txt", text);
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::vector<std::string> training(const std::string& run, std::vector<std::string> more) const {
    std::vector<std::string> words = {"train",   "--data",   path("text.txt"), "-o",
                                      path(run), "--preset", "quick"};
    for (const char* setting : {"context=16", "layers=1", "dim=32", "heads=2", "kv_heads=1", "mlp_hidden=48",
                                "batch_tokens=64", "val_every=10"})
      words.insert(words.end(), {"--set", setting});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  void train(const std::string& name, std::vector<std::string> more = {"--steps", "30"}) const {
    const RunResult result = run(training(name, std::move(more)));
    ASSERT_EQ(result.exit_code, 0) << result;
  }

  TempFolder folder_;
};

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST_F(SeeingARun, AReportIsWrittenHoweverTrainingEnds) {
  const RunResult whole = run(training("whole", {"--steps", "30", "--json"}));
  ASSERT_EQ(whole.exit_code, 0) << whole;
  EXPECT_EQ(parse_json(whole.out, "train").at("report").as_string(), path("whole/report.html"));
  EXPECT_TRUE(has(folder_.read("whole/report.html"), ">completed<"));
  EXPECT_TRUE(has(folder_.read("whole/report.html"), "<h2>Samples</h2>"));
  std::vector<std::string> words, expected = training("whole", {"--steps", "30", "--json"});
  expected.insert(expected.begin(), "thimble");
  const Json record = parse_json(folder_.read("whole/run.json"), "run.json");
  for (const Json& word : record.at("calls").as_array().at(0).at("command").as_array())
    words.push_back(word.as_string());
  EXPECT_EQ(words, expected);
  train("stopped", {"--steps", "300", "--stop-after", "12"});
  EXPECT_TRUE(has(folder_.read("stopped/report.html"), ">stopped<"));
  const RunResult interrupted = run(training("interrupted", {"--steps", "1000000"}),
                                    {.signal = SIGINT, .signal_after_text = "step     10"});
  EXPECT_EQ(interrupted.exit_code, 130) << interrupted;
  EXPECT_TRUE(has(folder_.read("interrupted/report.html"), ">interrupted<"));
}

TEST_F(SeeingARun, SamplesAreRecordedAndDoNotChangeWeights) {
  train("with");
  train("without", {"--steps", "30", "--samples", "0"});
  EXPECT_TRUE(has(folder_.read("with/metrics.jsonl"), "\"event\":\"sample\""));
  EXPECT_FALSE(has(folder_.read("without/metrics.jsonl"), "\"event\":\"sample\""));
  EXPECT_EQ(folder_.read("with/last.safetensors"), folder_.read("without/last.safetensors"));
}

TEST_F(SeeingARun, PlotWritesFilesAndOverwritesNothing) {
  train("a");
  train("b", {"--steps", "20"});
  for (const char* file : {"both.html", "both.svg"}) {
    const RunResult plot = run({"plot", path("a"), path("b"), "-o", path(file)});
    ASSERT_EQ(plot.exit_code, 0) << plot;
    EXPECT_EQ(plot.out, path(file) + "\n");
    EXPECT_EQ(run({"plot", path("a"), "-o", path(file)}).exit_code, 1) << "it exists";
  }
  EXPECT_EQ(run({"plot", path("a"), "-o", path("both.png")}).exit_code, 2);
  const RunResult nothing = run({"plot", path("nothing")});
  EXPECT_EQ(nothing.exit_code, 1);
  EXPECT_TRUE(has(nothing.err, "is not a run")) << nothing;
  const RunResult json = run({"plot", path("a"), path("b"), "--metric", "loss", "--smooth", "0", "--json"});
  ASSERT_EQ(json.exit_code, 0) << json;
  const Json curves = parse_json(json.out, "plot --json");
  EXPECT_EQ(curves.at("curves").as_array()[1].at("points").size(), 20u);
}

TEST_F(SeeingARun, PlotDrawsInTheTerminal) {
  train("a");
  const auto shown = [&](std::map<std::string, std::string> environment) {
    PseudoTerminal terminal(
        {.arguments = {"plot", path("a")}, .environment = std::move(environment), .columns = 64});
    EXPECT_EQ(terminal.wait_for_exit(), 0) << terminal.shown();
    terminal.read_all();
    return terminal.shown();
  };
  const std::string coloured = shown({{"TERM", "xterm"}, {"NO_COLOR", ""}, {"COLUMNS", ""}});
  EXPECT_TRUE(has(coloured, "\x1b[34m")) << coloured;
  const std::string plain = shown({{"TERM", "xterm"}, {"NO_COLOR", "1"}, {"COLUMNS", ""}});
  EXPECT_FALSE(has(plain, "\x1b[3"));
  std::istringstream lines(plain);
  for (std::string line; std::getline(lines, line);) {
    if (has(line, "report.html")) continue;
    EXPECT_LE(display_width(line), 65u) << line;  // including a carriage return
  }
}

TEST_F(SeeingARun, CompareTestsSeeds) {
  for (const char* seed : {"1", "2"}) {
    train(std::string("a") + seed, {"--steps", "20", "--seed", seed});
    train(std::string("b") + seed, {"--steps", "20", "--seed", seed, "--matrix-lr", "0.001"});
  }
  const RunResult result = run({"compare", path("a1"), path("a2"), path("b1"), path("b2"), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result;
  const Json json = parse_json(result.out, "compare --json");
  EXPECT_EQ(json.at("groups").size(), 2u);
  EXPECT_EQ(json.at("settings").at("matrix_lr").at("B").as_string(), "0.001");
  EXPECT_TRUE(has(json.at("runs").as_array().at(0).at("commands").as_array().at(0).as_string(), "--seed 1"));
  const Json& test = json.at("tests").as_array()[0];
  EXPECT_GE(test.at("p").as_double(), 0);
  EXPECT_LE(test.at("p").as_double(), 1);
  EXPECT_LT(test.at("interval_95").as_array()[0].as_double(), test.at("difference").as_double());
}

TEST_F(SeeingARun, AForcedRunRemovesTheFilesOfTheOldOne) {
  train("a", {"--steps", "10", "--tensorboard"});
  const auto event_files = [&] {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "a"))
      count += entry.path().filename().string().starts_with("events.out.tfevents.");
    return count;
  };
  EXPECT_EQ(event_files(), 1);
  train("a", {"--steps", "10", "--force"});
  EXPECT_EQ(event_files(), 0);
}

}  // namespace
}  // namespace thimble::report_test
