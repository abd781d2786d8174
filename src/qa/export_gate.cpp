#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "formats/export_model.h"
#include "qa/subject.h"
#include "qa/temporary_folder.h"

namespace thimble {

namespace {

namespace fs = std::filesystem;

// Latin letters and single blanks: what no normaliser changes.
constexpr std::string_view kSample = "the quick brown fox jumps over 12 lazy dogs";

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

GateOutcome compare(const ExportFormat& format, Subject& subject, const fs::path& path) {
  const ModelFile back = open_model(path);
  const double difference = logit_difference(subject.file, back);
  if (!(difference <= kExactDifference))
    return failed("{}: what is read back computes other logits: {:.2g} apart", format.name, difference);
  const Tokenizer* tokenizer = subject.tokenizer();
  const auto tokenizer_back = open_tokenizer(back);
  if ((tokenizer != nullptr) != (tokenizer_back != nullptr))
    return failed("{}: the tokenizer did not come back", format.name);
  if (tokenizer && tokenizer->encode(kSample) != tokenizer_back->encode(kSample))
    return failed("{}: what is read back encodes a text differently", format.name);
  return passed("{}: logits {:.2g} apart{}", format.name, difference,
                tokenizer ? ", same ids of a text" : "");
}

}  // namespace

GateOutcome export_gate(Subject& subject) {
  const TemporaryFolder folder;
  std::string reasons;
  for (const std::string_view name : {"gguf", "safetensors"})
    for (const ExportFormat& format : export_formats()) {
      if (format.name != name) continue;
      const fs::path path = folder.path() / name;
      const std::string reason = refusal(format, subject.file, path);
      if (reason.empty()) {
        GateOutcome outcome = compare(format, subject, path);
        outcome.detail += reasons;
        return outcome;
      }
      reasons += fmt::format("; {} refused: {}", name, reason);
    }
  return failed("it cannot be written in any format{}", reasons);
}

}  // namespace thimble
