// Opening models of every kind, and writing them for inference.
#include "formats/model_file.h"

#include <fstream>
#include <random>

#include "base/error.h"
#include "config/builder.h"
#include "config/toml.h"
#include "formats/safetensors.h"
#include "formats/weights_file.h"
#include "support/message_of.h"
#include "support/simulated_disk.h"
#include "support/temp_folder.h"
#include "support/ticking_progress.h"
#include "tensor/tensor.h"

namespace thimble::model_file_test {
namespace {

namespace fs = std::filesystem;

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != text.npos;
}

ModelFile sample_model(const std::string& preset = "golf-plus") {
  ConfigBuilder settings;
  settings.preset(preset);
  for (const char* assignment :
       {"vocab_size=300", "context=16", "layers=2", "dim=16", "heads=2", "kv_heads=1", "mlp_hidden=24"})
    settings.set(assignment);
  ModelFile model;
  model.config = resolved(Config{settings.resolve().model, {}});
  const ParamTable table(model.config.model);
  model.weights.resize(static_cast<std::size_t>(table.block_size()));
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0, 1);
  for (const Param& param : table.all())
    for (std::int64_t i = 0; i < param.count(); ++i)
      model.weights[static_cast<std::size_t>(param.offset + i)] = normal(random);
  return model;
}

void write(const fs::path& path, const ModelFile& model, DType dtype = DType::f32) {
  PosixFileOps ops;
  write_model(ops, path, Existing::refuse, model, dtype);
}

// Writes a checkpoint as training does, with optimizer state and a step.
void write_checkpoint(const fs::path& path, const ModelFile& model, const std::string& step) {
  SafetensorsWriter writer;
  writer.set_metadata(std::string(kConfigKey), to_toml(model.config));
  writer.set_metadata(std::string(kStepKey), step);
  const ParamTable table(model.config.model);
  add_state_dict(writer, table, "", model.weights);
  add_state_dict(writer, table, "optim.m.", model.weights);
  const std::string state = "{}";
  writer.add(std::string(kTrainStateTensor), DType::u8, {2}, std::as_bytes(std::span(state)));
  PosixFileOps ops;
  writer.write(ops, path, Existing::refuse, WithDigest::yes);
}

TEST(ModelFile, RoundTripsExactly) {
  const TempFolder folder;
  for (const char* preset : {"golf-plus", "llama", "qwen3", "microgpt", "export"}) {
    const ModelFile model = sample_model(preset);
    write(folder / preset, model);
    const ModelFile again = open_model(folder / preset);
    EXPECT_EQ(again.weights, model.weights);
    EXPECT_EQ(again.config.model, model.config.model);
    EXPECT_EQ(again.format, "safetensors");
    EXPECT_EQ(again.step, std::nullopt);
    EXPECT_EQ(again.tokenizer.has_value(), false);
  }
}

TEST(ModelFile, EqualModelsGiveEqualBytes) {
  const TempFolder folder;
  write(folder / "a", sample_model());
  write(folder / "b", sample_model());
  EXPECT_EQ(folder.read("a"), folder.read("b"));
}

TEST(ModelFile, HalfPrecisionRoundsToNearest) {
  const TempFolder folder;
  const ModelFile model = sample_model();
  write(folder / "half", model, DType::f16);
  const ModelFile again = open_model(folder / "half");
  for (std::size_t i = 0; i < model.weights.size(); ++i)
    ASSERT_EQ(again.weights[i], to_f32(to_f16(model.weights[i])));
  EXPECT_EQ(again.tensors[0].dtype, "F16");
  EXPECT_LT(fs::file_size(folder / "half"), model.weights.size() * 3);
}

TEST(ModelFile, WeightTooLargeForF16IsNamedAndNothingIsLeft) {
  const TempFolder folder;
  ModelFile model = sample_model();
  model.weights[3] = -70000;
  EXPECT_EQ(message_of([&] { write(folder / "half", model, DType::f16); }),
            "tok_emb.weight contains -70000, the largest f16 is 65504");
  EXPECT_TRUE(folder.files().empty());
}

TEST(ModelFile, NeverOverwritesWithoutRequest) {
  const TempFolder folder;
  folder.write("model", "mine");
  EXPECT_TRUE(contains(message_of([&] { write(folder / "model", sample_model()); }), "already exists"));
  EXPECT_EQ(folder.read("model"), "mine");
  PosixFileOps ops;
  write_model(ops, folder / "model", Existing::replace, sample_model(), DType::f32);
  EXPECT_EQ(open_model(folder / "model").architecture, "golf");
}

TEST(ModelFile, FullDiskLeavesTheOldFile) {
  SimulatedDisk disk;
  disk.put_folder("/d");
  disk.put("/d/model", "old");
  disk.fail_from(8, ENOSPC);
  EXPECT_THROW(write_model(disk, "/d/model", Existing::replace, sample_model(), DType::f32), Error);
  EXPECT_EQ(disk.content("/d/model"), "old");
}

