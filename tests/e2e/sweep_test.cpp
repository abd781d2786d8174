// thimble sweep: from the file to the report.
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <map>
#include <sstream>

#include "base/json.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::sweep_test {
namespace {

// A sweep of a model of a few thousand parameters.
class Sweep : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i) + " of a sample text.\n";
    folder_.write("text.txt", text);
  }

  void write_plan(const std::string& more, int steps = 4) const {
    folder_.write("s.toml",
                  "[base]\ndata = \"" + (folder_ / "text.txt").string() +
                      "\"\nlayers = 1\ndim = 16\nheads = 2\ncontext = 32\nbatch_tokens = 128\nval_every = 2\n"
                      "val_tokens = 500\nsteps = " +
                      std::to_string(steps) + "\n" + more);
  }

  RunOptions call(const std::vector<std::string>& more, const std::string& out = "out") const {
    RunOptions options{.arguments = {"sweep", (folder_ / "s.toml").string(), "-o", (folder_ / out).string(),
                                     "--device", "cpu"},
                       .environment = {{"OMP_WAIT_POLICY", "passive"}}};
    options.arguments.insert(options.arguments.end(), more.begin(), more.end());
    return options;
  }
  RunResult sweep(const std::vector<std::string>& more = {}, const std::string& out = "out") const {
    return run_binary(call(more, out));
  }

  // The lines of results.jsonl by the id of the run.
  std::map<std::string, Json> results(const std::string& out = "out") const {
    std::map<std::string, Json> lines;
    std::istringstream text(folder_.read(out + "/results.jsonl"));
    for (std::string line; std::getline(text, line);) {
      const Json json = parse_json(line, "line");
      lines[json.at("variant").as_string() + "-" + std::to_string(json.at("seed").as_int())] = json;
    }
    return lines;
  }

  TempFolder folder_;
};

TEST_F(Sweep, RunsVariantsWithSeedsOnSharedTokens) {
  write_plan("[sweep]\nseeds = [1, 2]\n[one]\nlr = [0.01]\n");
  const RunResult run = sweep({"--jobs", "2"});
  ASSERT_EQ(run.exit_code, 0) << run;
  const auto lines = results();
  ASSERT_EQ(lines.size(), 4u) << run;
  for (const auto& [id, line] : lines) {
    EXPECT_EQ(line.at("status").as_string(), "completed") << id;
    EXPECT_EQ(line.at("steps").as_int(), 4) << id;
    for (const char* figure :
         {"val_bpb", "val_loss", "best_bpb", "best_loss", "scored_bpb", "train_loss", "parameters"})
      EXPECT_GT(line.at(figure).as_double(), 0) << id << " " << figure;
    for (const char* text : {"config_digest", "settings_digest", "command", "run", "scores", "version"})
      EXPECT_FALSE(line.at(text).as_string().empty()) << id << " " << text;
    EXPECT_GT(line.at("machine").at("threads").as_int(), 0) << id;
    EXPECT_EQ(line.at("base").as_bool(), id.starts_with("base-")) << id;
  }
  std::size_t shared = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_ / "out/data"))
    ++shared;
  EXPECT_EQ(shared, 1u);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/runs/base-1/data"));

  const RunResult picture = run_binary(
      {.arguments = {"sweep", "report", (folder_ / "out").string(), "-o", (folder_ / "a.svg").string()}});
  EXPECT_EQ(picture.exit_code, 0) << picture;
  EXPECT_EQ(picture.out, run.out);
  EXPECT_TRUE(folder_.read("a.svg").starts_with("<svg "));

  // Nothing is left to do, and the report is the same.
  const RunResult again = sweep();
  EXPECT_EQ(again.exit_code, 0) << again;
  EXPECT_EQ(again.out, run.out);
  EXPECT_EQ(results(), lines);
}

