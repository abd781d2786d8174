// `thimble export` of golf models, Hugging Face folders and inference-only files, after training.
#include "base/files.h"
#include "base/json.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

namespace fs = std::filesystem;

class Exported : public testing::Test {
 protected:
  RunResult run(std::vector<std::string> words) {
    return run_binary({.arguments = std::move(words), .folder = folder_.path()});
  }

  void train(const std::string& preset, const std::vector<std::string>& settings = {}) {
    std::string text;
    for (int i = 0; i < 300; ++i) text += fmt::format("the cat number {} sat on the mat\n", i);
    if (!fs::exists(folder_ / "text.txt")) folder_.write("text.txt", text);
    std::vector<std::string> words = {"train", "--preset", preset,        "--data", "text.txt",
                                      "-o",    preset,     "--tokenizer", "bytes",  "--quiet"};
    for (const char* setting :
         {"layers=2", "dim=32", "heads=2", "kv_heads=1", "head_dim=16", "mlp_hidden=48", "context=32",
          "batch_tokens=128", "steps=2", "max_seconds=0", "prime_steps=0", "warmup_steps=0", "val_every=0"})
      words.insert(words.end(), {"--set", setting});
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    const RunResult trained = run(words);
    ASSERT_EQ(trained.exit_code, 0) << trained;
  }

  TempFolder folder_;
};

TEST_F(Exported, ExportsThePresetExportAsTalkieWithAReport) {
  train("export");
  const RunResult made =
      run({"export", "export", "--format", "gguf", "--type", "f32", "-o", "out.gguf", "--json"});
  ASSERT_EQ(made.exit_code, 0) << made;
  const Json report = parse_json(made.out, "stdout");
  EXPECT_EQ(report.at("format").as_string(), "gguf");
  EXPECT_EQ(report.at("architecture").as_string(), "talkie");
  EXPECT_EQ(report.at("tensors").as_int(), 2 + 2 * 9);
  EXPECT_EQ(report.at("bytes").as_uint(), fs::file_size(folder_ / "out.gguf"));
  EXPECT_EQ(report.at("folded").size(), 5u);
  const RunResult back = run({"inspect", "out.gguf", "--json"});
  EXPECT_EQ(back.exit_code, 0) << back;
  const RunResult text = run({"export", "export", "--format", "gguf", "-o", "text.gguf"});
  EXPECT_NE(text.out.find("folded: branch_scale -> rows of attn.proj and mlp.proj: exact"), std::string::npos)
      << text;
  const RunResult forced =
      run({"export", "export", "--format", "gguf", "--architecture", "apertus", "-o", "forced.gguf"});
  EXPECT_EQ(forced.exit_code, 1);
  EXPECT_NE(forced.err.find("llama.cpp's apertus cannot express this model: q_gain = head"),
            std::string::npos)
      << forced;
  EXPECT_FALSE(fs::exists(folder_ / "forced.gguf"));
}

TEST_F(Exported, OnlyTheSoftcapCanBeDropped) {
  train("export", {"logit_softcap=15"});
  const RunResult refused = run({"export", "export", "--format", "gguf", "-o", "out.gguf"});
  EXPECT_EQ(refused.exit_code, 1) << refused;
  EXPECT_NE(refused.err.find("--drop-softcap"), std::string::npos) << refused;
  EXPECT_FALSE(fs::exists(folder_ / "out.gguf"));
  const RunResult dropped = run({"export", "export", "--format", "gguf", "--drop-softcap", "-o", "out.gguf"});
  EXPECT_EQ(dropped.exit_code, 0) << dropped;
  EXPECT_NE(dropped.out.find("greedy text is unchanged, probabilities change"), std::string::npos) << dropped;
}

TEST_F(Exported, ReadsItsOwnHuggingFaceFolder) {
  train("qwen3");
  const RunResult made = run({"export", "qwen3", "--format", "hf", "--type", "bf16", "-o", "hf/"});
  ASSERT_EQ(made.exit_code, 0) << made;
  const RunResult generated = run({"generate", "hf", "the", "-n", "1", "--max-tokens", "4", "--greedy"});
  EXPECT_EQ(generated.exit_code, 0) << generated;
  EXPECT_EQ(run({"export", "qwen3", "--format", "hf", "-o", "hf"}).exit_code, 1);
  EXPECT_EQ(run({"export", "qwen3", "--format", "hf", "-o", "hf", "--force"}).exit_code, 0);
  EXPECT_EQ(run({"diff", "hf/model.safetensors", "qwen3/best.safetensors"}).exit_code, 0);
}

// Generation uses weights and biases in their stored format.
TEST_F(Exported, BiasesGiveTheSameTextInEveryFormat) {
  for (const auto& [preset, settings] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"qwen2", {}}, {"llama", {"bias=true"}}}) {
    train(preset, settings);
    const auto text_of = [&](const std::string& model) {
      const RunResult result =
          run({"generate", model, "the cat", "-n", "1", "--max-tokens", "8", "--greedy"});
      EXPECT_EQ(result.exit_code, 0) << result;
      return result.out;
    };
    for (const std::string format : {"gguf", "hf", "safetensors"}) {
      const std::string path = preset + "." + format;
      const RunResult made = run({"export", preset, "--format", format, "--type", "f32", "-o", path});
      ASSERT_EQ(made.exit_code, 0) << made;
      EXPECT_EQ(text_of(path), text_of(preset)) << path;
    }
  }
}

TEST_F(Exported, InferenceOnlyFilesAreSmaller) {
  train("golf");
  ASSERT_EQ(run({"export", "golf", "--format", "safetensors", "-o", "full"}).exit_code, 0);
  ASSERT_EQ(run({"export", "golf", "--format", "safetensors", "--half", "-o", "half"}).exit_code, 0);
  EXPECT_LT(fs::file_size(folder_ / "full"),
            fs::file_size(fs::canonical(folder_ / "golf/last.safetensors")) / 2);
  EXPECT_LT(fs::file_size(folder_ / "half"), fs::file_size(folder_ / "full"));
  const RunResult refused = run({"export", "golf", "--format", "hf", "-o", "hf"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("export with --format gguf"), std::string::npos) << refused;
}

TEST_F(Exported, RejectsOptionsThatCannotBeCombined) {
  train("llama");
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--format", "hf", "--drop-softcap"},
                                                {"--format", "safetensors", "--architecture", "llama"},
                                                {"--format", "hf", "--half", "--type", "f32"},
                                                {"--format", "hf", "--type", "q8_0"},
                                                {"--format", "safetensors", "--type", "q4_0"},
                                                {"--format", "onnx"}}) {
    std::vector<std::string> all = {"export", "llama", "-o", "out"};
    all.insert(all.end(), words.begin(), words.end());
    EXPECT_EQ(run(all).exit_code, 2) << words[1];
  }
}

}  // namespace
}  // namespace thimble