TEST(ModelFile, KeepsTokenizerLayoutAndSpecialIds) {
  const TempFolder folder;
  ModelFile model = sample_model();
  model.layout = "roles";
  model.tokenizer = {.name = "tokenizer.json", .content = load_tokenizer("bytes:chat")->serialized()};
  model.tokenizer->special.eos = 3;
  write(folder / "model", model);
  const ModelFile again = open_model(folder / "model");
  EXPECT_EQ(again.layout, "roles");
  ASSERT_TRUE(again.tokenizer);
  EXPECT_EQ(again.tokenizer->content, model.tokenizer->content);
  const auto tokenizer = open_tokenizer(again);
  EXPECT_EQ(tokenizer->special().eos, 3);
  EXPECT_EQ(tokenizer->special().bos, 0);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("thimble")), "thimble");
}

TEST(ModelFile, CheckpointGivesOnlyTheWeights) {
  const TempFolder folder;
  const ModelFile model = sample_model();
  write_checkpoint(folder / "c.safetensors", model, "250");
  const ModelFile again = open_model(folder / "c.safetensors");
  EXPECT_EQ(again.weights, model.weights);
  EXPECT_EQ(again.step, 250);
  EXPECT_EQ(again.tensors.size(), 2 * ParamTable(model.config.model).all().size() + 2);
  EXPECT_EQ(again.config, model.config);
}

TEST(ModelFile, RunFolderGivesTheBestCheckpointOrTheLast) {
  const TempFolder folder;
  folder.write("config.toml", "");
  EXPECT_TRUE(contains(message_of([&] { open_model(folder.path()); }), "does not contain a model"));
  write_checkpoint(folder / "last.safetensors", sample_model(), "20");
  EXPECT_EQ(open_model(folder.path()).step, 20);
  write_checkpoint(folder / "best.safetensors", sample_model(), "10");
  EXPECT_EQ(open_model(folder.path()).step, 10);
  EXPECT_EQ(open_model(folder.path()).path, folder / "best.safetensors");
}

TEST(ModelFile, UnreadableFilesAreReported) {
  const TempFolder folder;
  folder.write("m.gguf", "GGUF\3");
  folder.write("m.thimble", "....");
  folder.write("m.txt", "hello, I am a text");
  EXPECT_TRUE(contains(message_of([&] { open_model(folder / "m.gguf"); }), "expected 4 bytes for a version"));
  EXPECT_TRUE(contains(message_of([&] { open_model(folder / "m.thimble"); }), "is not a .thimble artifact"));
  EXPECT_TRUE(contains(message_of([&] { open_model(folder / "m.txt"); }), "expected a header"));
  EXPECT_TRUE(contains(message_of([&] { open_model(folder / "none"); }), "none"));
}

TEST(ModelFile, FileWithoutConfigIsNotAModel) {
  const TempFolder folder;
  SafetensorsWriter writer;
  const float one = 1;
  writer.add("w", DType::f32, {1}, std::as_bytes(std::span(&one, 1)));
  PosixFileOps ops;
  writer.write(ops, folder / "w.safetensors", Existing::refuse, WithDigest::no);
  EXPECT_TRUE(contains(message_of([&] { open_model(folder / "w.safetensors"); }),
                       "has no model config: expected metadata thimble.config"));
}

TEST(ModelFile, ChangedByteIsDetected) {
  const TempFolder folder;
  write(folder / "model", sample_model());
  std::string bytes = folder.read("model");
  bytes[bytes.size() / 2] ^= 1;
  folder.write("model", bytes);
  EXPECT_THROW(open_model(folder / "model"), Error);
}

// A gigabyte of weights takes seconds to read and verify.
TEST(ModelFile, CanBeOpenedWithoutReadingItsWeights) {
  const TempFolder folder;
  PosixFileOps ops;
  ModelFile model = sample_model();
  const auto tokenizer = load_tokenizer("bytes:chat");
  model.tokenizer = TokenizerFile{.name = "bytes", .content = tokenizer->serialized()};
  const fs::path path = folder / "m.safetensors";
  write_model(ops, path, Existing::refuse, model, DType::f32);
  const ModelFile whole = open_model(path);
  std::string bytes = folder.read("m.safetensors");
  const SafetensorsFile file = SafetensorsFile::open(path);
  const std::span<const std::byte> weights = file.bytes(file.entries().front().name);
  const std::size_t at =
      bytes.find(std::string(reinterpret_cast<const char*>(weights.data()), weights.size()));
  ASSERT_NE(at, bytes.npos);
  bytes[at] ^= 1;
  folder.write("m.safetensors", bytes);
  EXPECT_TRUE(contains(message_of([&] { open_model(path); }), "checksum"));

  const ModelFile header = open_model(path, WeightsAs::none);
  EXPECT_TRUE(header.weights.empty());
  EXPECT_EQ(header.config, whole.config);
  EXPECT_EQ(header.tokenizer->content, whole.tokenizer->content);
  EXPECT_EQ(header.metadata, whole.metadata);
  ASSERT_EQ(header.tensors.size(), whole.tensors.size());
  for (std::size_t i = 0; i < header.tensors.size(); ++i)
    EXPECT_EQ(header.tensors[i].name, whole.tensors[i].name);
}

