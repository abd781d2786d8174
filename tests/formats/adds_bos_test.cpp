// Whether bos precedes a text depends on how the model was trained, and is kept by every file
// format.
#include <gtest/gtest.h>

#include "formats/export.h"
#include "formats/gguf_tokenizer.h"
#include "formats/pack_model.h"
#include "formats/small_export.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "tokenizer/bpe_tokenizer.h"

namespace thimble::adds_bos_test {
namespace {

ModelFile with_tokenizer(const Tokenizer& tokenizer) {
  ModelFile model = small_export("llama");
  model.layout.clear();
  model.tokenizer =
      TokenizerFile{.name = "tokenizer", .content = tokenizer.serialized(), .special = tokenizer.special()};
  return model;
}

// Defines bos, but does not add it to texts, like the tokenizer files of GPT-2 and Qwen.
ModelFile without_added_bos() {
  const auto bytes = make_bytes_tokenizer({"<bos>"});
  BpeSpec spec = dynamic_cast<const BpeTokenizer&>(*bytes).spec();
  spec.post_processor = {};
  return with_tokenizer(*make_bpe_tokenizer(spec));
}

ModelFile with_pieces() {
  GgufVocabulary vocabulary{.model = "llama", .pre = "default", .tokens = {"<unk>", "<s>", "</s>"}};
  vocabulary.types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    vocabulary.types.push_back(6);
  }
  vocabulary.scores.resize(vocabulary.tokens.size());
  vocabulary.special = {.bos = 1, .eos = 2, .unk = 0, .pad = {}};
  vocabulary.add_space_prefix = false;
  return with_tokenizer(*tokenizer_from_gguf(vocabulary));
}

void expect_everywhere(const ModelFile& model, bool adds_bos) {
  const TempFolder folder;
  PosixFileOps ops;
  ASSERT_EQ(open_tokenizer(model)->adds_bos(), adds_bos);
  for (const ExportFormat& format : export_formats()) {
    if (format.adapters) continue;
    const auto path = folder / format.name;
    export_model(ops, model, format, {.path = path, .type = GgufType::f32});
    EXPECT_EQ(open_tokenizer(open_model(path))->adds_bos(), adds_bos) << format.name;
  }
  const auto path = folder / "packed.thimble";
  write_file(ops, path, pack_model(model, {}, ProgressOutput::nowhere()).bytes, Existing::refuse);
  EXPECT_EQ(open_tokenizer(open_model(path))->adds_bos(), adds_bos) << "artifact";
  // An artifact exported to another format keeps it, too.
  export_model(ops, open_model(path), "safetensors", {.path = folder / "again"});
  EXPECT_EQ(open_tokenizer(open_model(folder / "again"))->adds_bos(), adds_bos)
      << "exported from an artifact";
}

TEST(AddsBos, AlwaysForModelsTrainedByThimble) {
  ModelFile model = without_added_bos();
  model.step = 100;
  expect_everywhere(model, true);
}

TEST(AddsBos, FollowsTheTokenizerFileForImportedModels) {
  expect_everywhere(without_added_bos(), false);
  expect_everywhere(small_export("llama"), true);
}

TEST(AddsBos, FollowsTheFileForSentencePieceTokenizers) {
  ModelFile model = with_pieces();
  expect_everywhere(model, true);
  model.tokenizer->adds_bos = false;  // tokenizer.ggml.add_bos_token, or Transformers' add_bos_token
  expect_everywhere(model, false);
}

ExportReport write_without_bos(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  ModelFile other = model;
  other.tokenizer->adds_bos = false;
  return export_format("safetensors").write(ops, other, request);
}

TEST(AddsBos, AnExportThatChangesItIsNotWritten) {
  const TempFolder folder;
  PosixFileOps ops;
  const ExportFormat changes_bos{"changes_bos", "", {GgufType::f32}, write_without_bos};
  EXPECT_EQ(
      message_of([&] { export_model(ops, small_export("llama"), changes_bos, {.path = folder / "m"}); }),
      "the export does not match source and was not written: the exported tokenizer puts no bos before a "
      "text");
  EXPECT_TRUE(folder.files().empty());
}

}  // namespace
}  // namespace thimble::adds_bos_test
