// `thimble inspect`
#include <fstream>
#include <sstream>

#include "base/files.h"
#include "base/json.h"
#include "base/table.h"
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
  EXPECT_TRUE(report.at("verified").as_bool()) << "small files are read completely";
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
  EXPECT_EQ(report.at("tensors").size(), 53u);  // including the digests
  const Json& first = report.at("tensors").as_array().front();
  EXPECT_EQ(first.at("name").as_string(), "tok_emb.weight");
  EXPECT_EQ(first.at("dtype").as_string(), "F32");
  EXPECT_EQ(first.at("shape"), Json::array({128, 64}));
}

TEST(Inspect, DescribesAHuggingFaceFolder) {
  const Json report = inspected(golden_path("hf/llama_tied").string());
  EXPECT_EQ(report.at("format").as_string(), "huggingface");
  EXPECT_EQ(report.at("architecture").as_string(), "llama");
  EXPECT_EQ(report.at("parameters").as_int(), 149952);
  EXPECT_EQ(report.at("metadata").at("rms_norm_eps").as_double(), 1e-6);
  EXPECT_EQ(report.at("tensors").size(), 29u);
}

// 72 MB of zeros in a sparse file.
void write_large_model(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  const auto write = [](const fs::path& path, const std::string& text) { std::ofstream(path) << text; };
  fs::create_directories(folder);
  Json config = parse_json(read_file(golden_path("hf/llama_tied/config.json"), 1 << 20), "config");
  config.set("vocab_size", 140'000)
      .set("hidden_size", 256)
      .set("intermediate_size", 16)
      .set("num_hidden_layers", 1);
  config.set("num_attention_heads", 4).set("num_key_value_heads", 4).set("head_dim", 64);
  write(folder / "config.json", config.dump());
  std::uint64_t end = 0;
  Json header = Json::object();
  const auto add = [&](const std::string& name, std::vector<std::int64_t> dims) {
    std::uint64_t bytes = 2;
    for (const std::int64_t dim : dims) bytes *= static_cast<std::uint64_t>(dim);
    header.set(name, Json::object()
                         .set("dtype", "BF16")
                         .set("shape", Json::array({dims.begin(), dims.end()}))
                         .set("data_offsets", Json::array({end, end + bytes})));
    end += bytes;
  };
  add("model.embed_tokens.weight", {140'000, 256});
  const std::string layer = "model.layers.0.";
  for (const char* name : {"q", "k", "v", "o"})
    add(fmt::format("{}self_attn.{}_proj.weight", layer, name), {256, 256});
  add(layer + "mlp.gate_proj.weight", {16, 256});
  add(layer + "mlp.up_proj.weight", {16, 256});
  add(layer + "mlp.down_proj.weight", {256, 16});
  for (const char* name : {"model.layers.0.input_layernorm.weight",
                           "model.layers.0.post_attention_layernorm.weight", "model.norm.weight"})
    add(name, {256});
  const std::string text = header.dump();
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  write(folder / "model.safetensors", length + text);
  fs::resize_file(folder / "model.safetensors", 8 + text.size() + end);
}

TEST(Inspect, ReadsLargeFilesCompletelyOnlyWithVerify) {
  const TempFolder folder;
  const std::filesystem::path model = folder / "large";
  write_large_model(model);
  const Json quick = inspected(model.string());
  EXPECT_FALSE(quick.at("verified").as_bool());
  EXPECT_EQ(quick.at("parameters").as_int(), 140'000 * 256 + 4 * 256 * 256 + 3 * 16 * 256 + 3 * 256);
  EXPECT_TRUE(quick.at("groups").as_array().front().at("statistics").is_null());
  EXPECT_TRUE(quick.at("tensors").as_array().front().at("statistics").is_null());
  const RunResult run = run_binary({.arguments = {"inspect", model.string(), "--verify", "--json"}});
  ASSERT_EQ(run.exit_code, 0) << run;
  const Json complete = parse_json(run.out, "stdout");
  EXPECT_TRUE(complete.at("verified").as_bool());
  EXPECT_EQ(complete.at("groups").as_array().front().at("statistics").at("zeros").as_int(), 140'000 * 256);
}

TEST(Inspect, PrintsAReadableSummary) {
  const TempFolder folder;
  ASSERT_EQ(import_golden("golf_plus_grad", (folder / "m").string()).exit_code, 0);
  const RunResult run = run_binary({.arguments = {"inspect", "m"}, .folder = folder.path()});
  EXPECT_EQ(run.exit_code, 0) << run;
  for (const char* part : {"architecture  golf\n", "4 layers x 96, 6/3 heads of 16, MLP 288", "356,153",
                           "bigram.proj.weight", "128, tied", "tokenizer     none"})
    EXPECT_NE(run.out.find(part), std::string::npos) << part << "\n" << run;
}

TEST(Inspect, ReportsAFileThatIsNotAModel) {
  const TempFolder folder;
  folder.write("m", "GGUF");
  const RunResult run = run_binary({.arguments = {"inspect", "m"}, .folder = folder.path()});
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_EQ(run.out, "");
  EXPECT_TRUE(run.err.starts_with("error: m: ")) << run;
}

// Trains a run, from which other formats are made.
class InspectRun : public testing::Test {
 protected:
  InspectRun() {
    std::string text;
    for (int i = 0; i < 150; ++i) text += "line " + std::to_string(i * 7) + ": the cat sat on the mat.\n";
    std::vector<std::string> train = {"train", "--data", folder_.write("text.txt", text).string(), "-o",
                                      path("run")};
    for (const char* setting : {"context=32", "layers=2", "dim=64", "heads=2", "kv_heads=1", "mlp_hidden=512",
                                "batch_tokens=64", "steps=20", "val_every=10"})
      train.insert(train.end(), {"--set", setting});
    EXPECT_EQ(run_binary({.arguments = train}).exit_code, 0);
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void make(std::vector<std::string> arguments) const {
    const RunResult run = run_binary({.arguments = arguments});
    ASSERT_EQ(run.exit_code, 0) << run;
  }

  TempFolder folder_;
};

TEST_F(InspectRun, ShowsTheTrainingHistory) {
  const Json report = inspected(path("run"));
  const Json& training = report.at("training");
  EXPECT_EQ(training.at("step").as_int(), 20);
  EXPECT_EQ(training.at("tokens").as_int(), 20 * 64);
  EXPECT_EQ(training.at("losses").size(), 20u);
  EXPECT_EQ(training.at("validations").size(), 3u);  // at 0, 10 and 20
  EXPECT_EQ(training.at("validations").as_array().back().at("val_loss"), training.at("val_loss"));
  EXPECT_GT(training.at("val_bpb").as_double(), 0);
  EXPECT_EQ(training.at("golden").size(), 32u);
  EXPECT_EQ(training.at("config").at("steps").as_int(), 20);
  EXPECT_EQ(report.at("tokenizer").at("kind").as_string(), "bytes");
  EXPECT_EQ(report.at("tokenizer").at("special_tokens").at("<bos>").as_int(), 0);
  EXPECT_NEAR(report.at("tokenizer").at("bytes_per_token").as_double(), 1, 0.05);

  // A checkpoint copied out of its run has its own validation score, but not the run's metrics.
  std::filesystem::copy_file(path("run") + "/last.safetensors", path("alone.safetensors"));
  const Json alone = inspected(path("alone.safetensors"));
  EXPECT_EQ(alone.at("training").at("val_bpb"), training.at("val_bpb"));
  EXPECT_TRUE(alone.at("training").at("losses").is_null());
  EXPECT_TRUE(alone.at("tokenizer").at("bytes_per_token").is_null());

  // An earlier checkpoint of the run has no later metrics.
  const Json earlier = inspected(path("run") + "/checkpoints/step-00000010.safetensors");
  EXPECT_EQ(earlier.at("training").at("step").as_int(), 10);
  EXPECT_EQ(earlier.at("training").at("losses").size(), 10u);
  EXPECT_EQ(earlier.at("training").at("validations").size(), 2u);

  const RunResult page = run_binary({.arguments = {"inspect", path("run")}});
  for (const char* part : {"20 steps, 1.28 k tokens", "bits per byte", "loss          ", "sample        \"",
                           "bytes per token in training", "qk_norm=true", "optim.m.*", "<bos> 0 (bos)"})
    EXPECT_NE(page.out.find(part), std::string::npos) << part << "\n" << page;
}

TEST_F(InspectRun, ShowsTensorStatistics) {
  const Json report = inspected(path("run"));
  const auto statistics = [](const Json& list, std::string_view name) {
    for (const Json& entry : list.as_array())
      if (entry.at("name").as_string() == name) return entry.at("statistics");
    return Json();
  };
  const Json norm = statistics(report.at("tensors"), "model.norm.weight");
  EXPECT_NEAR(norm.at("mean").as_double(), 1, 0.2);
  EXPECT_LE(norm.at("min").as_double(), norm.at("mean").as_double());
  EXPECT_EQ(norm.at("zeros").as_int(), 0);
  double counted = 0;
  for (const Json& bin : norm.at("histogram").as_array()) counted += bin.as_double();
  EXPECT_EQ(counted, 64);
  EXPECT_TRUE(statistics(report.at("tensors"), "thimble.tokenizer").is_null());
  for (const Json& group : report.at("groups").as_array())
    if (group.at("name").as_string() == "model.layers.*.mlp.up_proj.weight") {
      EXPECT_EQ(group.at("tensors").as_int(), 2);
      EXPECT_EQ(group.at("parameters").as_int(), 2 * 512 * 64);
      EXPECT_EQ(group.at("bytes").as_int(), 2 * 512 * 64 * 4);
    }
}

TEST_F(InspectRun, HasEveryKeyForEveryFormat) {
  make({"pack", path("run"), "-o", path("m.thimble"), "--bits", "6"});
  make({"export", path("run"), "--format", "gguf", "--type", "q8_0", "-o", path("m.gguf")});
  make({"export", path("run"), "--format", "hf", "-o", path("hf")});
  const Json source = inspected(path("run"));
  for (const char* model : {"m.thimble", "m.gguf", "hf"}) {
    const Json report = inspected(path(model));
    for (const char* key : {"format", "architecture", "parameters", "metadata", "config", "tokenizer",
                            "training", "tensors", "groups", "chat_layout"})
      EXPECT_NE(report.find(key), nullptr) << model << " " << key;
    EXPECT_EQ(report.at("metadata"), source.at("metadata")) << model;
    EXPECT_EQ(report.at("parameters"), source.at("parameters")) << model;
    if (std::string_view(model) == "m.thimble")
      for (const char* key : {"step", "tokens", "val_loss", "val_bpb", "train_loss"})
        EXPECT_EQ(report.at("training").at(key), source.at("training").at(key)) << key;
    else
      EXPECT_TRUE(report.at("training").is_null()) << model;  // these formats do not store it
    for (const Json& tensor : report.at("tensors").as_array())
      EXPECT_FALSE(tensor.at("statistics").is_null()) << model << " " << tensor.at("name").as_string();
  }
  const auto dtype = [&](const char* model, std::string_view name) {
    const Json report = inspected(path(model));
    for (const Json& group : report.at("groups").as_array())
      if (group.at("name").as_string() == name) return group.at("dtype").as_string();
    return std::string("not found");
  };
  EXPECT_EQ(dtype("m.thimble", "model.layers.*.mlp.up_proj.weight"), "I6");
  EXPECT_EQ(dtype("m.gguf", "model.layers.*.mlp.up_proj.weight"), "Q8_0");
  EXPECT_EQ(dtype("m.gguf", "model.norm.weight"), "F32");
}

TEST_F(InspectRun, FitsTheWidthOfTheTerminal) {
  for (const int width : {60, 80, 120, 200}) {
    const RunResult page = run_binary({.arguments = {"inspect", "run"},
                                       .folder = folder_.path(),
                                       .environment = {{"COLUMNS", std::to_string(width)}}});
    EXPECT_EQ(page.exit_code, 0) << page;
    std::istringstream lines(page.out);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(display_width(line), static_cast<std::size_t>(width)) << line;
    EXPECT_NE(page.out.find("histogram"), std::string::npos) << page;
  }
}

}  // namespace
}  // namespace thimble
