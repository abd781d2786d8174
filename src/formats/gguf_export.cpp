#include "formats/gguf_export.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "formats/fold_gguf.h"
#include "formats/gguf_model.h"
#include "formats/gguf_tokenizer.h"

namespace thimble {

ExportReport export_gguf(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  const std::string_view own = gguf_architecture(model.config.model), wanted = request.architecture;
  const bool plain = !own.empty() && (wanted.empty() || wanted == own);
  check(plain || wanted.empty() || is_folded_architecture(wanted), "this model is {}, not a {}",
        own.empty() ? "none of llama, qwen2 and qwen3" : fmt::format("a {}", own), wanted);
  const ExportedModel exported =
      plain ? exported_model(model)
            : exported_model(fold_model(model, {request.architecture, request.drop_softcap}));
  ExportReport report{.format = "gguf", .architecture = exported.architecture, .type = *request.type};
  const GgufSettings tokenizer = gguf_tokenizer_settings(model, report.notes);
  const GgufReport written =
      write_gguf(ops, request.path, request.existing, exported, tokenizer, *request.type, request.inspect);
  report.tensors = written.tensors;
  report.bytes = written.bytes;
  report.folded = exported.folded;
  if (!written.fallbacks.empty())
    report.notes.push_back(fmt::format("rows of {} are no whole blocks of {}: F16 instead",
                                       fmt::join(written.fallbacks, ", "), info_of(*request.type).name));
  return report;
}

}  // namespace thimble
