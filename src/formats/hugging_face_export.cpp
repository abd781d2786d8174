#include "formats/hugging_face_export.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "formats/architecture.h"
#include "formats/fold.h"
#include "formats/hugging_face_write.h"
#include "formats/model_write.h"

namespace thimble {

namespace {

DType dtype_of_type(GgufType type) {
  check(type == GgufType::f32 || type == GgufType::bf16 || type == GgufType::f16,
        "safetensors hold f32, bf16 and f16, not {}", info_of(type).option);
  return type == GgufType::f32 ? DType::f32 : type == GgufType::bf16 ? DType::bf16 : DType::f16;
}

// Transformers has no loops, but layers enough; nothing else may stand in the way.
std::optional<FoldedModel> without_loop(const ModelFile& model) {
  ModelConfig plain = model.config.model;
  if (std::exchange(plain.loop_count, 0) == 0) return std::nullopt;
  check_for_hugging_face(plain);
  return unrolled_model(model);
}

}  // namespace

ExportReport export_hugging_face(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  const std::optional<FoldedModel> unrolled = without_loop(model);
  const HuggingFaceReport written =
      write_hugging_face(ops, request.path, request.existing, unrolled ? unrolled->model : model,
                         dtype_of_type(*request.type), request.inspect);
  ExportReport report{.format = "hf",
                      .architecture = written.architecture,
                      .type = *request.type,
                      .tensors = written.tensors,
                      .bytes = written.bytes,
                      .notes = written.notes};
  if (unrolled)
    for (const FoldStep& step : unrolled->steps) report.folded.push_back(step.line());
  return report;
}

ExportReport export_safetensors(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  write_model(ops, request.path, request.existing, model, dtype_of_type(*request.type), request.inspect);
  return {.format = "safetensors",
          .architecture = std::string(architecture_of(model.config.model)),
          .type = *request.type,
          .tensors = ParamTable(model.config.model).all().size(),
          .bytes = std::filesystem::file_size(request.path)};
}

}  // namespace thimble