TEST(ModelFile, InvalidStepOrConfigIsAnError) {
  const TempFolder folder;
  write_checkpoint(folder / "a", sample_model(), "-1");
  EXPECT_TRUE(contains(message_of([&] { open_model(folder / "a"); }), "metadata thimble.step is '-1'"));
  SafetensorsWriter writer;
  writer.set_metadata(std::string(kConfigKey), "dim = \"wide\"");
  PosixFileOps ops;
  writer.write(ops, folder / "b", Existing::refuse, WithDigest::no);
  EXPECT_TRUE(contains(message_of([&] { open_model(folder / "b"); }), "b: thimble.config:1: "))
      << message_of([&] { open_model(folder / "b"); });
}

// 2^33 parameters declared in a file of a few hundred bytes.
TEST(ModelFile, ConfigCannotRequestMoreMemoryThanTheFileJustifies) {
  const TempFolder folder;
  SafetensorsWriter writer;
  writer.set_metadata(std::string(kConfigKey), "dim = 8192\nheads = 64\nlayers = 10\nvocab_size = 262144\n");
  PosixFileOps ops;
  writer.write(ops, folder / "m", Existing::refuse, WithDigest::no);
  EXPECT_TRUE(
      contains(message_of([&] { open_model(folder / "m"); }), "model.embed_tokens.weight is missing"));
}

TEST(StateDict, NeedsAConfigAndSupportsAPrefix) {
  const TempFolder folder;
  const ModelFile model = sample_model();
  const ParamTable table(model.config.model);
  SafetensorsWriter writer;
  add_state_dict(writer, table, "param.", model.weights);
  add_state_dict(writer, table, "grad.", model.weights);
  PosixFileOps ops;
  writer.write(ops, folder / "w", Existing::refuse, WithDigest::no);
  EXPECT_EQ(open_state_dict(folder / "w", model.config, "param.").weights, model.weights);
  const std::string message = message_of([&] { open_state_dict(folder / "w", model.config, ""); });
  EXPECT_TRUE(contains(message, "tok_emb.weight is missing")) << message;
  EXPECT_TRUE(contains(message, "grad.tok_emb.weight is not part of the model")) << message;
}

ModelFile open_toy(const std::filesystem::path& path, WeightsAs, const ProgressOutput&) {
  ModelFile file;
  file.path = path;
  file.format = "toy";
  return file;
}

bool is_toy(std::string_view first_bytes) {
  return first_bytes.starts_with("TOY!");
}

// Changes the last byte of a tensor.
void damage(const fs::path& path, const std::string& tensor) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::fstream bytes(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto data = static_cast<std::streamoff>(fs::file_size(path) - file.entries().back().end);
  bytes.seekp(data + static_cast<std::streamoff>(file.at(tensor).end) - 1);
  bytes.put('\x55');
}

TEST(Checkpoint, OnlyItsWeightsAreReadAndVerified) {
  const TempFolder folder;
  const ModelFile model = sample_model();
  const std::string first = ParamTable(model.config.model).all()[0].name;
  write_checkpoint(folder / "state", model, "5");
  damage(folder / "state", "optim.m." + first);
  EXPECT_EQ(open_model(folder / "state").weights, model.weights);
  EXPECT_THROW(open_model(folder / "state", WeightsAs::verified), Error);
  write_checkpoint(folder / "weights", model, "5");
  EXPECT_EQ(open_model(folder / "weights", WeightsAs::verified).weights, model.weights);
  damage(folder / "weights", first);
  EXPECT_THROW(open_model(folder / "weights"), Error);
  EXPECT_THROW(open_model(folder / "weights", WeightsAs::stored), Error);
}

TEST(Checkpoint, ReadingAndVerifyingShowProgress) {
  const TempFolder folder;
  write_checkpoint(folder / "model", sample_model(), "5");
  TickingProgress progress;
  open_model(folder / "model", WeightsAs::verified, progress.output());
  EXPECT_TRUE(progress.shows("reading")) << progress.lines;
  EXPECT_TRUE(progress.shows("verifying")) << progress.lines;
}

TEST(ModelKinds, NewKindNeedsOneRow) {
  const TempFolder folder;
  folder.write("model", "TOY!");
  folder.write("model.toy", "");
  std::vector<ModelKind> kinds(model_kinds().begin(), model_kinds().end());
  kinds.push_back({.what = "toy", .is_file = is_toy, .ending = ".toy", .open = open_toy});
  EXPECT_EQ(open_model(folder / "model", WeightsAs::floats, {}, kinds).format, "toy");
  EXPECT_EQ(open_model(folder / "model.toy", WeightsAs::floats, {}, kinds).format, "toy");
  EXPECT_NE(message_of([&] { open_model(folder / "model"); }), "");
}

}  // namespace
}  // namespace thimble::model_file_test
