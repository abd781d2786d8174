// Training one model with several processes: mpirun -n N thimble train.
#include <fmt/format.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "base/files.h"
#include "base/json.h"
#include "e2e/settings.h"
#include "support/mpirun.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::ranks_test {
namespace {

std::string sample_text() {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i % 977) + ": the cat sat on the mat.\n";
  return text;
}

class Ranks : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = no_mpirun(); !why.empty()) GTEST_SKIP() << why;
    folder_.write("text.txt", sample_text());
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // A tiny golf model with Muon, skips and softcap; 8 spans per step, for 1, 2, 4 or 8 ranks.
  std::vector<std::string> tiny(const std::string& run, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"train",    "--data", path("text.txt"), "-o",  path(run),
                                      "--preset", "golf",   "--order",        "golf"};
    const std::vector<std::string> settings = settings_beside(
        more, {"context=16", "layers=2", "dim=32", "heads=2", "kv_heads=1", "batch_tokens=256",
               "span_tokens=32", "dtype=f32", "muon_dtype=f32", "clip=0.5", "steps=20", "val_every=10",
               "prime_steps=0", "max_seconds=0", "val_tokens=0"});
    words.insert(words.end(), settings.begin(), settings.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  RunResult on(int ranks, const std::vector<std::string>& words, RunOptions options = {}) const {
    options.arguments = words;
    return ranks == 1 ? run_binary(options) : mpirun(ranks, options);
  }
  void expect_done(int ranks, const std::vector<std::string>& words) const {
    const RunResult run = on(ranks, words);
    ASSERT_EQ(run.exit_code, 0) << ranks << " ranks\n" << run;
  }

  // Values of `key` in one kind of event of metrics.jsonl.
  std::vector<double> figures(const std::string& run, std::string_view event, std::string_view key) const {
    std::vector<double> values;
    std::istringstream lines(folder_.read(run + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);)
      if (const Json json = parse_json(line, "metrics"); json.at("event").as_string() == event)
        values.push_back(json.at(key).as_double());
    return values;
  }
  std::string last(const std::string& run) const {
    return read_file(folder_ / run / "last.safetensors", 1 << 26);
  }

  static int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
    return found;
  }
  // One rank prints the error, and all ranks end.
  static void expect_one_error(const RunResult& run, const std::string& message) {
    EXPECT_NE(run.exit_code, 0) << run;
    EXPECT_FALSE(run.timed_out) << run;
    EXPECT_EQ(count(run.err, "error: "), 1) << run;
    EXPECT_EQ(count(run.err, message), 1) << "expected: " << message << "\n" << run;
  }

  TempFolder folder_;
};

void expect_near(const std::vector<double>& expected, const std::vector<double>& found, double near,
                 std::size_t until, const std::string& what) {
  ASSERT_EQ(expected.size(), found.size()) << what;
  for (std::size_t i = 0; i < std::min(until, expected.size()); ++i)
    EXPECT_NEAR(found[i] / expected[i], 1, near) << what << ", step " << i + 1;
}

TEST_F(Ranks, OneTwoAndFourRanksLearnTheSame) {
  const std::vector<std::string> steps = {"--steps", "50", "--val-every", "25"};
  for (const int ranks : {1, 2, 4}) expect_done(ranks, tiny(fmt::format("on{}", ranks), steps));
  for (const char* run : {"on2", "on4"}) {
    for (const char* key : {"loss", "grad_norm"}) {
      const std::vector<double> alone = figures("on1", "step", key), shared = figures(run, "step", key);
      ASSERT_EQ(alone.size(), 50u);
      expect_near(alone, shared, 1e-5, 10, fmt::format("{} of {}", key, run));
      expect_near(alone, shared, 1e-3, 50, fmt::format("{} of {}", key, run));
    }
    const std::vector<double> alone = figures("on1", "validation", "val_loss"),
                              shared = figures(run, "validation", "val_loss");
    ASSERT_FALSE(alone.empty());
    expect_near(alone, shared, 1e-5, 1, run);
    expect_near(alone, shared, 1e-3, 50, run);
    EXPECT_EQ(folder_.read("on1/config.toml"), folder_.read(std::string(run) + "/config.toml"));
    const auto bytes = [&](const std::string& name) { return static_cast<double>(last(name).size()); };
    EXPECT_NEAR(bytes("on1"), bytes(run), 64) << "except the digits of a loss";
  }
}

