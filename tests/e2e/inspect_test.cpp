// `thimble inspect`
#include "base/json.h"
#include "e2e/golf_files.h"

namespace thimble {
namespace {

Json inspected(const std::string& model) {
  const RunResult run = run_binary({.arguments = {"inspect", model, "--json"}});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(run.err, "");
  return parse_json(run.out, "stdout");
}

TEST(Inspect, HasEveryKey) {
  const TempFolder folder;
  const std::string model = (folder / "m").string();
  ASSERT_EQ(import_golden("golf_baseline_grad", model).exit_code, 0);
  const Json report = inspected(model);
  EXPECT_EQ(report.at("format").as_string(), "safetensors");
  EXPECT_EQ(report.at("architecture").as_string(), "golf");
  EXPECT_EQ(report.at("parameters").as_int(), 152980);
  const Json& metadata = report.at("metadata");
  const std::pair<const char*, std::int64_t> sizes[] = {{"hidden_size", 64},
                                                        {"num_layers", 5},
                                                        {"num_heads", 4},
                                                        {"num_kv_heads", 2},
                                                        {"vocab_size", 128},
                                                        {"intermediate_size", 128},
                                                        {"max_position_embeddings", 1024}};
  for (const auto& [key, value] : sizes) EXPECT_EQ(metadata.at(key).as_int(), value) << key;
  EXPECT_EQ(metadata.at("rope_theta").as_double(), 10000);
  EXPECT_EQ(metadata.at("rms_norm_eps").as_double(), 1.1920929e-07);
  EXPECT_EQ(report.at("config").at("mlp").as_string(), "relu2");
  EXPECT_EQ(report.at("config").find("lr"), nullptr);
  EXPECT_TRUE(report.at("tokenizer").is_null());
  EXPECT_TRUE(report.at("training").is_null());
  EXPECT_EQ(report.at("tensors").size(), 53u);  // and the digests
  const Json& first = report.at("tensors").as_array().front();
  EXPECT_EQ(first.at("name").as_string(), "tok_emb.weight");
  EXPECT_EQ(first.at("dtype").as_string(), "F32");
  EXPECT_EQ(first.at("shape"), Json::array({128, 64}));
}

TEST(Inspect, OfAHuggingFaceFolder) {
  const auto source = shared_path("fixtures/hf/llama_tied");
  if (!source) GTEST_SKIP() << shared_missing("fixtures/hf/llama_tied");
  const Json report = inspected(source->string());
  EXPECT_EQ(report.at("format").as_string(), "huggingface");
  EXPECT_EQ(report.at("architecture").as_string(), "llama");
  EXPECT_EQ(report.at("parameters").as_int(), 149952);
  EXPECT_EQ(report.at("metadata").at("rms_norm_eps").as_double(), 1e-6);
  EXPECT_EQ(report.at("tensors").size(), 29u);
}

TEST(Inspect, IsReadableByPeople) {
  const TempFolder folder;
  ASSERT_EQ(import_golden("golf_plus_grad", (folder / "m").string()).exit_code, 0);
  const RunResult run = run_binary({.arguments = {"inspect", "m"}, .folder = folder.path()});
  EXPECT_EQ(run.exit_code, 0) << run;
  for (const char* part : {"architecture  golf\n", "4 layers x 96, 6/3 heads of 16, MLP 288", "356,153",
                           "bigram.proj.weight", "128, tied", "tokenizer     none"})
    EXPECT_NE(run.out.find(part), std::string::npos) << part << "\n" << run;
}

TEST(Inspect, SaysWhatIsNoModel) {
  const TempFolder folder;
  folder.write("m", "GGUF");
  const RunResult run = run_binary({.arguments = {"inspect", "m"}, .folder = folder.path()});
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_EQ(run.out, "");
  EXPECT_TRUE(run.err.starts_with("error: m is a GGUF, which this build cannot read yet\n")) << run;
}

}  // namespace
}  // namespace thimble
