// Every family of architectures.h: models with the configs that Transformers writes, compared with
// Transformers' logits, loss, gradients and greedy text; written and read as Hugging Face folders
// and as GGUF.
#include "formats/architectures.h"

#include <algorithm>
#include <cmath>
#include <list>
#include <optional>

#include "base/files.h"
#include "base/json.h"
#include "formats/adapters.h"
#include "formats/export.h"
#include "formats/gguf_import.h"
#include "formats/gguf_model.h"
#include "formats/hugging_face.h"
#include "formats/hugging_face_write.h"
#include "formats/safetensors.h"
#include "formats/trace.h"
#include "model/rows.h"
#include "support/golden.h"
#include "support/message_of.h"
#include "support/temp_folder.h"

namespace thimble::architectures_test {
namespace {

namespace fs = std::filesystem;

// The numbers of tests/golden/make_architectures.py: splitmix64 of FNV-1a of the name.
std::uint64_t bits(std::string_view name, std::uint64_t index) {
  std::uint64_t x = 0xCBF29CE484222325;
  for (const char byte : name) x = (x ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  x += (index + 1) * 0x9E3779B97F4A7C15;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

double uniform(std::string_view name, std::uint64_t index) {
  return static_cast<double>(bits(name, index) >> 40) / 8388608.0 - 1;
}

using Dims = std::vector<std::int64_t>;

std::vector<float> values_of(const std::string& name, const Dims& dims, double gain_base) {
  std::int64_t count = 1;
  for (const std::int64_t dim : dims) count *= dim;
  const bool vector = dims.size() == 1, gain = vector && name.ends_with("weight");
  const bool table = name.find("embed_tokens") != name.npos || name.find("wte") != name.npos ||
                     name.find("wpe") != name.npos || name.find("lm_head") != name.npos;
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const double u = uniform(name, static_cast<std::uint64_t>(i));
    values.push_back(static_cast<float>(gain     ? gain_base + u / 4
                                        : vector ? u / 8
                                        : table  ? u / 2
                                                 : u * 0.375));
  }
  return values;
}

class Family : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const fs::path golden = golden_path(std::string("architectures/") + GetParam());
    const Json tensors = parse_json(*reference().find_metadata("tensors"), "tensors");
    const double gain_base = *reference().find_metadata("gain_base") == "1" ? 1 : 0;
    SafetensorsWriter writer;
    for (const auto& [name, shape] : tensors.as_object()) {
      Dims dims;
      for (const Json& dim : shape.as_array()) dims.push_back(dim.as_int());
      const auto& values = values_.emplace_back(values_of(name, dims, gain_base));
      writer.add(name, DType::f32, dims, std::as_bytes(std::span(values)));
    }
    fs::create_directory(source());
    fs::copy(golden / "config.json", source() / "config.json");
    PosixFileOps ops;
    writer.write(ops, source() / "model.safetensors", Existing::refuse, WithDigest::no);
  }

  const SafetensorsFile& reference() {
    if (!reference_)
      reference_ = SafetensorsFile::open(
          golden_path(std::string("architectures/") + GetParam() + "/reference.safetensors"));
    return *reference_;
  }
  std::vector<float> floats(std::string_view name) {
    std::vector<float> values(static_cast<std::size_t>(reference().at(name).count()));
    reference().read_f32(name, values);
    return values;
  }
  fs::path source() const { return folder_ / "source"; }
  fs::path path(const char* name) const { return folder_ / name; }

  std::vector<float> logits(Model& model) {
    const TraceTokens tokens = read_trace_tokens(reference());
    return model.score(grid_rows(model.config(), tokens.row_length(), tokens.input, tokens.target), true)
        .logits;
  }

