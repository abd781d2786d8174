// kill -9 at random moments: every file under its final name is complete, and repeating the command
// gives the same result as without the kill.
//
// THIMBLE_KILLS=1000 sets the number of kills of all commands together (default 50).
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <map>
#include <set>

#include "base/json.h"
#include "base/rng.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::kills_test {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;
using Contents = std::map<std::string, std::string>;  // path relative to a folder -> bytes

std::string tales(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += fmt::format("Tale {}: the {} cats sat on mat {}.\n<|endoftext|>\n", i, i % 13, i % 7);
  return text;
}

RunResult run(Words words, RunOptions options = {}) {
  options.arguments = std::move(words);
  options.arguments.insert(options.arguments.end(), {"--threads", "1"});
  return run_binary(options);
}

void add_settings(Words& words, std::initializer_list<const char*> settings) {
  for (const char* setting : settings) words.insert(words.end(), {"--set", setting});
}

// A command that is repeated on the same output and killed.
class KilledCommand {
 public:
  explicit KilledCommand(const TempFolder& folder) : folder_(folder) {}
  virtual ~KilledCommand() = default;
  KilledCommand(const KilledCommand&) = delete;
  KilledCommand& operator=(const KilledCommand&) = delete;

  virtual Words next() = 0;            // the arguments to continue or start
  virtual void expect_complete() = 0;  // called after a kill
  virtual void expect_done() = 0;      // called after a call that was not killed
  virtual bool ended(const RunResult& result) const { return result.exit_code == 0; }

 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  // Contents of the files that are not hidden, or of all files.
  Contents contents(const std::string& below, bool hidden = false) const {
    Contents found;
    for (const std::string& file : folder_.files())
      if (file.starts_with(below) && (hidden || file.find("/.") == file.npos) &&
          (hidden || !file.starts_with(".")))
        found[file] = folder_.read(file);
    return found;
  }
  void expect_nothing_hidden() const {
    for (const std::string& file : folder_.files())
      EXPECT_TRUE(file.find("/.") == file.npos && !file.starts_with(".")) << file << " was left behind";
  }

  const TempFolder& folder_;
};

// The steps in a run's metrics, in order.
std::vector<std::int64_t> steps_in(const std::string& metrics) {
  std::vector<std::int64_t> steps;
  std::size_t begin = 0;
  for (std::size_t end; (end = metrics.find('\n', begin)) != metrics.npos; begin = end + 1) {
    const Json event = parse_json(std::string_view(metrics).substr(begin, end - begin), "metrics.jsonl");
    if (event.at("event").as_string() == "step") steps.push_back(event.at("step").as_int());
  }
  return steps;  // an incomplete last line is ignored
}

class Training final : public KilledCommand {
 public:
  static constexpr std::int64_t kSteps = 60, kEvery = 4;

  explicit Training(const TempFolder& folder) : KilledCommand(folder) {
    folder_.write("text.txt", tales(120));
    const RunResult straight = run(fresh("straight"));
    EXPECT_EQ(straight.exit_code, 0) << straight;
    expected_ = folder_.read("straight/last.safetensors");
    best_ = folder_.read("straight/best.safetensors");
  }

  Words next() override {
    return checkpoints().empty() ? fresh("run") : Words{"train", "--resume", path("run")};
  }

  void expect_complete() override {
    const auto saved = checkpoints();
    for (const std::string& file : saved) {
      const RunResult look = run_binary({.arguments = {"inspect", path(file), "--json"}});
      EXPECT_EQ(look.exit_code, 0) << file << look;
    }
    if (fs::exists(folder_ / "run/best.safetensors")) {  // it may be older than the kept checkpoints
      const RunResult look = run_binary({.arguments = {"inspect", path("run/best.safetensors"), "--json"}});
      EXPECT_EQ(look.exit_code, 0) << look;
    }
    if (!fs::exists(folder_ / "run/metrics.jsonl")) return;
    const auto steps = steps_in(folder_.read("run/metrics.jsonl"));
    // The checkpoint of the last recorded step may not have been complete.
    const std::int64_t made = steps.empty() ? 0 : (steps.back() - 1) / kEvery * kEvery;
    EXPECT_GE(step_to_resume(saved), made) << "more than an interval was lost";
  }

  bool ended(const RunResult& result) const override {
    // An earlier kill may have come between the last checkpoint and the end of the process.
    return result.exit_code == 0 || result.err.find("is complete: ") != result.err.npos;
  }

