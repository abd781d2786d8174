// `thimble import`: what is imported, what is refused, what files are left.
#include "base/json.h"
#include "e2e/golf_files.h"

namespace thimble {
namespace {

namespace fs = std::filesystem;

TEST(Import, PrintsAReport) {
  const TempFolder folder;
  const std::string model = (folder / "deep/down/model.safetensors").string();
  const RunResult run = import_golden("golf_plus_grad", model, {"--prefix", "param.", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run;
  const Json report = parse_json(run.out, "stdout");
  EXPECT_EQ(report.at("architecture").as_string(), "golf");
  EXPECT_EQ(report.at("parameters").as_int(), 356153);
  EXPECT_EQ(report.at("tensors").as_int(), 46);
  EXPECT_EQ(report.at("bytes").as_uint(), fs::file_size(model));
}

TEST(Import, HalfHalvesTheSize) {
  const TempFolder folder;
  ASSERT_EQ(import_golden("golf_plus_grad", (folder / "f32").string()).exit_code, 0);
  ASSERT_EQ(
      import_golden("golf_plus_grad", (folder / "f16").string(), {"--prefix", "param.", "--half"}).exit_code,
      0);
  EXPECT_LT(static_cast<double>(fs::file_size(folder / "f16")),
            0.52 * static_cast<double>(fs::file_size(folder / "f32")));
  const RunResult compared = run_binary(
      {.arguments = {"diff", (folder / "f16").string(), (folder / "f32").string(), "--tolerance", "5e-3"}});
  EXPECT_EQ(compared.exit_code, 0) << compared;
}

TEST(Import, ListsEveryTensorThatDoesNotFitAndLeavesNoFiles) {
  const TempFolder folder;
  const RunResult run = import_golden("golf_baseline_grad", (folder / "m").string(),
                                      {"--prefix", "param.", "--set", "layers=4", "--set", "q_gain=shared"});
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 2) << run;  // the error and its hint
  for (const char* part : {"param.blocks.3.attn.q_gain is [4], expected [1]",
                           "param.blocks.4.mlp.fc.weight is not part of the model"})
    EXPECT_NE(run.err.find(part), std::string::npos) << part << "\n" << run;
  EXPECT_TRUE(folder.files().empty());
}

TEST(Import, OverwritesOnlyWithForce) {
  const TempFolder folder;
  const std::string model = folder.write("m", "mine").string();
  const RunResult refused = import_golden("golf_baseline_grad", model);
  EXPECT_EQ(refused.exit_code, 1) << refused;
  EXPECT_TRUE(refused.err.starts_with("error: " + model + " already exists")) << refused;
  EXPECT_EQ(folder.read("m"), "mine");
  EXPECT_EQ(import_golden("golf_baseline_grad", model, {"--prefix", "param.", "--force"}).exit_code, 0);
  EXPECT_EQ(folder.files(), std::vector<std::string>{"m"});
}

TEST(Import, BareWeightsNeedAPreset) {
  const TempFolder folder;
  const RunResult run =
      run_binary({.arguments = {"import", golden_file("golf_baseline_grad"), "-o", (folder / "m").string()}});
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_NE(run.err.find("has no model config"), std::string::npos) << run;
  EXPECT_NE(run.err.find("--preset"), std::string::npos) << run;
}

TEST(Import, RejectsSettingsForAFolder) {
  const TempFolder folder;
  const RunResult run = run_binary(
      {.arguments = {"import", folder.path().string(), "--preset", "llama", "-o", (folder / "m").string()}});
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_NE(run.err.find("apply only to bare weights"), std::string::npos) << run;
}

TEST(Import, RejectsAWrongSetting) {
  const TempFolder folder;
  const RunResult run = import_golden("golf_baseline_grad", (folder / "m").string(),
                                      {"--prefix", "param.", "--set", "dimm=64"});
  EXPECT_EQ(run.exit_code, 2) << run;
  EXPECT_TRUE(run.err.starts_with("error: --set: unknown key 'dimm'\nhint: did you mean dim?\n")) << run;
}

TEST(Import, RejectsATokenizerThatIsTooLarge) {
  const TempFolder folder;
  const std::string model = (folder / "m").string();
  const RunResult large =
      import_golden("golf_baseline_grad", model, {"--prefix", "param.", "--tokenizer", "bytes"});
  EXPECT_EQ(large.exit_code, 1) << large;  // 257 tokens for a vocabulary of 128
  EXPECT_NE(large.err.find("the model's vocabulary has 128"), std::string::npos) << large;
  EXPECT_TRUE(folder.files().empty());
}

TEST(Import, ReplacingTheTokenizerDropsTheChatLayout) {
  const TempFolder folder;
  const auto run = [&](std::vector<std::string> words) {
    const RunResult result = run_binary({.arguments = std::move(words), .folder = folder.path()});
    EXPECT_EQ(result.exit_code, 0) << result;
    return result.out;
  };
  run({"data", "sample", "--kind", "chat", "--size", "4k", "-o", "chats.jsonl", "-q"});
  std::vector<std::string> words = {"train",       "--preset", "chat", "--data", "chats.jsonl",
                                    "--tokenizer", "bytes",    "-o",   "run",    "-q"};
  for (const char* setting :
       {"layers=1", "dim=32", "heads=2", "kv_heads=1", "mlp_hidden=32", "context=64", "batch_tokens=128",
        "steps=1", "max_seconds=0", "val_every=0", "warmup_steps=0"})
    words.insert(words.end(), {"--set", setting});
  run(words);
  const std::string out = run({"import", "run", "--tokenizer", "bytes", "-o", "plain"});
  EXPECT_NE(out.find("note: the chat layout was dropped because it does not match the new tokenizer: "),
            std::string::npos)
      << out;
  EXPECT_EQ(parse_json(run({"inspect", "plain", "--json"}), "stdout").at("chat_layout"), Json());
  run({"import", "run", "--tokenizer", "bytes:chat", "-o", "chat"});
  EXPECT_EQ(parse_json(run({"inspect", "chat", "--json"}), "stdout").at("chat_layout"), Json("roles"));
}

TEST(Import, AHuggingFaceFolderGivesTheSameModel) {
  const std::filesystem::path source = golden_path("hf/qwen2");
  const TempFolder folder;
  const std::string model = (folder / "m").string(), trace = (folder / "t").string();
  const RunResult imported = run_binary({.arguments = {"import", source.string(), "-o", model}});
  ASSERT_EQ(imported.exit_code, 0) << imported;
  const std::string reference = (source / "reference.safetensors").string();
  const RunResult traced =
      run_binary({.arguments = {"trace", model, "--tokens", reference, "--grad", "-o", trace}});
  ASSERT_EQ(traced.exit_code, 0) << traced;
  const RunResult compared = run_binary({.arguments = {"diff", trace, reference, "--tolerance", "2e-4"}});
  EXPECT_EQ(compared.exit_code, 0) << compared;
}

TEST(Import, QuantizesToAGguf) {
  const TempFolder folder;
  const std::string model = (folder / "m.gguf").string();
  const std::vector<std::string> arguments = {
      "import", golden_path("hf/qwen2").string(), "--quantize", "q8_0", "-o", model};
  const RunResult imported = run_binary({.arguments = arguments});
  ASSERT_EQ(imported.exit_code, 0) << imported;
  EXPECT_TRUE(folder.read("m.gguf").starts_with("GGUF"));
  const RunResult inspected = run_binary({.arguments = {"inspect", model, "--json"}});
  EXPECT_EQ(parse_json(inspected.out, "stdout").at("architecture").as_string(), "qwen2");
  std::vector<std::string> both = arguments;
  both.back() = (folder / "other.gguf").string();
  both.emplace_back("--half");
  EXPECT_EQ(run_binary({.arguments = both}).exit_code, 2);
}

TEST(Import, ReportsABrokenHuggingFaceFolder) {
  const TempFolder folder;
  folder.write("hf/config.json", "{\"model_type\": \"llama\", \"vocab_si");
  const RunResult run =
      run_binary({.arguments = {"import", (folder / "hf").string(), "-o", (folder / "m").string()}});
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_TRUE(run.err.starts_with("error: " + (folder / "hf/config.json").string() + ":1:")) << run;
  EXPECT_EQ(folder.files(), std::vector<std::string>{"hf/config.json"});
}

}  // namespace
}  // namespace thimble