TEST_F(Ranks, TheSameNumberOfRanksGivesTheSameBits) {
  for (const int ranks : {2, 4}) {
    for (const char* run : {"a", "b"}) expect_done(ranks, tiny(run, {"--force"}));
    EXPECT_EQ(last("a"), last("b")) << ranks;
    EXPECT_EQ(figures("a", "step", "loss"), figures("b", "step", "loss")) << ranks;
  }
}

TEST_F(Ranks, ARunCanContinueOnAnotherNumberOfRanks) {
  expect_done(1, tiny("straight"));
  expect_done(4, tiny("moved", {"--stop-after", "8"}));
  expect_done(2, {"train", "--resume", path("moved"), "--stop-after", "6"});
  expect_done(1, {"train", "--resume", path("moved")});
  expect_near(figures("straight", "step", "loss"), figures("moved", "step", "loss"), 1e-4, 20, "moved");
  EXPECT_EQ(figures("moved", "step", "step").size(), 20u);
}

TEST_F(Ranks, DivergenceEndsAllRanksTogether) {
  const auto diverging = [&](const std::string& run, const std::string& preset) {
    std::vector<std::string> words = {
        "train",       "--data", path("text.txt"), "-o",  path(run), "--preset", preset, "--steps", "60",
        "--val-every", "10",     "--batch-tokens", "256", "--lr",    "100"};
    for (const char* setting : {"context=16", "layers=2", "dim=32", "heads=2", "kv_heads=1", "warmup_steps=0",
                                "clip=0", "dtype=f32"})
      words.insert(words.end(), {"--set", setting});
    return words;
  };
  const auto status = [&](const std::string& run) {
    return parse_json(folder_.read(run + "/run.json"), "run.json").at("status").as_string();
  };
  const RunResult rising = on(2, diverging("rising", "microgpt"));
  EXPECT_EQ(rising.exit_code, 3) << rising;
  EXPECT_EQ(status("rising"), "diverged");
  EXPECT_EQ(count(rising.err, "warning: step "), 1) << rising;
  EXPECT_EQ(run_binary({.arguments = {"inspect", path("rising"), "--verify"}}).exit_code, 0);
  EXPECT_EQ(on(1, diverging("alone", "microgpt")).exit_code, 3);
  EXPECT_EQ(figures("rising", "step", "step"), figures("alone", "step", "step"));

  const RunResult infinite = on(2, diverging("infinite", "llama"));
  EXPECT_EQ(infinite.exit_code, 3) << infinite;
  EXPECT_EQ(status("infinite"), "diverged");
  EXPECT_EQ(count(infinite.err, "not finite"), 1) << infinite;
}

TEST_F(Ranks, OnlyTheFirstRankPrints) {
  std::vector<std::string> words = tiny("run", {"--json"});
  const RunResult run = on(4, words);
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(parse_json(run.out, "stdout").at("status").as_string(), "completed");  // one object, not four
  EXPECT_EQ(count(run.err, path("run")), 1) << run;
}

TEST_F(Ranks, TheTokenizerIsTrainedOnce) {
  expect_done(1, tiny("on1", {"--tokenizer", "bpe:300", "--steps", "3"}));
  expect_done(2, tiny("on2", {"--tokenizer", "bpe:300", "--steps", "3"}));
  expect_near(figures("on1", "step", "loss"), figures("on2", "step", "loss"), 1e-5, 3, "bpe");
  EXPECT_EQ(folder_.read("on1/tokenizer.json"), folder_.read("on2/tokenizer.json"));
}

TEST_F(Ranks, RejectsSpansThatDoNotDivideAmongRanks) {
  expect_one_error(on(3, tiny("run")), "a step has 8 spans, which is not a multiple of the 3 ranks");
}

