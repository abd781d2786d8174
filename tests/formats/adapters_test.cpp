#include "formats/adapters.h"

#include <algorithm>
#include <cmath>
#include <list>

#include "base/files.h"
#include "config/toml.h"
#include "formats/safetensors.h"
#include "formats/small_export.h"
#include "formats/weights_file.h"
#include "support/message_of.h"
#include "support/temp_folder.h"

namespace thimble::adapters_test {
namespace {

namespace fs = std::filesystem;

class AdapterFiles : public testing::Test {
 protected:
  AdapterFiles() { write_base("base.safetensors", 1); }

  void write_base(const char* name, float factor) {
    ModelFile model = small_export("qwen3");
    model.tokenizer.reset();
    model.layout.clear();
    for (float& weight : model.weights) weight *= factor;
    write_model(ops_, folder_ / name, Existing::replace, model, DType::f32);
  }

  ModelFile base(const char* name = "base.safetensors") const {
    return open_model(folder_ / name, WeightsAs::stored);
  }

  // A checkpoint with random adapters for base.safetensors.
  fs::path adapters(const char* name, const LoraConfig& lora) {
    Config config = base().config;
    config.lora = lora;
    const AdapterTable table(config.model, lora);
    std::mt19937 random(static_cast<unsigned>(lora.rank));
    std::normal_distribution<float> normal(0, 0.1f);
    std::vector<float>& values = values_.emplace_back(static_cast<std::size_t>(table.params().block_size()));
    for (float& value : values) value = normal(random);
    const FrozenModel named = frozen(base(), Device::cpu, DType::f32);
    SafetensorsWriter writer;
    writer.set_metadata(std::string(kConfigKey), to_toml(config));
    writer.set_metadata(std::string(kBaseKey), named.base.path);
    writer.set_metadata(std::string(kBaseDigestKey), named.base.digest);
    add_state_dict(writer, table.params(), "", values);
    writer.write(ops_, folder_ / name, Existing::replace, WithDigest::yes);
    return folder_ / name;
  }

  PosixFileOps ops_;
  TempFolder folder_;

