// Models opened with stored weights give the same results as with float weights.
#include <cmath>
#include <random>

#include "base/file_ops.h"
#include "config/builder.h"
#include "formats/artifact.h"
#include "formats/export.h"
#include "formats/gguf_model.h"
#include "formats/model_file.h"
#include "formats/pack_model.h"
#include "formats/small_export.h"
#include "formats/weights_file.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "tensor/tensor.h"

namespace thimble::stored_model_test {
namespace {

// Matrices above and below every size threshold of the packer.
ModelFile small_golf() {
  ConfigBuilder builder;
  builder.preset("golf-plus");
  for (const char* assignment : {"vocab_size=300", "context=16", "layers=2", "dim=64", "heads=2",
                                 "kv_heads=1", "mlp_hidden=1100", "bigram_buckets=64", "bigram_dim=16"})
    builder.set(assignment);
  ModelFile model;
  model.format = "safetensors";
  model.config = resolved(Config{builder.resolve().model, {}});
  const ParamTable table(model.config.model);
  model.weights.resize(static_cast<std::size_t>(table.block_size()));
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0, 0.2f);
  for (const Param& param : table.all())
    for (std::int64_t i = 0; i < param.count(); ++i)
      model.weights[static_cast<std::size_t>(param.offset + i)] = normal(random);
  return model;
}

std::string packed(const ModelFile& model, int bits, const std::vector<std::string>& keep = {}) {
  PackRequest request;
  request.options.rule.bits = bits;
  request.options.keep = keep;
  return pack_model(model, request, ProgressOutput::nowhere()).bytes;
}

std::vector<std::int32_t> some_tokens() {
  std::vector<std::int32_t> tokens(16);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * 37 % 300);
  return tokens;
}

std::vector<float> decoded(Model& model) {
  const std::vector<std::int32_t> tokens = some_tokens();
  std::vector<DecodeRow> rows;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    rows.push_back({.token = tokens[i],
                    .previous = i > 0 ? tokens[i - 1] : -1,
                    .before_previous = i > 1 ? tokens[i - 2] : -1,
                    .position = static_cast<std::int32_t>(i)});
  KvCache cache(model.config(), 1, model.dtype());
  const Tensor logits = model.decode(decode_rows(model.config(), 1, rows), cache);
  return {logits.row<float>(0), logits.row<float>(0) + logits.count()};
}

