#include "formats/gguf_export.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/joined.h"
#include "formats/fold_gguf.h"
#include "formats/gguf_model.h"
#include "formats/gguf_tokenizer.h"

namespace thimble {

namespace {

ModelConfig without_softcap(ModelConfig config) {
  config.logit_softcap = 0;
  return config;
}

// A llama, qwen2 or qwen3; one with a cap without it, if that was asked for.
ExportedModel plain_model(const ModelFile& model, std::string_view architecture, bool drop_softcap) {
  const double cap = model.config.model.logit_softcap;
  if (cap == 0) return exported_model(model);
  check(drop_softcap, Hint{"--drop-softcap leaves it out: greedy text stays, probabilities change"},
        "llama.cpp's {} has no logit_softcap (here {}); nothing else keeps this model from being one",
        architecture, cap);
  ModelFile capless = model;
  capless.config.model = without_softcap(model.config.model);
  ExportedModel exported = exported_model(capless);
  exported.folded.push_back(softcap_dropped(cap).line());
  return exported;
}

}  // namespace

ExportReport export_gguf(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  const std::string_view own = gguf_architecture(without_softcap(model.config.model)),
                         wanted = request.architecture;
  const bool plain = !own.empty() && (wanted.empty() || wanted == own);
  check(plain || wanted.empty() || is_folded_architecture(wanted), "expected a {}, found {}", wanted,
        own.empty() ? "none of llama, qwen2 and qwen3" : fmt::format("a {}", own));
  const ExportedModel exported =
      plain ? plain_model(model, own, request.drop_softcap)
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
                                       joined(written.fallbacks, ", "), info_of(*request.type).name));
  return report;
}

}  // namespace thimble