TEST_F(Sweep, PacksRunsAndWritesARecord) {
  write_plan(
      "[sweep]\nseeds = [1, 2]\npack = true\nscore = \"last\"\n[variant.leaky]\nmlp = \"leaky_relu2\"\n");
  ASSERT_EQ(sweep().exit_code, 0);
  const auto lines = results();
  ASSERT_EQ(lines.size(), 4u);
  for (const auto& [id, line] : lines) {
    EXPECT_GT(line.at("bytes").as_double(), 0) << id;
    EXPECT_GT(line.at("packed_bpb").as_double(), 0) << id;
    EXPECT_NEAR(line.at("unpacked_bpb").as_double(), line.at("val_bpb").as_double(), 1e-6) << id;
  }
  const auto record = [&](const std::string& variant, const std::string& out) {
    return run_binary({.arguments = {"sweep", "record", (folder_ / "out").string(), "--variant", variant,
                                     "-o", (folder_ / "records" / out).string()}});
  };
  const RunResult written = record("leaky", "claim");
  ASSERT_EQ(written.exit_code, 0) << written;
  const Json claim = parse_json(folder_.read("records/claim/record.json"), "record.json");
  EXPECT_EQ(claim.at("name").as_string(), "claim");
  EXPECT_EQ(claim.at("bytes").size(), 2u);
  EXPECT_FALSE(claim.at("holds").as_bool()) << "a record needs three seeds";
  EXPECT_NE(folder_.read("records/claim/config.toml").find("mlp = \"leaky_relu2\""), std::string::npos);
  EXPECT_NE(folder_.read("records/claim/log.txt").find("seed 2"), std::string::npos);
  EXPECT_EQ(record("leaky", "claim").exit_code, 1) << "it exists";
  EXPECT_EQ(record("leeky", "other").exit_code, 1);
  // The same p as that of `compare`.
  std::vector<std::string> compare = {"compare", "--json"};
  for (const char* id : {"base-1", "base-2", "leaky-1", "leaky-2"})
    compare.push_back((folder_ / "out/runs" / id).string());
  const RunResult compared = run_binary({.arguments = compare});
  ASSERT_EQ(compared.exit_code, 0) << compared;
  EXPECT_NEAR(claim.at("p").as_double(),
              parse_json(compared.out, "stdout").at("tests").as_array().at(0).at("p").as_double(), 1e-9);
}

TEST_F(Sweep, KilledAndContinuedGivesTheSameReport) {
  write_plan("[sweep]\nseeds = [1, 2]\n[one]\nlr = [0.01]\n", 24);
  const RunResult whole = sweep({"--jobs", "2", "--threads", "2"}, "whole");
  ASSERT_EQ(whole.exit_code, 0) << whole;
  const auto has_begun = [&](const char* id) {
    std::error_code missing;
    return std::filesystem::exists(folder_ / "out/runs" / id / "last.safetensors", missing);
  };
  for (const auto& [signal, id] : {std::pair{SIGTERM, "base-1"}, std::pair{SIGKILL, "lr=0.01-2"}}) {
    RunOptions options = call({"--jobs", "2", "--threads", "2"});
    options.signal = signal;
    options.signal_when = [&has_begun, id = id] { return has_begun(id); };
    const RunResult stopped = run_binary(options);
    EXPECT_TRUE(signal == SIGKILL ? stopped.signal == SIGKILL : stopped.exit_code == 130) << stopped;
  }
  const RunResult resumed = sweep();
  ASSERT_EQ(resumed.exit_code, 0) << resumed;
  EXPECT_EQ(resumed.out, whole.out);
  const auto expected = results("whole"), found = results();
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [id, line] : expected)
    for (const char* figure :
         {"val_bpb", "best_bpb", "best_step", "train_loss", "scored_bpb", "config_digest"})
      EXPECT_EQ(found.at(id).at(figure), line.at(figure)) << id << " " << figure;
}