double root_mean_square(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

// Opens the file both ways and compares decoding and scoring. `rounds`: decoding rounds the rows
// that are multiplied with integers of blocks to 8 bits. A step is 0.8 % of the largest of 32
// numbers, and the attention of random models amplifies it: logits differ by up to 7 %.
void expect_same_model(const std::filesystem::path& path, bool rounds = false) {
  const ModelFile floats = open_model(path), stored = open_model(path, WeightsAs::stored);
  ASSERT_TRUE(stored.stored);
  EXPECT_TRUE(stored.weights.empty());
  EXPECT_EQ(float_weights(stored), floats.weights);
  EXPECT_EQ(float_weights(floats), floats.weights);
  EXPECT_EQ(stored.tensors.size(), floats.tensors.size());
  const Context context;
  Model a = make_model(floats, context), b = make_model(stored, context);
  EXPECT_EQ(b.stored_weights(), stored.stored.get()) << "stored weights are not copied";
  const Rows rows = grid_rows(a.config(), 16, some_tokens(), some_tokens());
  EXPECT_EQ(a.score(rows).nats, b.score(rows).nats);
  const std::vector<float> expected = decoded(a), found = decoded(b);
  if (rounds) {
    std::vector<float> differences;
    for (std::size_t i = 0; i < expected.size(); ++i) differences.push_back(found[i] - expected[i]);
    EXPECT_LT(root_mean_square(differences), 0.1 * root_mean_square(expected));
    return;
  }
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(expected[i], found[i], 1e-3) << i;
}

TEST(StoredModel, ArtifactGivesTheSameModel) {
  const TempFolder folder;
  const ModelFile model = small_golf();
  for (const int bits : {8, 6, 5}) {
    SCOPED_TRACE(bits);
    const auto path = folder.write("a.thimble", packed(model, bits));
    expect_same_model(path);
    // Integers take one byte each, kept matrices two per value, the few vectors four.
    const auto stored = open_model(path, WeightsAs::stored).stored;
    EXPECT_LT(stored->bytes(), static_cast<std::int64_t>(model.weights.size()) * 2);
    const ParamTable table(model.config.model);
    EXPECT_EQ(stored->view(table.mlp_in(0)).values.dtype, DType::i8);
    EXPECT_EQ(stored->view(table.token_embedding()).values.dtype, DType::f16);
  }
}

// If a part of q;k;v is kept as floats, all of q;k;v is stored as floats, but no other matrix.
TEST(StoredModel, KeptTensorAmongIntegersGivesTheSameModel) {
  const TempFolder folder;
  ModelFile model = small_golf();
  expect_same_model(folder.write("a.thimble", packed(model, 6, {"c_v", "mlp.proj"})));
}

// For example golf's embedding: values restored to bf16 are stored as bf16.
TEST(StoredModel, WeightsThatWereBf16AreStoredAsBf16) {
  const TempFolder folder;
  ModelFile model = small_golf();
  const ParamTable table(model.config.model);
  for (float& weight : model.weights) weight = to_f32(to_bf16(weight));
  for (const Param& param : table.all())
    model.tensors.push_back({param.name, "BF16", param.dims, 2 * static_cast<std::uint64_t>(param.count())});
  for (const int bits : {8, 6}) {
    const auto path = folder.write("a.thimble", packed(model, bits));
    expect_same_model(path);
    EXPECT_EQ(open_model(path, WeightsAs::stored).stored->view(table.mlp_in(0)).values.dtype, DType::bf16);
  }
}

TEST(StoredModel, CheckpointIsStoredInItsOwnType) {
  const TempFolder folder;
  const ModelFile model = small_golf();
  const ParamTable table(model.config.model);
  PosixFileOps ops;
  for (const DType dtype : {DType::f32, DType::f16}) {
    SCOPED_TRACE(dtype_name(dtype));
    write_model(ops, folder / "m", Existing::replace, model, dtype);
    expect_same_model(folder / "m");
    EXPECT_EQ(open_model(folder / "m", WeightsAs::stored).stored->view(table.mlp_in(0)).values.dtype, dtype);
  }
}

// llama's rows of q and k have another order in a GGUF; integers and scales are reordered together.
TEST(StoredModel, GgufGivesTheSameModel) {
  const TempFolder folder;
  PosixFileOps ops;
  for (const char* preset : {"llama", "qwen2"})
    for (const GgufType type :
         {GgufType::f32, GgufType::f16, GgufType::bf16, GgufType::q8_0, GgufType::q4_0}) {
      SCOPED_TRACE(fmt::format("{} {}", preset, info_of(type).name));
      const ModelFile model = small_export(preset);
      export_model(ops, model, "gguf", {.path = folder / "m", .existing = Existing::replace, .type = type});
      expect_same_model(folder / "m", type == GgufType::q8_0 || type == GgufType::q4_0);
    }
}

// The model as a GGUF whose matrices are all of one type.
std::string gguf_of(const ModelFile& model, GgufType type) {
  const ExportedModel exported = exported_model(model);
  GgufWriter writer;
  writer.set("general.architecture", exported.architecture);
  for (const auto& [key, value] : exported.settings) writer.set(key, value);
  for (const ExportedTensor& tensor : exported.tensors)
    writer.add(tensor.name, tensor.dims.size() == 2 ? type : GgufType::f32, tensor.dims, tensor.values);
  return writer.to_bytes();
}

// Every matrix stays in the file; results equal those of the values as floats.
TEST(StoredModel, EveryTypeOfGgufIsUsedInItsBlocks) {
  const TempFolder folder;
  for (const char* preset : {"llama", "qwen3"}) {  // llama's rows of q and k have another order
    const ModelFile model = small_export(preset, {"dim=256", "mlp_hidden=256"});
    const ParamTable table(model.config.model);
    for (const GgufType type :
         {GgufType::f16, GgufType::q5_0, GgufType::q5_1, GgufType::q4_k, GgufType::q5_k, GgufType::q6_k}) {
      SCOPED_TRACE(fmt::format("{} {}", preset, info_of(type).name));
      const auto path = folder.write("m.gguf", gguf_of(model, type));
      expect_same_model(path, type != GgufType::f16);
      const ModelFile file = open_model(path, WeightsAs::stored);
      for (const ParamView& view : {table.qkv(0), table.token_embedding(), table.mlp_in(1)})
        EXPECT_EQ(file.stored->view(view).values.dtype, DType::blocks);
      std::uint64_t in_file = 0;
      for (const StoredTensor& tensor : file.tensors)
        if (tensor.dims.size() == 2) in_file += tensor.bytes;
      EXPECT_EQ(file.stored->file_bytes(), in_file);
      EXPECT_EQ(float_weights(file), open_model(path).weights);
    }
  }
}

// Parts as llama-gguf-split writes them: the settings and some tensors, then the other tensors.
std::string part_of(const ModelFile& model, std::uint16_t number, std::uint16_t count, std::int32_t total) {
  const ExportedModel exported = exported_model(model);
  GgufWriter writer;
  if (number == 0) writer.set("general.architecture", exported.architecture);
  for (const auto& [key, value] : exported.settings)
    if (number == 0) writer.set(key, value);
  writer.set("split.no", number);
  writer.set("split.count", count);
  writer.set("split.tensors.count", total);
  for (std::size_t i = 0; i < exported.tensors.size(); ++i)
    if (i % count == number)
      writer.add(exported.tensors[i].name, GgufType::f32, exported.tensors[i].dims,
                 exported.tensors[i].values);
  return writer.to_bytes();
}

TEST(StoredModel, AGgufInPartsIsOneModel) {
  const TempFolder folder;
  const ModelFile model = small_export("llama");
  const auto total = static_cast<std::int32_t>(exported_model(model).tensors.size());
  const auto write = [&](std::string_view name, std::uint16_t number, std::uint16_t count) {
    return folder.write(name, part_of(model, number, count, total));
  };
  const auto message = [&](const std::filesystem::path& path) {
    return message_of([&] { open_model(path, WeightsAs::stored); });
  };
  const auto contains = [](std::string_view text, std::string_view part) {
    return text.find(part) != text.npos;
  };
  const auto first = write("m-00001-of-00003.gguf", 0, 3), second = write("m-00002-of-00003.gguf", 1, 3);
  EXPECT_TRUE(contains(message(first), "m-00003-of-00003.gguf")) << message(first);
  const auto third = write("m-00003-of-00003.gguf", 2, 3);
  expect_same_model(first);
  EXPECT_EQ(open_model(first).weights,
            open_model(folder.write("whole.gguf", part_of(model, 0, 1, total))).weights);
  EXPECT_TRUE(contains(message(second), "is part 2 of 3, expected the first"));
  EXPECT_TRUE(
      contains(message(write("other.gguf", 0, 3)), "expected a name that ends with -00001-of-00003.gguf"));
  EXPECT_TRUE(contains(message(write("n-00004-of-00003.gguf", 3, 3)), "split.no is 3, expected less than"));

  write("m-00003-of-00003.gguf", 1, 3);
  EXPECT_TRUE(contains(message(first), "expected part 3 of 3, found part 2 of 3"));
  folder.write("m-00003-of-00003.gguf", part_of(model, 2, 3, total).substr(0, 2000));
  EXPECT_TRUE(contains(message(first), "m-00003-of-00003.gguf"));
  write("m-00003-of-00003.gguf", 2, 3);
  folder.write("m-00001-of-00003.gguf", part_of(model, 0, 3, total + 1));
  EXPECT_TRUE(contains(message(first), "tensors in all parts (split.tensors.count), found"));
}

TEST(StoredModel, Bf16ModelUsesBf16AndIntegers) {
  const TempFolder folder;
  const ModelFile file = open_model(folder.write("a.thimble", packed(small_golf(), 6)), WeightsAs::stored);
  const Context context;
  const Model model = make_model(file, context, DType::bf16);
  const ParamTable table(file.config.model);
  EXPECT_EQ(model.stored_weights()->view(table.token_embedding()).values.dtype, DType::bf16);
  EXPECT_EQ(model.stored_weights()->view(table.mlp_in(0)).values.dtype, DType::i8);
}

}  // namespace
}  // namespace thimble::stored_model_test
