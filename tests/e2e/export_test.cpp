// `thimble export`, and GGUF files as the MODEL of every command.
#include <filesystem>

#include "base/json.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

#include <gtest/gtest.h>

namespace thimble {
namespace {

namespace fs = std::filesystem;

// A Llama on bytes after three steps, in the run folder "run".
class Export : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "The cat sat on mat " + std::to_string(i * 7 % 31) + ". ";
    folder_.write("text.txt", text);
    run({"train",      "--preset", "llama",           "--data", "text.txt",      "--tokenizer",
         "bytes",      "--set",    "layers=1",        "--set",  "dim=32",        "--set",
         "heads=2",    "--set",    "kv_heads=1",      "--set",  "mlp_hidden=32", "--set",
         "context=32", "--set",    "batch_tokens=64", "--set",  "steps=3",       "-o",
         "run",        "-q"});
  }

  RunResult try_run(std::vector<std::string> words) {
    return run_binary({.arguments = std::move(words), .folder = folder_.path()});
  }
  std::string run(std::vector<std::string> words) {
    const RunResult result = try_run(std::move(words));
    EXPECT_EQ(result.exit_code, 0) << result;
    return result.out;
  }

  TempFolder folder_;
};

TEST_F(Export, PrintsAReport) {
  const Json report = parse_json(
      run({"export", "run", "--format", "gguf", "--type", "f32", "-o", "deep/m.gguf", "--json"}), "stdout");
  EXPECT_EQ(report.at("format").as_string(), "gguf");
  EXPECT_EQ(report.at("architecture").as_string(), "llama");
  EXPECT_EQ(report.at("type").as_string(), "f32");
  EXPECT_EQ(report.at("tensors").as_int(), 11);
  EXPECT_EQ(report.at("bytes").as_uint(), fs::file_size(folder_ / "deep/m.gguf"));
  EXPECT_EQ(report.at("folded"), Json::array());
  EXPECT_EQ(report.at("logit_difference").as_double(), 0);

  const std::string text = run({"export", "run", "--format", "gguf", "-o", "half.gguf"});
  EXPECT_TRUE(text.starts_with("half.gguf: llama as F16, 11 tensors, ")) << text;
  EXPECT_LT(fs::file_size(folder_ / "half.gguf"), fs::file_size(folder_ / "deep/m.gguf"));
}

TEST_F(Export, OverwritesOnlyWithForce) {
  folder_.write("m.gguf", "mine");
  const RunResult refused = try_run({"export", "run", "--format", "gguf", "-o", "m.gguf"});
  EXPECT_EQ(refused.exit_code, 1) << refused;
  EXPECT_TRUE(refused.err.starts_with("error: m.gguf already exists")) << refused;
  EXPECT_EQ(folder_.read("m.gguf"), "mine");
  run({"export", "run", "--format", "gguf", "-o", "m.gguf", "--force"});
  EXPECT_TRUE(folder_.read("m.gguf").starts_with("GGUF"));
}

TEST_F(Export, ReportsWrongUsage) {
  EXPECT_EQ(try_run({"export", "run", "--format", "onnx", "-o", "m"}).exit_code, 2);
  EXPECT_EQ(try_run({"export", "run", "--format", "gguf", "--type", "q5_k", "-o", "m"}).exit_code, 2);
  EXPECT_EQ(try_run({"export", "run", "-o", "m"}).exit_code, 2);
  EXPECT_EQ(try_run({"export", "missing", "--format", "gguf", "-o", "new/m"}).exit_code, 1);
  EXPECT_FALSE(fs::exists(folder_ / "new"));
}

TEST_F(Export, EveryCommandReadsGguf) {
  run({"export", "run", "--format", "gguf", "--type", "f32", "-o", "m.gguf"});
  const auto loss = [&](const std::string& model) {
    return parse_json(run({"eval", model, "--data", "text.txt", "--json"}), "stdout")
        .at("val_loss")
        .as_double();
  };
  EXPECT_EQ(loss("m.gguf"), loss("run"));
  EXPECT_EQ(run({"generate", "m.gguf", "The", "--greedy", "--max-tokens", "12"}),
            run({"generate", "run", "The", "--greedy", "--max-tokens", "12"}));
  run({"import", "m.gguf", "-o", "m.safetensors"});
  EXPECT_EQ(loss("m.safetensors"), loss("run"));
  const Json page = parse_json(run({"inspect", "m.gguf", "--json"}), "stdout");
  EXPECT_EQ(page.at("format").as_string(), "gguf");
  EXPECT_EQ(page.at("metadata").at("hidden_size").as_int(), 32);
  EXPECT_EQ(page.at("file_metadata").at("general.architecture"), Json("llama"));
  EXPECT_EQ(page.at("file_metadata").at("llama.embedding_length"), Json(32));
  EXPECT_EQ(try_run({"import", "m.gguf", "--preset", "llama", "-o", "again"}).exit_code, 2);
  run({"export", "m.gguf", "--format", "gguf", "--type", "q8_0", "-o", "q8.gguf"});
  run({"pack", "q8.gguf", "-o", "m.thimble"});
}

TEST_F(Export, RejectsATruncatedFileByName) {
  run({"export", "run", "--format", "gguf", "-o", "m.gguf"});
  const std::string bytes = folder_.read("m.gguf");
  folder_.write("cut.gguf", bytes.substr(0, bytes.size() - 100));
  const RunResult result = try_run({"generate", "cut.gguf", "x"});
  EXPECT_EQ(result.exit_code, 1) << result;
  EXPECT_TRUE(result.err.starts_with("error: cut.gguf: tensor ")) << result;
}

}  // namespace
}  // namespace thimble
