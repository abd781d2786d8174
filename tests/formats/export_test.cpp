// Every export is read back and compared with its source.
#include "formats/export.h"

#include <csignal>

#include "base/file_ops.h"
#include "formats/small_export.h"
#include "support/message_of.h"
#include "support/temp_folder.h"
#include "support/ticking_progress.h"

namespace thimble {
namespace {

ExportReport exported(const ModelFile& model, const std::filesystem::path& path, GgufType type) {
  PosixFileOps ops;
  return export_model(ops, model, "gguf", {.path = path, .type = type});
}

TEST(ExportModel, MeasuresTheRoundingErrorOfEveryType) {
  const TempFolder folder;
  const ModelFile model = small_export("llama");
  double before = 0;
  for (const GgufType type : {GgufType::f16, GgufType::bf16, GgufType::q8_0, GgufType::q4_0}) {
    const ExportReport report = exported(model, folder / info_of(type).name, type);
    EXPECT_GT(report.difference, 0) << info_of(type).name;
    EXPECT_NEAR(report.tolerance, 2 * report.difference + kExactDifference, 1e-6) << info_of(type).name;
    EXPECT_GT(report.tolerance, before) << "types are in order of precision";
    before = report.tolerance;
  }
  const ExportReport report = exported(model, folder / "f32", GgufType::f32);
  EXPECT_EQ(report.difference, 0);
  EXPECT_EQ(report.tolerance, kExactDifference);
  EXPECT_EQ(report.bytes, std::filesystem::file_size(folder / "f32"));
  EXPECT_EQ(report.architecture, "llama");
  EXPECT_TRUE(report.folded.empty());
}

// A mix has several types of matrices; the tolerance is measured with the same ones. Rows of 64
// numbers have other types than rows of 256.
TEST(ExportModel, MeasuresTheRoundingErrorOfMixes) {
  const TempFolder folder;
  for (const bool tied : {false, true}) {
    const ModelFile model =
        small_export("llama", {"mlp_hidden=256", tied ? "tie_embeddings=true" : "tie_embeddings=false"});
    double before = 0;
    for (const GgufType type : {GgufType::q6_k, GgufType::q5_k, GgufType::q4_k}) {
      const std::string name = gguf_export_name(type) + (tied ? "-tied" : "");
      const ExportReport report = exported(model, folder / name, type);
      EXPECT_GT(report.difference, before) << name;
      EXPECT_NEAR(report.tolerance, 2 * report.difference + kExactDifference, 1e-6) << name;
      before = report.difference;
    }
  }
}

TEST(ExportModel, ToleranceIsMeasuredWithoutADroppedSoftcap) {
  const TempFolder folder;
  PosixFileOps ops;
  const ModelFile model = small_export("llama", {"logit_softcap=0.5"});
  const ExportReport report =
      export_model(ops, model, "gguf", {.path = folder / "m", .type = GgufType::q8_0, .drop_softcap = true});
  EXPECT_GT(report.difference, 0);
  EXPECT_NEAR(report.tolerance, 2 * report.difference + kExactDifference, 1e-6);
}

// The matrices already have the type, so only the vectors are rounded.
TEST(ExportModel, FormatsThatRoundVectorsTolerateIt) {
  const TempFolder folder;
  PosixFileOps ops;
  for (const char* preset : {"llama", "qwen2", "qwen3"}) {
    exported(small_export(preset), folder / preset, GgufType::bf16);
    const ModelFile model = open_model(folder / preset);
    for (const std::string format : {"hf", "safetensors"}) {
      const ExportReport report =
          export_model(ops, model, format, {.path = folder / (preset + format), .type = GgufType::bf16});
      EXPECT_GT(report.difference, kExactDifference);
      EXPECT_NEAR(report.tolerance, 2 * report.difference + kExactDifference, 1e-6) << preset << format;
    }
  }
}

TEST(ExportModel, OppositeRotationIsFoldedExactly) {
  const TempFolder folder;
  for (const char* preset : {"llama", "qwen2", "qwen3"}) {
    const ExportReport report =
        exported(small_export(preset, {"rope_direction=-1"}), folder / preset, GgufType::f32);
    EXPECT_EQ(report.architecture, preset);
    EXPECT_EQ(report.folded.size(), 1u);
    EXPECT_LT(report.difference, 1e-6);
  }
}

TEST(ExportModel, LoopIsUnrolled) {
  const TempFolder folder;
  PosixFileOps ops;
  for (const char* preset : {"llama", "qwen2", "qwen3"})
    for (const char* format : {"gguf", "hf"}) {
      const ModelFile model =
          small_export(preset, {"layers=3", "loop_first=1", "loop_last=2", "loop_count=2", "loop_on=true"});
      const std::filesystem::path to = folder / fmt::format("{}.{}", preset, format);
      const ExportReport report = export_model(ops, model, format, {.path = to, .type = GgufType::f32});
      EXPECT_EQ(report.architecture, preset) << format;
      ASSERT_EQ(report.folded.size(), 1u) << format;
      EXPECT_EQ(report.folded[0], "loop_count = 2 -> 7 layers, one for each pass: exact");
      EXPECT_LT(report.difference, 1e-6) << preset << format;
      const ModelConfig written = open_model(to).config.model;
      EXPECT_EQ(written.layers, 7);
      EXPECT_EQ(written.loop_count, 0);
    }
  const ModelFile other =
      small_export("qwen3", {"layers=3", "loop_last=1", "loop_count=1", "logit_softcap=15"});
  EXPECT_EQ(
      message_of([&] { export_model(ops, other, "hf", {.path = folder / "no", .type = GgufType::f32}); }),
      "none of Transformers' llama, mistral, qwen2, qwen3, smollm3, phi3, gemma2, gemma3, gpt2 can express "
      "this model: logit_softcap = 15.0");
}

ExportReport write_another(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  ModelFile other = model;
  other.weights[5] += 1;
  return export_format("gguf").write(ops, other, request);
}

ExportReport write_nonsense(FileOps& ops, const ModelFile&, const ExportRequest& request) {
  AtomicFile file(ops, request.path, request.existing);
  file.write("GGUF, really");
  request.inspect(file.temporary());
  file.commit();
  return {.format = "nonsense", .architecture = "none", .type = GgufType::f32};
}

TEST(ExportModel, ExportWithOtherLogitsIsNotWritten) {
  const TempFolder folder;
  PosixFileOps ops;
  const ModelFile model = small_export("llama");
  const ExportFormat wrong{"wrong", "", {GgufType::f32}, write_another};
  const std::string error = message_of([&] { export_model(ops, model, wrong, {.path = folder / "m"}); });
  EXPECT_NE(error.find("does not reproduce source and was not written"), std::string::npos) << error;
  EXPECT_TRUE(folder.files().empty());
}

ExportReport write_other_tokens(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  ModelFile other = model;
  const auto tokenizer = make_bytes_tokenizer({"<bos>"});
  other.tokenizer->content = tokenizer->serialized();
  other.layout.clear();
  return export_format("gguf").write(ops, other, request);
}

ExportReport write_no_tokens(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  ModelFile other = model;
  other.tokenizer.reset();
  other.layout.clear();
  return export_format("gguf").write(ops, other, request);
}

TEST(ExportModel, ExportWithAnotherTokenizerIsNotWritten) {
  const TempFolder folder;
  PosixFileOps ops;
  const ModelFile model = small_export("llama");
  const ExportFormat others{"others", "", {GgufType::f32}, write_other_tokens},
      none{"none", "", {GgufType::f32}, write_no_tokens};
  EXPECT_EQ(message_of([&] { export_model(ops, model, others, {.path = folder / "m"}); }),
            "the export does not match source and was not written: the exported tokenizer encodes a text "
            "differently");
  EXPECT_EQ(
      message_of([&] { export_model(ops, model, none, {.path = folder / "m"}); }),
      "the export does not match source and was not written: only one of the two models has a tokenizer");
  EXPECT_TRUE(folder.files().empty());
}

TEST(ExportModel, WritingAndReadingBackShowProgress) {
  const TempFolder folder;
  PosixFileOps ops;
  for (const ExportFormat& format : export_formats()) {
    if (format.adapters) continue;
    TickingProgress progress;
    export_model(ops, small_export("llama"), format.name,
                 {.path = folder / std::string(format.name), .progress = progress.output()});
    EXPECT_TRUE(progress.shows("writing")) << format.name << ": " << progress.lines;
    EXPECT_TRUE(progress.shows("reading")) << format.name << ": " << progress.lines;
    EXPECT_TRUE(progress.shows("comparing")) << format.name << ": " << progress.lines;
  }
}

TEST(ExportModel, OllamaGetsAGgufAndAModelfile) {
  const TempFolder folder;
  PosixFileOps ops;
  const ModelFile model = small_export("llama");
  export_model(ops, model, "ollama", {.path = folder / "m", .type = GgufType::q8_0});
  EXPECT_EQ(folder.files(), (std::vector<std::string>{"m/Modelfile", "m/model.gguf"}));
  const std::string modelfile = folder.read("m/Modelfile");
  EXPECT_NE(modelfile.find("FROM ./model.gguf\n"), modelfile.npos);
  EXPECT_NE(modelfile.find(fmt::format("num_ctx {}\n", model.config.model.context)), modelfile.npos);
  EXPECT_EQ(modelfile.find("TEMPLATE") != modelfile.npos, model.layout.empty());
  EXPECT_EQ(open_model(folder / "m").config.model.dim, model.config.model.dim);

  const ExportRequest again{.path = folder / "m", .existing = Existing::replace};
  export_model(ops, model, "ollama", again);
  folder.write("m/diary.txt", "");
  EXPECT_THROW(export_model(ops, model, "ollama", again), Error);
}

TEST(ExportModel, CtrlCLeavesNothing) {
  const ModelFile model = small_export("llama");
  PosixFileOps disk;
  for (const ExportFormat& format : export_formats()) {
    if (format.adapters) continue;
    const TempFolder folder;
    const Interrupt interrupt;
    InterruptibleFileOps ops(disk, interrupt);
    std::raise(SIGINT);
    EXPECT_THROW(export_model(ops, model, format, {.path = folder / "m"}), Interrupted) << format.name;
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << format.name;
    // Interrupted while logits are compared: nothing is left.
    EXPECT_THROW(export_model(disk, model, format, {.path = folder / "m", .interrupt = &interrupt}),
                 Interrupted);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << format.name;
  }
}

TEST(ExportModel, ValueTooLargeForTheTypeNamesItsTensor) {
  const TempFolder folder;
  PosixFileOps ops;
  ModelFile model = small_export("llama");
  model.weights[0] = 1e6f;
  for (const ExportFormat& format : export_formats()) {
    if (format.adapters) continue;
    const std::string error =
        message_of([&] { export_model(ops, model, format, {.path = folder / "m", .type = GgufType::f16}); });
    EXPECT_NE(error.find("embd"), error.find("embed_tokens")) << format.name << ": " << error;
  }
}

TEST(ExportModel, SoftcapCanBeDropped) {
  const TempFolder folder;
  PosixFileOps ops;
  for (const char* preset : {"llama", "qwen2", "qwen3"}) {
    const ModelFile model = small_export(preset, {"logit_softcap=15"});
    EXPECT_EQ(message_of([&] { exported(model, folder / preset, GgufType::f32); }),
              fmt::format("llama.cpp's {} has no logit_softcap, this model has 15", preset));
    const ExportReport report = export_model(
        ops, model, "gguf", {.path = folder / preset, .type = GgufType::f32, .drop_softcap = true});
    EXPECT_EQ(report.architecture, preset);
    ASSERT_EQ(report.folded.size(), 1u);
    EXPECT_TRUE(report.folded[0].starts_with("logit_softcap = 15 -> dropped: greedy text is unchanged"));
    EXPECT_EQ(open_model(folder / preset).config.model.logit_softcap, 0);
  }
}

TEST(ExportModel, UnreadableExportIsNotWritten) {
  const TempFolder folder;
  PosixFileOps ops;
  const ExportFormat broken{"broken", "", {GgufType::f32}, write_nonsense};
  EXPECT_THROW(export_model(ops, small_export("llama"), broken, {.path = folder / "m"}), Error);
  EXPECT_TRUE(folder.files().empty());
}

TEST(ExportModel, ExistingFileIsKeptUntilAGoodExportReplacesIt) {
  const TempFolder folder;
  PosixFileOps ops;
  const ModelFile model = small_export("llama");
  exported(model, folder / "m", GgufType::f32);
  const std::string before = read_file(folder / "m", 1 << 24);
  for (const auto write : {write_another, write_nonsense}) {
    const ExportFormat bad{"bad", "", {GgufType::f32}, write};
    EXPECT_THROW(export_model(ops, model, bad, {.path = folder / "m", .existing = Existing::replace}), Error);
    EXPECT_EQ(read_file(folder / "m", 1 << 24), before);
  }
  EXPECT_EQ(folder.files().size(), 1u);
}

TEST(ExportModel, NanLogitsNeverPass) {
  const TempFolder folder;
  ModelFile model = small_export("llama");
  model.weights[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(exported(model, folder / "m", GgufType::f32), Error);
  EXPECT_TRUE(folder.files().empty());
}

TEST(ExportModel, NeverOverwritesWithoutRequest) {
  const TempFolder folder;
  folder.write("m", "mine");
  EXPECT_THROW(exported(small_export("llama"), folder / "m", GgufType::f32), Error);
  EXPECT_EQ(folder.read("m"), "mine");
}

TEST(ExportModel, UnknownFormatsAndTypesAreRejected) {
  const TempFolder folder;
  PosixFileOps ops;
  EXPECT_EQ(message_of([&] { export_model(ops, small_export("llama"), "onnx", {.path = folder / "m"}); }),
            "unknown export format 'onnx'");
  const ExportFormat narrow{"narrow", "", {GgufType::f16}, export_format("gguf").write};
  EXPECT_EQ(message_of([&] {
              export_model(ops, small_export("llama"), narrow,
                           {.path = folder / "m", .type = GgufType::q8_0});
            }),
            "export format narrow does not support type q8_0");
}

TEST(ExportModel, RowsThatDoNotFitBlocksAreNoted) {
  const TempFolder folder;
  const ExportReport report =
      exported(small_export("qwen3", {"mlp_hidden=72"}), folder / "m", GgufType::q8_0);
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_EQ(report.notes[0],
            "blk.0.ffn_down.weight, blk.1.ffn_down.weight: the row length is not a multiple of the block "
            "size of Q8_0, stored as F16");
}

}  // namespace
}  // namespace thimble
