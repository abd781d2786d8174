#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/temporary_folder.h"
#include "formats/export_model.h"
#include "qa/subject.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

// Empty: written. Else why the format does not take this model.
std::string refusal(const ExportFormat& format, const ModelFile& model, const fs::path& path) {
  PosixFileOps ops;
  try {
    format.write(ops, model, {.path = path, .type = GgufType::f32});
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

GateOutcome export_verdict(std::string_view format, Subject& subject, const fs::path& path) {
  const ModelFile back = open_model(path);
  const double difference = logit_difference(subject.file, back);
  if (!(difference <= kExactDifference))
    return failed("{}: what is read back computes other logits: {:.2g} apart", format, difference);
  if (const std::string wrong = tokenizer_difference(subject.file, back); !wrong.empty())
    return failed("{}: {}", format, wrong);
  return passed("{}: logits {:.2g} apart{}", format, difference,
                back.tokenizer ? ", same ids of a text" : "");
}

GateOutcome export_gate(Subject& subject) {
  const TemporaryFolder folder;
  std::string reasons;
  for (const std::string_view name : {"gguf", "safetensors"})
    for (const ExportFormat& format : export_formats()) {
      if (format.name != name) continue;
      const fs::path path = folder.path() / name;
      const std::string reason = refusal(format, subject.file, path);
      if (reason.empty()) {
        GateOutcome outcome = export_verdict(name, subject, path);
        outcome.detail += reasons;
        return outcome;
      }
      reasons += fmt::format("; {} refused: {}", name, reason);
    }
  return failed("it cannot be written in any format{}", reasons);
}

}  // namespace thimble