 private:
  std::list<std::vector<float>> values_;  // writers refer to them
};

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = a.size() == b.size() ? 0 : 1e9;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return largest;
}

std::vector<float> merged(ModelFile model) {
  merge(model);
  return model.weights;
}

constexpr LoraTargets kAttention{0b1111}, kMlp{0b1110000};

TEST_F(AdapterFiles, SeveralAdaptersAddUpWithTheirScales) {
  const fs::path a = adapters("a.safetensors", {.rank = 2, .targets = kAttention});
  const fs::path b = adapters("b.safetensors", {.rank = 5, .alpha = 3, .stabilized = true, .targets = kMlp});
  const fs::path c = adapters("c.safetensors", {.rank = 3});
  ModelFile all = base();
  const std::vector<float> plain = merged(base());
  std::vector<float> expected = plain;
  const auto expect_added = [&](const fs::path& path, double scale) {
    ModelFile one = base();
    add_adapters(one, path);
    const std::vector<float> weights = merged(one);
    for (std::size_t i = 0; i < plain.size(); ++i)
      expected[i] += static_cast<float>(scale) * (weights[i] - plain[i]);
    add_adapters(all, path, scale);
    EXPECT_LE(largest_difference(merged(all), expected), 1e-5) << path;
  };
  expect_added(a, 1);
  expect_added(b, 0.5);
  expect_added(c, -2);
  expect_added(a, 0.25);
  EXPECT_EQ(all.adapters->table.lora().rank, 2 + 5 + 3 + 2);
  EXPECT_GT(largest_difference(expected, plain), 0.1);
}

TEST_F(AdapterFiles, ACheckpointOfAdaptersOpensWithItsBase) {
  const fs::path path = adapters("a.safetensors", {.rank = 2});
  ModelFile expected = base();
  add_adapters(expected, path);
  EXPECT_EQ(open_model(path).weights, merged(expected));
  EXPECT_EQ(open_model(path, WeightsAs::stored).adapters->values, expected.adapters->values);
}

TEST_F(AdapterFiles, PeftFoldersAreReadAsTheyWereWritten) {
  for (const LoraConfig& lora :
       {LoraConfig{.rank = 4, .alpha = 6}, LoraConfig{.rank = 3, .stabilized = true, .targets = kMlp}}) {
    const ModelFile model = open_model(adapters("a.safetensors", lora), WeightsAs::stored);
    const ExportReport report =
        export_model(ops_, model, "peft", {.path = folder_ / "peft", .existing = Existing::replace});
    EXPECT_LE(report.difference, 1e-5);
    const ModelFile back = open_model(folder_ / "peft", WeightsAs::stored);
    EXPECT_EQ(back.adapters->values, model.adapters->values);
    EXPECT_EQ(back.adapters->table.lora().scale(), lora.scale());
    EXPECT_EQ(back.adapters->table.lora().targets, lora.targets);
    ModelFile named = base();
    add_adapters(named, folder_ / "peft", 0.5);
    EXPECT_TRUE(named.adapters);
  }
}

TEST_F(AdapterFiles, AdaptersOfAnotherModelAreRefused) {
  const fs::path path = adapters("a.safetensors", {.rank = 2});
  write_base("other.safetensors", 2);
  ModelFile other = base("other.safetensors");
  EXPECT_NE(message_of([&] { add_adapters(other, path); }).find("whose weights differ from those of"),
            std::string::npos);
  ModelFile small = small_export("qwen3", {"dim=32", "mlp_hidden=64"});
  write_model(ops_, folder_ / "small.safetensors", Existing::refuse, small, DType::f32);
  ModelFile of_other_shape = base("small.safetensors");
  EXPECT_NE(message_of([&] { add_adapters(of_other_shape, path); }).find("lora_A.weight"), std::string::npos);
  write_base("base.safetensors", 3);
  EXPECT_NE(message_of([&] { open_model(path); }).find("another version of"), std::string::npos);
  EXPECT_NE(
      message_of([&] { add_adapters(other, folder_ / "other.safetensors"); }).find("contains no adapters"),
      std::string::npos);
}

TEST_F(AdapterFiles, UnsupportedPeftSettingsAreNamed) {
  const ModelFile model = open_model(adapters("a.safetensors", {.rank = 2}), WeightsAs::stored);
  export_model(ops_, model, "peft", {.path = folder_ / "peft"});
  const fs::path config = folder_ / "peft/adapter_config.json";
  const Json good = parse_json(read_file(config, 1 << 20), "config");
  const auto message_with = [&](const char* key, const Json& value) {
    Json changed = good;
    write_file(ops_, config, changed.set(key, value).dump(), Existing::replace);
    return message_of([&] { open_model(folder_ / "peft"); });
  };
  for (const auto& [key, value] : {std::pair<const char*, Json>{"use_dora", true},
                                   {"bias", "all"},
                                   {"modules_to_save", Json::array({"lm_head"})},
                                   {"rank_pattern", Json::object().set("q_proj", 4)}})
    EXPECT_NE(message_with(key, value).find(fmt::format("{} = ", key)), std::string::npos) << key;
  EXPECT_NE(message_with("peft_type", "IA3").find("expected peft_type LORA, found IA3"), std::string::npos);
  EXPECT_NE(message_with("r", 0).find("r is 0"), std::string::npos);
  EXPECT_NE(message_with("r", 4).find("lora_A.weight"), std::string::npos) << "of another shape";
  EXPECT_NE(message_with("base_model_name_or_path", "someone/model").find("does not exist"),
            std::string::npos);
  EXPECT_EQ(message_with("lora_dropout", 0.25), "nothing was thrown");
}

TEST_F(AdapterFiles, ModelsWithoutNamesInTransformersHaveNoPeftFolder) {
  ModelFile golf = small_export("golf");
  write_model(ops_, folder_ / "base.safetensors", Existing::replace, golf, DType::f32);
  const ModelFile model = open_model(adapters("a.safetensors", {.rank = 2}), WeightsAs::stored);
  EXPECT_NE(message_of([&] {
              export_model(ops_, model, "peft", {.path = folder_ / "peft"});
            }).find("none of Transformers'"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "peft"));
}

}  // namespace
}  // namespace thimble::adapters_test
