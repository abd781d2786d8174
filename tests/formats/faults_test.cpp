// Every writer of models, on a disk where each operation fails in turn.
#include "formats/export.h"
#include "formats/hugging_face_write.h"
#include "formats/int8_state.h"
#include "formats/npz.h"
#include "formats/pack_model.h"
#include "formats/small_export.h"
#include "formats/trace.h"
#include "formats/weights_file.h"
#include "support/every_fault.h"
#include "support/message_of.h"
#include "support/temp_folder.h"

namespace thimble::faults_test {
namespace {

namespace fs = std::filesystem;

ModelFile small_model() {
  return small_export("llama", {"layers=1", "dim=32", "heads=2", "kv_heads=1", "mlp_hidden=32", "context=8"});
}

// Writes a file or a folder to `path`.
using Write = std::function<void(FileOps& ops, const fs::path& path, const ModelFile& model)>;

struct Writer {
  std::string name;
  Write write;
  bool exchanges = true;
  int every = 1;
};

void PrintTo(const Writer& writer, std::ostream* out) {
  *out << writer.name;
}

Write exports(std::string_view format, GgufType type) {
  return [=](FileOps& ops, const fs::path& path, const ModelFile& model) {
    export_model(ops, model, format, {.path = path, .existing = Existing::replace, .type = type});
  };
}

Write bytes(std::string (*make)(const ModelFile& model)) {
  return [=](FileOps& ops, const fs::path& path, const ModelFile& model) {
    write_file(ops, path, make(model), Existing::replace);
  };
}

void folder(FileOps& ops, const fs::path& path, const ModelFile& model) {
  write_hugging_face(ops, path, Existing::replace, model, DType::f32);
}

void trace(FileOps& ops, const fs::path& path, const ModelFile& file) {
  const Context context;
  Model model = make_model(file, context, DType::f32);
  const TraceTokens tokens{.dims = {1, 3}, .input = {1, 2, 3}, .target = {2, 3, -1}, .doc_start = {}};
  write_trace(ops, path, model, tokens, {.gradients = true, .existing = Existing::replace});
}

std::string artifact(const ModelFile& model) {
  return pack_model(model, {}, ProgressOutput::nowhere()).bytes;
}

std::string npz(const ModelFile& model) {
  return npz_of(ParamTable(model.config.model), model.weights);
}

std::string state_dict(const ModelFile& model) {
  return torch_state_dict(ParamTable(model.config.model), model.weights);
}

std::vector<Writer> every_writer() {
  return {
      {"Safetensors", exports("safetensors", GgufType::f32), true, 2},
      {"Gguf", exports("gguf", GgufType::q8_0), true, 2},
      {"HuggingFace", exports("hf", GgufType::bf16), true, 19},
      {"HuggingFaceFolder", folder, true, 5},
      {"HuggingFaceFolderWithoutExchange", folder, false, 5},
      {"Trace", trace},
      {"Artifact", bytes(artifact)},
      {"Npz", bytes(npz)},
      {"StateDict", bytes(state_dict)},
      {"TokenizerFile", bytes([](const ModelFile& model) { return model.tokenizer->content; })},
  };
}

class EveryModelWriter : public testing::TestWithParam<Writer> {
 protected:
  // A replaced folder whose parent could not be flushed keeps the old folder until the next
  // attempt.
  void expect_survives(const fs::path& path) const {
    const ModelFile model = small_model();
    const Writer& writer = GetParam();
    expect_survives_every_fault({.folder = folder_.path(),
                                 .write = [&](FileOps& ops) { writer.write(ops, path, model); },
                                 .named = "tale",
                                 .may_stay = {".tale.new/", ".tale.old/"},
                                 .exchanges = writer.exchanges,
                                 .every = writer.every,
                                 .power_states = 4});
  }

  TempFolder folder_;
};

TEST_P(EveryModelWriter, LeavesNothingOrTheCompleteNewFile) {
  expect_survives(folder_ / "tale");
}

TEST_P(EveryModelWriter, LeavesTheCompleteOldOrNewFile) {
  ModelFile old = small_model();
  for (float& weight : old.weights) weight *= 0.5f;
  PosixFileOps ops;
  GetParam().write(ops, folder_ / "tale", old);
  expect_survives(folder_ / "tale");
}

// Without an atomic exchange of names, a kill can leave the old folder under a temporary name only.
TEST(AtomicFolderFaults, InterruptedReplacementIsRestored) {
  const TempFolder place;
  PosixFileOps ops;
  folder(ops, place / "tale", small_model());
  const auto whole = place.files();
  fs::rename(place / "tale", place / ".tale.old");
  EXPECT_NE(message_of([&] {
              write_hugging_face(ops, place / "tale", Existing::refuse, small_model(), DType::f32);
            }).find("already exists"),
            std::string::npos);
  EXPECT_EQ(place.files(), whole);
}

INSTANTIATE_TEST_SUITE_P(Faults, EveryModelWriter, testing::ValuesIn(every_writer()),
                         [](const auto& writer) { return writer.param.name; });

}  // namespace
}  // namespace thimble::faults_test