TEST_F(Ranks, ReportsDifferentCommandLines) {
  const RunResult run =
      mpirun_each({{folder_.path(), tiny("run")}, {folder_.path(), tiny("run", {"--seed", "7"})}});
  expect_one_error(run, "rank 1 differs from rank 0 in its command line: --seed 7 there");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

// The command lines agree, but the files differ between the machines.
TEST_F(Ranks, ReportsDifferentFilesOnTwoMachines) {
  for (const char* host : {"a", "b"}) {
    std::filesystem::create_directories(folder_ / host);
    folder_.write(fmt::format("{}/text.txt", host), sample_text() + (host[0] == 'b' ? "one more\n" : ""));
    folder_.write(fmt::format("{}/c.toml", host),
                  fmt::format("matrix_lr = {}\n", host[0] == 'b' ? 0.02 : 0.04));
    const RunResult built =
        run_binary({.arguments = {"data", "build", "text.txt", "--tokenizer", "bytes", "-o", "shards"},
                    .folder = folder_ / host});
    ASSERT_EQ(built.exit_code, 0) << built;
  }
  const auto both = [&](const std::vector<std::string>& words) {
    return mpirun_each({{folder_ / "a", words}, {folder_ / "b", words}});
  };
  std::vector<std::string> config = tiny("run", {"--config", "c.toml"});
  expect_one_error(both(config), "rank 1 differs from rank 0 in its config: matrix_lr = 0.02 there");
  std::vector<std::string> data = tiny("run");
  data[2] = "shards";
  expect_one_error(both(data), "rank 1 differs from rank 0 in its data");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run")) << "a failed start leaves no files";
}

TEST_F(Ranks, ReportsAMissingPluginOnce) {
  const RunResult run = on(2, tiny("run"), {.environment = {{"THIMBLE_MPI_PLUGIN", "/nowhere/mpi.so"}}});
  expect_one_error(run, "mpirun started 2 ranks, but they cannot be joined: the MPI plugin cannot be loaded");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

bool wait_until(const std::function<bool()>& condition, double seconds = 200) {
  for (double waited = 0; waited < seconds; waited += 0.005) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

class KilledRanks : public Ranks {
 protected:
  std::size_t lines_of(const std::string& run) const {
    std::ifstream file(folder_ / run / "metrics.jsonl");
    return static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
  }

  // Sends a signal to a rank when the run's metrics have `lines` lines.
  void signal_rank(const std::string& run, int rank, int signal, std::size_t lines) const {
    ASSERT_TRUE(wait_until([&] { return lines_of(run) >= lines; })) << "the run does not start";
    const int id = process_of_rank(rank, path(run));
    if (id > 0) kill(id, signal);
  }

  // Kills ranks at random times; each run must resume to the same result as one without a kill.
  void kill_and_resume(int times, unsigned seed) {
    const std::vector<std::string> more = {"--steps",     "60", "--set", "checkpoint_every=3",
                                           "--val-every", "20"};
    expect_done(2, tiny("straight", more));
    std::mt19937 random(seed);
    int hits = 0;
    for (int i = 0; i < 5 * times && hits < times; ++i) {
      const std::string run = fmt::format("killed{}", i);
      const int rank = static_cast<int>(random() % 2);
      const std::size_t lines = 1 + random() % 45;
      RunResult killed;
      {
        std::thread killer([&] { signal_rank(run, rank, SIGKILL, lines); });
        killed = on(2, tiny(run, more), {.timeout_seconds = 240});
        killer.join();
      }
      EXPECT_FALSE(killed.timed_out) << killed;
      if (killed.exit_code == 0) continue;  // it ended before the kill
      ++hits;
      const bool saved = std::filesystem::exists(folder_ / run / "last.safetensors");
      if (saved) {
        expect_done(2, {"train", "--resume", path(run)});
      } else {
        expect_done(2, tiny(run, {more[0], more[1], more[2], more[3], more[4], more[5], "--force"}));
      }
      EXPECT_EQ(last("straight"), last(run)) << "rank " << rank << " at line " << lines;
    }
    EXPECT_EQ(hits, times) << "too few ranks were killed in time";
  }
};

TEST_F(KilledRanks, ResumeExactlyAfterThreeKills) {
  kill_and_resume(3, 1);
}

TEST_F(KilledRanks, FullTierResumeExactlyAfterTwentyKills) {
  kill_and_resume(20, 2);
}

// A rank that hangs but does not exit: only the watchdog notices.
TEST_F(KilledRanks, TheWatchdogNamesAHangingRank) {
  RunResult run;
  {
    std::thread signaller([&] { signal_rank("run", 1, SIGSTOP, 30); });
    run = on(2, tiny("run", {"--steps", "100000", "--set", "checkpoint_every=20", "--rank-timeout", "10"}),
             {.timeout_seconds = 240});
    signaller.join();
  }
  expect_one_error(run, "rank 0 waited 10 s for rank 1 in '");
  EXPECT_NE(run.err.find("--resume"), std::string::npos) << run;
  if (const int id = process_of_rank(1, path("run")); id > 0) kill(id, SIGKILL);
  expect_done(2, {"train", "--resume", path("run"), "--stop-after", "2"});
}

TEST_F(KilledRanks, AnInterruptOfOneRankStopsAllAtTheSameStep) {
  RunResult run;
  {
    std::thread signaller([&] { signal_rank("run", 1, SIGTERM, 5); });
    run = on(2, tiny("run", {"--steps", "100000"}), {.timeout_seconds = 240});
    signaller.join();
  }
  EXPECT_EQ(run.exit_code, 130) << run;
  EXPECT_NE(run.out.find("interrupted at step"), std::string::npos) << run;
  expect_done(2, {"train", "--resume", path("run"), "--stop-after", "2"});
}

// A disk error of the first rank: it prints one message, and no other rank keeps running.
TEST_F(Ranks, AnErrorOfTheFirstRankEndsAll) {
  std::thread remover([&] {
    wait_until([&] { return std::filesystem::exists(folder_ / "run" / "last.safetensors"); });
    // Files may appear while the folder is being removed.
    wait_until([&] {
      std::error_code error;
      std::filesystem::remove_all(folder_ / "run" / "checkpoints", error);
      return !std::filesystem::exists(folder_ / "run" / "checkpoints");
    });
  });
  const RunResult run =
      on(2, tiny("run", {"--steps", "100000", "--set", "checkpoint_every=5"}), {.timeout_seconds = 240});
  remover.join();
  EXPECT_NE(run.exit_code, 0) << run;
  EXPECT_FALSE(run.timed_out) << run;
  EXPECT_GE(count(run.err, "error: cannot"), 1) << run;
}

// Tests all that bench/two_hosts.sh needs: if only the script fails, the script is wrong.
constexpr char kNamespaceProbe[] =
    "set -e; n=thprobe$$; ip netns add $n; trap 'ip netns del $n' EXIT; "
    "ip -n $n link add x type veth peer name y; ip netns exec $n unshare --uts hostname other; "
    "tc -n $n qdisc add dev x root tbf rate 1gbit burst 256kb latency 200ms || "
    "tc -n $n qdisc add dev x root netem rate 1gbit";

// Two network namespaces joined by a 1 Gbit/s connection, with only TCP between the ranks.
TEST_F(Ranks, TwoHostsGiveTheSameBitsAsTwoProcesses) {
  const std::string script = (source_folder() / "bench" / "two_hosts.sh").string();
  const auto on_two_hosts = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {script, "1gbit", "none", "-n", "2"});
    return run_program("/bin/bash",
                       {.arguments = words,
                        .environment = {{"OMP_NUM_THREADS", "1"},
                                        {"OMP_WAIT_POLICY", "passive"},
                                        {"LSAN_OPTIONS", "detect_leaks=0"}},  // support/mpirun.cpp
                        .timeout_seconds = 240});
  };
  if (const RunResult probe = run_program("/bin/bash", {.arguments = {"-c", kNamespaceProbe}});
      probe.exit_code != 0)
    GTEST_SKIP() << "network namespaces cannot be made here (root, iproute2, tc): " << probe.err;
  std::vector<std::string> words = tiny("hosts");
  words.insert(words.begin(), binary_path().string());
  const RunResult run = on_two_hosts(words);
  ASSERT_EQ(run.exit_code, 0) << run;
  expect_done(2, tiny("processes"));
  EXPECT_EQ(last("hosts"), last("processes"));
}

}  // namespace
}  // namespace thimble::ranks_test
