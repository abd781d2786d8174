// The model that gates look at, opened once.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "formats/model_file.h"
#include "qa/gates.h"
#include "qa/model_facts.h"
#include "tensor/context.h"

namespace thimble {

class Subject {
 public:
  Subject(const QaRequest& request, const ProgressOutput& progress, const Interrupt* interrupt)
      : request(request),
        progress(progress),
        interrupt(interrupt),
        file(open_model(request.model)),
        context_(request.device) {}

  const QaRequest& request;
  const ProgressOutput& progress;
  const Interrupt* interrupt;
  ModelFile file;

  // nullptr: it has none. Throws for one that does not belong to the model.
  const Tokenizer* tokenizer();
  // In f32, so that rounding cannot hide anything.
  Model& exact();
  // In what training and evaluation compute in here.
  Model& usual();

  const std::string* find_metadata(std::string_view key) const { return thimble::find_metadata(file, key); }

 private:
  Context context_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<Model> exact_, usual_;
};

template <class... Args>
GateOutcome passed(fmt::format_string<Args...> detail, Args&&... args) {
  return {GateStatus::passed, fmt::format(detail, std::forward<Args>(args)...)};
}
template <class... Args>
GateOutcome failed(fmt::format_string<Args...> detail, Args&&... args) {
  return {GateStatus::failed, fmt::format(detail, std::forward<Args>(args)...)};
}
template <class... Args>
GateOutcome skipped(fmt::format_string<Args...> detail, Args&&... args) {
  return {GateStatus::skipped, fmt::format(detail, std::forward<Args>(args)...)};
}

// What a file holds (file_gates.cpp) ...
GateOutcome integrity_gate(Subject& subject);
GateOutcome metadata_gate(Subject& subject);
GateOutcome tokenizer_gate(Subject& subject);
GateOutcome tensors_gate(Subject& subject);
GateOutcome chat_gate(Subject& subject);
// ... what it computes (compute_gates.cpp) ...
GateOutcome logits_gate(Subject& subject);
GateOutcome decode_gate(Subject& subject);
GateOutcome golden_gate(Subject& subject);
GateOutcome bpb_gate(Subject& subject);
GateOutcome throughput_gate(Subject& subject);
// ... and what becomes of it elsewhere (export_gate.cpp).
GateOutcome export_gate(Subject& subject);

// The verdicts of two of them by themselves, for what no file can be made to do: logits of rows of V, computed in two
// ways, and a file that was written as the subject.
GateOutcome decode_verdict(std::span<const float> at_once, std::span<const float> one_by_one, std::size_t V);
GateOutcome export_verdict(std::string_view format, Subject& subject, const std::filesystem::path& path);

}  // namespace thimble
