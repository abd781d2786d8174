#include "formats/gguf_export.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/joined.h"
#include "formats/fold_gguf.h"
#include "formats/gguf_model.h"
#include "formats/gguf_tokenizer.h"

namespace thimble {

namespace {

// A cap can be dropped; and a llama that goes through layers again is one that has more of them.
ModelConfig without_cap_and_loop(ModelConfig config) {
  config.logit_softcap = 0;
  config.loop_first = config.loop_last = config.loop_count = 0;
  return config;
}

// A llama, qwen2 or qwen3; one with a cap without it, if that was asked for.
ExportedModel plain_model(const ModelFile& model, std::string_view architecture, bool drop_softcap) {
  const double cap = model.config.model.logit_softcap;
  if (cap == 0 && model.config.model.loop_count == 0) return exported_model(model);
  check(cap == 0 || drop_softcap,
        Hint{"--drop-softcap leaves it out: greedy text stays, probabilities change"},
        "llama.cpp's {} has no logit_softcap (here {}); nothing else keeps this model from being one",
        architecture, cap);
  FoldedModel plain = unrolled_model(model);
  plain.model.config.model.logit_softcap = 0;
  if (cap > 0) plain.steps.push_back(softcap_dropped(cap));
  ExportedModel exported = exported_model(plain.model);
  for (const FoldStep& step : plain.steps) exported.folded.push_back(step.line());
  return exported;
}

}  // namespace

ExportReport export_gguf(FileOps& ops, const ModelFile& model, const ExportRequest& request) {
  const std::string_view own = gguf_architecture(without_cap_and_loop(model.config.model)),
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
