// All stages of a model: train, kill, resume, eval, pack, qa, inspect, bench, export. Each stage
// must give the same tokens and scores as the one before. tests/interop/lifecycle.test.js continues
// with llama.cpp.
#include <cmath>
#include <csignal>

#include "base/json.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

struct Combination {
  const char* preset;
  const char* tokenizer;
};

class Lifecycle : public testing::TestWithParam<Combination> {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Runs a command that must succeed and parses its output.
  Json json_of(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--json", "--threads", "1"});
    const RunResult run = run_binary({.arguments = arguments});
    EXPECT_EQ(run.exit_code, 0) << run;
    return run.exit_code == 0 ? parse_json(run.out, arguments[0]) : Json::object();
  }

  std::vector<std::string> train_into(const std::string& run) const {
    std::vector<std::string> arguments = {
        "train",       "--preset",           GetParam().preset, "--data", path("tales.txt"), "-o", path(run),
        "--tokenizer", GetParam().tokenizer, "--threads",       "1"};
    for (const char* setting :
         {"context=48", "layers=2", "dim=32", "heads=2", "kv_heads=1", "head_dim=16", "rope_dims=16",
          "mlp_hidden=320", "batch_tokens=192", "steps=120", "val_every=40", "checkpoint_every=10",
          "warmup_steps=5", "val_tokens=1000", "max_seconds=0", "dtype=f32"})
      arguments.insert(arguments.end(), {"--set", setting});
    return arguments;
  }

  Json json_of_inspect(const std::string& model) const {
    const RunResult run = run_binary({.arguments = {"inspect", path(model), "--json"}});
    EXPECT_EQ(run.exit_code, 0) << run;
    return parse_json(run.out, "inspect");
  }

  // Greedy tokens of a model and their log-probabilities.
  struct Words {
    std::vector<std::int64_t> ids;
    std::vector<double> logprobs;
  };
  Words words_of(const std::string& model) const {
    const Json report = json_of({"generate", path(model), "the", "--greedy", "--ignore-eos", "--max-tokens",
                                 "24", "--logprobs", "0", "--dtype", "f32"});
    Words words;
    if (!report.find("samples")) return words;
    for (const Json& token : report.at("samples").as_array().at(0).at("logprobs").as_array()) {
      words.ids.push_back(token.at("id").as_int());
      words.logprobs.push_back(token.at("logprob").as_double());
    }
    return words;
  }

  double bpb_of(const std::string& model, const std::string& data) const {
    const Json report =
        json_of({"eval", path(model), "--data", path(data), "--val-tokens", "1000", "--dtype", "f32"});
    return report.find("val_bpb") ? report.at("val_bpb").as_double() : NAN;
  }

  void expect_same_words(const Words& expected, const std::string& model, double tolerance) const {
    const Words found = words_of(model);
    EXPECT_EQ(found.ids, expected.ids) << model;
    ASSERT_EQ(found.logprobs.size(), expected.logprobs.size()) << model;
    for (std::size_t i = 0; i < found.logprobs.size(); ++i)
      EXPECT_NEAR(found.logprobs[i], expected.logprobs[i], tolerance) << model << ", token " << i;
  }

  using Stage = void (Lifecycle::*)();
  static const std::vector<Stage>& stages();

  void train_kill_and_resume();
  void evaluate();
  void pack();
  void check_quality();
  void look_inside();
  void measure();
  void export_everywhere();

  TempFolder folder_;
  Words words_;
  double bpb_ = 0;        // from the run's validation
  double plain_bpb_ = 0;  // of a text that normalizers do not change: GGUF has no normalizer
};

void Lifecycle::train_kill_and_resume() {
  ASSERT_EQ(run_binary({.arguments = train_into("straight")}).exit_code, 0);
  RunResult killed;
  for (int attempt = 0; attempt < 10 && killed.signal != SIGKILL;
       ++attempt) {  // else it ended before the kill
    std::filesystem::remove_all(folder_ / "run");
    killed = run_binary({.arguments = train_into("run"), .signal = SIGKILL, .signal_when = [&] {
                           return std::filesystem::exists(folder_ / "run/last.safetensors");
                         }});
  }
  ASSERT_EQ(killed.signal, SIGKILL) << killed;
  const Json resumed = json_of({"train", "--resume", path("run")});
  ASSERT_EQ(resumed.at("steps").as_int(), 120);
  ASSERT_TRUE(folder_.read("run/last.safetensors") == folder_.read("straight/last.safetensors"));
  bpb_ = resumed.at("val_bpb").as_double();
}

void Lifecycle::evaluate() {
  EXPECT_NEAR(bpb_of("run/last.safetensors", "run/data"), bpb_, 1e-5 * bpb_);
  plain_bpb_ = bpb_of("run/last.safetensors", "plain.txt");
  words_ = words_of("run/last.safetensors");
  EXPECT_EQ(words_.ids.size(), 24u);
}