  void expect_done() override {
    EXPECT_TRUE(folder_.read("run/last.safetensors") == expected_);
    EXPECT_TRUE(folder_.read("run/best.safetensors") == best_);
    const auto steps = steps_in(folder_.read("run/metrics.jsonl"));
    EXPECT_EQ(steps.size(), std::size_t{kSteps});
    for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i], std::int64_t(i) + 1);
    fs::remove_all(folder_ / "run");
  }

 private:
  Words fresh(const std::string& name) const {
    Words words = {"train",          "--preset", "quick",    "--data",
                   path("text.txt"), "-o",       path(name), "--tensorboard"};
    add_settings(words, {"context=16", "layers=1", "dim=32", "heads=2", "kv_heads=1", "mlp_hidden=48",
                         "batch_tokens=64", "steps=60", "val_every=20", "checkpoint_every=4", "keep=2",
                         "swa_start=0.9", "swa_every=7", "val_tokens=200"});
    return words;
  }
  std::set<std::string> checkpoints() const {
    std::set<std::string> files;
    for (const auto& [file, content] : contents("run/checkpoints/step-")) files.insert(file);
    return files;
  }
  // The step of `last`, or of the newest checkpoint if there is no `last`.
  std::int64_t step_to_resume(const std::set<std::string>& saved) const {
    if (saved.empty()) return 0;
    std::string from = *saved.rbegin();
    if (fs::exists(folder_ / "run/last.safetensors")) {
      const auto last = std::ranges::find_if(saved, [&](const std::string& file) {
        return fs::equivalent(folder_ / file, folder_ / "run/last.safetensors");
      });
      EXPECT_NE(last, saved.end()) << "last.safetensors is not one of the checkpoints";
      if (last != saved.end()) from = *last;
    }
    return std::stoll(from.substr(from.rfind('-') + 1));
  }

  std::string expected_, best_;
};

class Building final : public KilledCommand {
 public:
  explicit Building(const TempFolder& folder) : KilledCommand(folder) {
    folder_.write("tales.txt", tales(4000));
    const RunResult whole = run(words("whole"));
    EXPECT_EQ(whole.exit_code, 0) << whole;
    for (const auto& [file, content] : contents("whole/")) expected_["out" + file.substr(5)] = content;
  }

  Words next() override { return words("out"); }

  void expect_complete() override {
    const Contents found = contents("out/");
    for (const auto& [file, content] : found) {
      const auto whole = expected_.find(file);
      EXPECT_TRUE(whole != expected_.end() && whole->second == content) << file << " is incomplete";
    }
    // With a manifest the data set is complete, and repeating the command would fail.
    if (found.contains("out/manifest.json")) expect_done();
  }

  void expect_done() override {
    EXPECT_TRUE(contents("out/") == expected_);
    fs::remove_all(folder_ / "out");
  }

 private:
  Words words(const std::string& out) const {
    return {"data",           "build", path("tales.txt"), "--tokenizer", "bytes",  "--val-fraction", "0.1",
            "--shard-tokens", "4001",  "--dedup",         "-o",          path(out)};
  }

  Contents expected_;
};

// Writes two different outputs in turn under one name, each replacing the other.
class Replacing final : public KilledCommand {
 public:
  Replacing(const TempFolder& folder, std::string output, const Words& command, const Words& first,
            const Words& second)
      : KilledCommand(folder), output_(std::move(output)) {
    train_model();
    for (const Words& more : {first, second}) {
      Words words = command;
      words.insert(words.begin() + 1, path("model"));
      words.insert(words.end(), {"-o", path(output_), "--force"});
      words.insert(words.end(), more.begin(), more.end());
      const RunResult result = run(words);
      EXPECT_EQ(result.exit_code, 0) << result;
      commands_.push_back(words);
      expected_.push_back(contents(output_));
    }
    EXPECT_FALSE(expected_[0].empty() || expected_[0] == expected_[1]);
  }

  Words next() override { return commands_[turn_ ^= 1]; }

  void expect_complete() override {
    const Contents found = contents(output_);
    EXPECT_TRUE(found == expected_[0] || found == expected_[1])
        << output_ << " is neither the old nor the new output";
  }

  void expect_done() override {
    EXPECT_TRUE(contents(output_) == expected_[turn_]);
    expect_nothing_hidden();
  }