TEST_F(Sweep, ASecondSweepInTheFolderIsRefused) {
  write_plan("", 1'000'000);
  RunOptions first = call({});
  first.signal = SIGTERM;
  RunResult second;
  first.signal_when = [&] {
    if (!std::filesystem::exists(folder_ / "out/runs/base-1337/metrics.jsonl")) return false;
    if (second.exit_code < 0) second = sweep();
    return true;
  };
  const RunResult run = run_binary(first);
  EXPECT_EQ(run.exit_code, 130) << run;
  EXPECT_EQ(second.exit_code, 1) << second;
  EXPECT_NE(second.err.find("another sweep is running"), std::string::npos) << second;
}

TEST_F(Sweep, RecordsVariantsThatDivergeOrFailAndGoesOn) {
  write_plan("");
  ASSERT_EQ(sweep().exit_code, 0);
  folder_.write("out/runs/fails-1337/notes.txt", "not a run");
  write_plan(
      "[variant.fails]\nlr = 0.02\n[variant.diverges]\nlr = 100\nschedule = \"linear\"\nclip = 0\nsteps = "
      "40\n[variant.last]\nlr = "
      "0.01\n");
  const RunResult run = sweep({"--jobs", "1"});
  EXPECT_EQ(run.exit_code, 1) << run;
  auto lines = results();
  ASSERT_EQ(lines.size(), 4u) << run;
  EXPECT_EQ(lines.at("fails-1337").at("status").as_string(), "failed");
  EXPECT_NE(lines.at("fails-1337").at("error").as_string().find("notes.txt"), std::string::npos) << run;
  EXPECT_EQ(lines.at("diverges-1337").at("status").as_string(), "diverged") << run;
  EXPECT_TRUE(lines.at("diverges-1337").at("val_bpb").is_null());
  EXPECT_EQ(lines.at("last-1337").at("status").as_string(), "completed");

  // A run that failed is repeated; one that diverged has its result.
  std::filesystem::remove_all(folder_ / "out/runs/fails-1337");
  const RunResult again = sweep({"--jobs", "1"});
  EXPECT_EQ(again.exit_code, 0) << again;
  lines = results();
  EXPECT_EQ(lines.at("fails-1337").at("status").as_string(), "completed");
  EXPECT_EQ(lines.at("diverges-1337").at("status").as_string(), "diverged");
}

TEST_F(Sweep, AnErrorInTheFileStopsItBeforeTheFirstRun) {
  const auto refused = [&](const std::string& more, const std::string& text) {
    write_plan(more);
    const RunResult run = sweep();
    EXPECT_EQ(run.exit_code, 1) << run;
    EXPECT_NE(run.err.find(text), std::string::npos) << run;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out")) << run;
  };
  refused("[one]\nlrr = [1]\n", "s.toml:12: unknown key 'lrr'");
  refused("[variant.x]\ndata = \"missing.txt\"\n", "variant x: ");
  refused("[variant.x]\ndepth = 2\noptimizer = \"adamw\"\n", "variant x: ");
}

TEST_F(Sweep, OtherSettingsUnderTheSameNameAreRefused) {
  write_plan("[variant.a]\nlr = 0.01\n");
  ASSERT_EQ(sweep().exit_code, 0);
  write_plan("[variant.a]\nlr = 0.02\n");
  const RunResult changed = sweep();
  EXPECT_EQ(changed.exit_code, 1) << changed;
  EXPECT_NE(changed.err.find("has a result of variant a with other settings"), std::string::npos) << changed;
  write_plan("[variant.a]\nlr = 0.01\n[variant.b]\nlr = 0.02\n");
  EXPECT_EQ(sweep().exit_code, 0);
  EXPECT_EQ(results().size(), 3u) << "a variant can be added";
  folder_.write("mine/notes.txt", "");
  EXPECT_EQ(sweep({}, "mine").exit_code, 1);
}

}  // namespace
}  // namespace thimble::sweep_test