void Lifecycle::pack() {
  const Json packed = json_of({"pack", path("run/last.safetensors"), "-o", path("model.thimble"), "--bits",
                               "6", "--data", path("run/data")});
  EXPECT_GT(packed.at("quantized_tensors").as_int(), 0);
  EXPECT_NEAR(bpb_of("model.thimble", "run/data"), bpb_, 0.02 * bpb_);
  EXPECT_LT(packed.at("payload_bytes").as_int(), packed.at("float_bytes").as_int());
  // Integer kernels must give the same text as the floats that the integers represent.
  json_of({"export", path("model.thimble"), "--format", "safetensors", "-o", path("unpacked.safetensors")});
  const Words unpacked = words_of("unpacked.safetensors");
  expect_same_words(unpacked, "model.thimble", 1e-4);
  EXPECT_NE(unpacked.logprobs, words_.logprobs) << "packing must round the weights";
  EXPECT_NEAR(bpb_of("model.thimble", "plain.txt"), bpb_of("unpacked.safetensors", "plain.txt"), 1e-5);
  // Packing an artifact again gives the same file.
  json_of({"pack", path("model.thimble"), "-o", path("again.thimble"), "--bits", "6"});
  EXPECT_TRUE(folder_.read("again.thimble") == folder_.read("model.thimble"));
}

void Lifecycle::check_quality() {
  const Json whole = json_of(
      {"qa", path("run/last.safetensors"), "--data", path("run/data"), "--min-tps", "1", "--require", "10"});
  EXPECT_TRUE(whole.at("passed").as_bool()) << whole.dump(1);
  const Json artifact = json_of({"qa", path("model.thimble"), "--require", "7"});
  EXPECT_TRUE(artifact.at("passed").as_bool()) << artifact.dump(1);
}

void Lifecycle::look_inside() {
  const Json run = json_of_inspect("run/last.safetensors"), artifact = json_of_inspect("model.thimble");
  EXPECT_EQ(run.at("training").at("step").as_int(), 120);
  EXPECT_DOUBLE_EQ(run.at("training").at("val_bpb").as_double(), bpb_);
  EXPECT_GT(run.at("training").at("losses").size(), 100u);
  for (const char* key : {"step", "val_bpb", "tokens"})
    EXPECT_EQ(artifact.at("training").at(key), run.at("training").at(key)) << key;
  for (const char* key : {"architecture", "parameters", "metadata", "config", "chat_layout"})
    EXPECT_EQ(artifact.at(key), run.at(key)) << key;
  for (const char* key : {"kind", "vocab_size", "bos", "eos", "special_tokens", "digest"})
    EXPECT_EQ(artifact.at("tokenizer").at(key), run.at("tokenizer").at(key)) << key;
}

void Lifecycle::measure() {
  for (const char* model : {"run", "model.thimble"}) {
    const Json decode = json_of({"bench", "decode", path(model), "--iterations", "2", "--max-tokens", "8"});
    EXPECT_EQ(decode.at("test").as_string(), "tg8");
    EXPECT_GT(decode.at("tokens_per_second").as_double(), 0);
    EXPECT_TRUE(decode.at("passed").as_bool());
  }
}

void Lifecycle::export_everywhere() {
  json_of({"export", path("run/last.safetensors"), "--format", "gguf", "--type", "f32", "-o",
           path("model.gguf")});
  json_of(
      {"export", path("run/last.safetensors"), "--format", "safetensors", "-o", path("model.safetensors")});
  std::vector<std::string> exported = {"model.gguf", "model.safetensors"};
  if (GetParam().preset == std::string("llama")) {
    json_of({"export", path("run/last.safetensors"), "--format", "hf", "-o", path("hf")});
    exported.emplace_back("hf");
  }
  for (const std::string& model : exported) {
    expect_same_words(words_, model, 1e-4);
    EXPECT_NEAR(bpb_of(model, "plain.txt"), plain_bpb_, 1e-4 * plain_bpb_) << model;
    EXPECT_TRUE(json_of({"qa", path(model), "--require", "7"}).at("passed").as_bool()) << model;
  }
  // An f32 copy must pass the golden check of the checkpoint.
  const Json copy = json_of({"qa", path("model.safetensors"), "--data", path("run/data"), "--require", "9"});
  EXPECT_TRUE(copy.at("passed").as_bool()) << copy.dump(1);
}

const std::vector<Lifecycle::Stage>& Lifecycle::stages() {
  static const std::vector<Stage> stages = {
      &Lifecycle::train_kill_and_resume, &Lifecycle::evaluate,    &Lifecycle::pack,
      &Lifecycle::check_quality,         &Lifecycle::look_inside, &Lifecycle::measure,
      &Lifecycle::export_everywhere};
  return stages;
}

TEST_P(Lifecycle, EveryStageGivesTheSameTokens) {
  ASSERT_EQ(run_binary({.arguments = {"data", "sample", "--kind", "tales", "--size", "40k", "-o",
                                      path("tales.txt"), "-q"}})
                .exit_code,
            0);
  folder_.write("plain.txt", "the red cat sat in the garden and the old dog ran over 3 hills to see it");
  for (const Stage stage : stages()) {
    (this->*stage)();
    if (HasFailure()) return;  // later stages need its files
  }
}

INSTANTIATE_TEST_SUITE_P(
    Presets, Lifecycle,
    testing::Values(Combination{"llama", "bpe:280"}, Combination{"llama", "sentencepiece:400"},
                    Combination{"export", "bpe:280"}, Combination{"export", "sentencepiece:400"}),
    [](const auto& info) {
      const std::string tokenizer = info.param.tokenizer;
      return std::string(info.param.preset) + "_" + tokenizer.substr(0, tokenizer.find(':'));
    });

}  // namespace
}  // namespace thimble