 private:
  void train_model() {
    folder_.write("text.txt", tales(120));
    Words words = {"train",       "--preset", "llama", "--data",     path("text.txt"),
                   "--tokenizer", "bytes",    "-o",    path("model")};
    add_settings(words, {"context=16", "layers=2", "dim=64", "heads=2", "kv_heads=1", "head_dim=32",
                         "mlp_hidden=96", "batch_tokens=64", "steps=2", "val_tokens=100"});
    const RunResult trained = run(words);
    EXPECT_EQ(trained.exit_code, 0) << trained;
  }

  std::string output_;
  std::vector<Words> commands_;
  std::vector<Contents> expected_;
  std::size_t turn_ = 1;
};

struct Share {
  const char* name;
  double of_all;
  std::unique_ptr<KilledCommand> (*make)(const TempFolder&);
};

void PrintTo(const Share& share, std::ostream* out) {
  *out << share.name;
}

template <class Kind>
std::unique_ptr<KilledCommand> make(const TempFolder& folder) {
  return std::make_unique<Kind>(folder);
}

std::unique_ptr<KilledCommand> packing(const TempFolder& folder) {
  return std::make_unique<Replacing>(folder, "out.thimble", Words{"pack"}, Words{"--bits", "6"},
                                     Words{"--bits", "8"});
}

std::unique_ptr<KilledCommand> gguf(const TempFolder& folder) {
  return std::make_unique<Replacing>(folder, "out.gguf", Words{"export", "--format", "gguf"},
                                     Words{"--type", "f32"}, Words{"--type", "q8_0"});
}

std::unique_ptr<KilledCommand> safetensors(const TempFolder& folder) {
  return std::make_unique<Replacing>(folder, "out.safetensors", Words{"export", "--format", "safetensors"},
                                     Words{"--type", "f32"}, Words{"--half"});
}

std::unique_ptr<KilledCommand> hugging_face(const TempFolder& folder) {
  return std::make_unique<Replacing>(folder, "out", Words{"export", "--format", "hf"}, Words{"--type", "f32"},
                                     Words{"--type", "bf16"});
}

const Share kShares[] = {{"Train", 0.4, make<Training>},
                         {"DataBuild", 0.2, make<Building>},
                         {"Pack", 0.16, packing},
                         {"ExportGguf", 0.08, gguf},
                         {"ExportSafetensors", 0.08, safetensors},
                         {"ExportHuggingFace", 0.08, hugging_face}};

int requested_kills(double share) {
  const char* all = std::getenv("THIMBLE_KILLS");
  return std::max(1, static_cast<int>(share * (all ? std::atoi(all) : 50)));
}

double seconds_of(const Words& words, RunResult& result) {
  const auto start = std::chrono::steady_clock::now();
  result = run(words);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Killed : public testing::TestWithParam<Share> {
 protected:
  // One call, killed after `seconds` unless it ends first.
  void strike(double seconds) {
    const RunResult result = run(command_->next(), {.signal = SIGKILL, .signal_after_seconds = seconds});
    // Files are written near the end, so about one call in seven should end, on any machine.
    seconds_ *= result.signal == SIGKILL ? 1.03 : 0.85;
    if (result.signal == SIGKILL) {
      ++kills_;
      command_->expect_complete();
    } else {
      ++ends_;
      EXPECT_TRUE(command_->ended(result)) << result;
      command_->expect_done();
    }
  }

  TempFolder folder_;
  std::unique_ptr<KilledCommand> command_;
  int kills_ = 0, ends_ = 0;
  double seconds_ = 0;  // upper limit of the time until a kill
};

TEST_P(Killed, FullTierLeavesCompleteFilesAndEndsWithTheSameResult) {
  command_ = GetParam().make(folder_);
  RunResult result;
  seconds_ = seconds_of(command_->next(), result);
  ASSERT_TRUE(command_->ended(result)) << result;
  command_->expect_done();
  const int kills = requested_kills(GetParam().of_all);
  Rng random(static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()));
  for (int attempt = 0; attempt < 20 * kills && kills_ < kills && !HasFailure(); ++attempt)
    strike(random.uniform_double() * seconds_);
  EXPECT_EQ(kills_, kills);
  for (int attempt = 0; attempt < 3 && !HasFailure(); ++attempt) strike(1e9);  // without a kill
  EXPECT_GE(ends_, 3);
  RecordProperty("kills", kills_);
  std::cout << fmt::format("{}: {} kills within {:.2f} s, {} calls ended\n", GetParam().name, kills_,
                           seconds_, ends_);
}

INSTANTIATE_TEST_SUITE_P(Commands, Killed, testing::ValuesIn(kShares),
                         [](const auto& share) { return std::string(share.param.name); });

}  // namespace
}  // namespace thimble::kills_test