 private:
  TempFolder folder_;
  std::list<std::vector<float>> values_;
  std::optional<SafetensorsFile> reference_;
};

double largest_difference(std::span<const float> a, std::span<const float> b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return a.size() == b.size() ? largest : 1e9;
}

TEST_P(Family, LogitsLossAndGradientsAreTransformers) {
  const ModelFile file = open_hugging_face(source());
  const Context context;
  Model model = make_model(file, context);
  const TraceTokens tokens = read_trace_tokens(reference());
  const Rows rows = grid_rows(model.config(), tokens.row_length(), tokens.input, tokens.target);
  std::vector<float> gradients(model.weights().size());
  EXPECT_NEAR(model.add_gradients(rows, gradients, {}) / floats("loss")[0], 1, 1e-6);
  const std::vector<float> expected_logits = floats("logits");
  const double size = std::ranges::max(expected_logits),
               apart = largest_difference(logits(model), expected_logits);
  EXPECT_LE(apart / size, 5e-6);
  RecordProperty("logits", fmt::format("{}", apart / size));

  std::vector<FileTensor> tensors =
      file_tensors(*family_of(file.config.model, file.architecture), model.params(), Naming::transformers);
  std::ranges::sort(tensors, {}, &FileTensor::name);
  const std::vector<float> probes = floats("probes");
  ASSERT_EQ(probes.size(), 2 * tensors.size());
  double worst = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    FileTensor& tensor = tensors[i];
    tensor.base = 0;
    const std::vector<float> own = tensor.values(gradients);
    double squares = 0, product = 0;
    for (std::size_t n = 0; n < own.size(); ++n) {
      squares += std::pow(own[n], 2);
      product += own[n] * uniform("probe." + tensor.name, n);
    }
    const double length = probes[2 * i];
    EXPECT_NEAR(std::sqrt(squares) / length, 1, 1e-5) << tensor.name;
    EXPECT_NEAR(product / length, probes[2 * i + 1] / length, 1e-5) << tensor.name;
    const std::vector<float> expected = floats("grad." + tensor.name);
    const bool sampled = expected.size() != own.size();
    for (std::size_t n = 0; n < expected.size(); ++n) {
      const std::size_t at = sampled ? bits("sample." + tensor.name, n) % own.size() : n;
      worst = std::max(worst, std::abs(own[at] - expected[n]) / length);
    }
    EXPECT_LE(worst, 1e-5) << tensor.name;
  }
  RecordProperty("gradients", fmt::format("{}", worst));
}

std::int32_t likeliest(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

TEST_P(Family, GreedyTextIsTransformers) {
  constexpr std::size_t kPrompt = 8;
  const Context context;
  Model model = make_model(open_hugging_face(source()), context);
  std::vector<std::int64_t> wide(kPrompt + 64);
  reference().read_i64("greedy", wide);
  const std::vector<std::int32_t> expected(wide.begin(), wide.end());
  std::vector<std::int32_t> cached(expected.begin(), expected.begin() + kPrompt), scored = cached;
  KvCache cache(model.config(), 1);
  for (std::size_t read = 0; cached.size() < expected.size();) {
    std::vector<DecodeRow> rows;
    for (; read < cached.size(); ++read)
      rows.push_back({.token = cached[read],
                      .previous = read < 1 ? -1 : cached[read - 1],
                      .before_previous = read < 2 ? -1 : cached[read - 2],
                      .position = static_cast<std::int32_t>(read),
                      .wants_logits = read + 1 == cached.size()});
    const Tensor logits = model.decode(decode_rows(model.config(), 1, rows), cache);
    cached.push_back(likeliest({logits.row<float>(0), static_cast<std::size_t>(logits.cols)}));
  }
  EXPECT_EQ(cached, expected);
  while (scored.size() < expected.size()) {
    const auto T = static_cast<std::int64_t>(scored.size());
    const auto logits = model.score(grid_rows(model.config(), T, scored), true).logits;
    scored.push_back(likeliest(std::span(logits).last(static_cast<std::size_t>(model.config().vocab_size))));
  }
  EXPECT_EQ(scored, expected);
}

// The exported folder has the tensors that Transformers wrote, and a config that means the same.
TEST_P(Family, ExportsToTransformers) {
  const ModelFile file = open_hugging_face(source());
  PosixFileOps ops;
  const HuggingFaceReport report = write_hugging_face(ops, path("out"), Existing::refuse, file, DType::f32);
  EXPECT_EQ(report.architecture, file.architecture);
  const ModelFile again = open_hugging_face(path("out"));
  EXPECT_EQ(again.config.model, file.config.model);
  const SafetensorsFile before = SafetensorsFile::open(source() / "model.safetensors"),
                        after = SafetensorsFile::open(path("out") / "model.safetensors");
  EXPECT_EQ(before.entries().size(), after.entries().size());
  for (const SafetensorsEntry& entry : before.entries()) {
    ASSERT_TRUE(after.find(entry.name)) << entry.name;
    EXPECT_EQ(after.at(entry.name).dims, entry.dims) << entry.name;
    std::vector<float> a(static_cast<std::size_t>(entry.count())), b = a;
    before.read_f32(entry.name, a);
    after.read_f32(entry.name, b);
    EXPECT_LE(largest_difference(a, b), 1e-7) << entry.name;  // 1 is added to gemma's gains and subtracted
  }
  const Json theirs = parse_json(read_file(source() / "config.json", 1 << 20), "theirs"),
             ours = parse_json(read_file(path("out") / "config.json", 1 << 20), "ours");
  EXPECT_EQ(ours.at("model_type"), theirs.at("model_type"));
  EXPECT_EQ(ours.at("architectures"), theirs.at("architectures"));
}

TEST_P(Family, GgufGivesTheSameLogits) {
  ModelFile file = open_hugging_face(source());
  PosixFileOps ops;
  const ExportedModel exported = exported_model(file);
  write_gguf(ops, path("out.gguf"), Existing::refuse, exported, {}, GgufType::f32);
  for (const WeightsAs as : {WeightsAs::floats, WeightsAs::stored}) {
    const ModelFile again = open_gguf(path("out.gguf"), as);
    const Context context;
    Model before = make_model(file, context), after = make_model(again, context);
    TraceTokens tokens = read_trace_tokens(reference());
    // A window that llama.cpp does not have is a shorter context.
    const auto T = static_cast<std::size_t>(std::min(tokens.row_length(), again.config.model.context));
    tokens.input.resize(T);
    const auto of = [&](Model& model) {
      return model.score(grid_rows(model.config(), static_cast<std::int64_t>(T), tokens.input), true).logits;
    };
    EXPECT_LE(largest_difference(of(before), of(after)), 2e-5);  // rounding where q is scaled
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, Family,
                         testing::Values("llama3", "smollm2", "mistral", "qwen2_window", "qwen3", "smollm3",
                                         "gemma2", "gemma3", "phi3", "phi3_long", "gpt2"),
                         [](const auto& info) { return std::string(info.param); });

// tests/golden/make_adapters.py
class Adapted : public Family {};

TEST_P(Adapted, LossLogitsAndGradientsArePyTorchs) {
  const SafetensorsFile golden = SafetensorsFile::open(golden_path("adapters/reference.safetensors"));
  const auto floats_of = [&](std::string_view name) {
    std::vector<float> values(static_cast<std::size_t>(golden.at(name).count()));
    golden.read_f32(name, values);
    return values;
  };
  ModelFile base = open_model(source(), WeightsAs::stored);
  const auto table =
      std::make_shared<const AdapterTable>(base.config.model, LoraConfig{.rank = 4, .alpha = 6});
  const Context context;
  Model model(base.config.model, context, DType::f32, base.stored, table);
  for (const Param& param : table->params().all()) {
    const std::span<float> values = param.in(model.weights());
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(uniform(param.name, i) / 4);
  }
  model.weights_changed();
  const TraceTokens tokens = read_trace_tokens(golden);
  const Rows rows = grid_rows(model.config(), tokens.row_length(), tokens.input, tokens.target);
  std::vector<float> gradients(model.weights().size());
  EXPECT_NEAR(model.add_gradients(rows, gradients, {}) / floats_of("loss")[0], 1, 1e-6);
  const std::vector<float> expected_logits = floats_of("logits");
  EXPECT_LE(
      largest_difference(model.score(rows, true).logits, expected_logits) / std::ranges::max(expected_logits),
      5e-6);
  EXPECT_EQ(table->params().all().size(), 3u * 7 * 2);
  for (const Param& param : table->params().all()) {
    const std::vector<float> expected = floats_of("grad." + param.name);
    const double largest =
        std::abs(*std::ranges::max_element(expected, {}, [](float value) { return std::abs(value); }));
    EXPECT_LE(largest_difference(param.in(std::span(gradients)), expected) / largest, 1e-5) << param.name;
  }
}

// tests/interop/check_peft.py
TEST_P(Adapted, AFolderOfPeftGivesPeftsLogits) {
  ModelFile file = open_model(source(), WeightsAs::stored);
  add_adapters(file, golden_path("adapters/peft"));
  EXPECT_EQ(file.adapters->table.lora().rank, 6);
  const Context context;
  Model model = make_model(file, context);
  const TraceTokens tokens =
      read_trace_tokens(SafetensorsFile::open(golden_path("adapters/reference.safetensors")));
  const Rows rows = grid_rows(model.config(), tokens.row_length(), tokens.input, tokens.target);
  const SafetensorsFile golden = SafetensorsFile::open(golden_path("adapters/peft/logits.safetensors"));
  std::vector<float> expected(static_cast<std::size_t>(golden.at("logits").count()));
  golden.read_f32("logits", expected);
  EXPECT_LE(largest_difference(model.score(rows, true).logits, expected) / std::ranges::max(expected), 5e-6);
}

INSTANTIATE_TEST_SUITE_P(Adapters, Adapted, testing::Values("llama3"));

}  // namespace
}  // namespace thimble::architectures_test
