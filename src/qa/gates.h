// Gates: checks that a model must pass before release. Each gate is one function in a table.
//
//   const QaReport report = run_gates({.model = "runs/chat-1"}, progress, &interrupt);
//   report.passed()          no gate failed, and at least `require` gates were executed
//
// The result of a gate is passed, failed or skipped, with a sentence that gives the reason. Skipped
// gates do not count as executed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "base/signals.h"
#include "formats/adapters.h"
#include "formats/model_file.h"
#include "qa/model_facts.h"
#include "tensor/device.h"

namespace thimble {

enum class GateStatus { passed, failed, skipped };
std::string_view name_of(GateStatus status);

struct GateOutcome {
  GateStatus status;
  std::string detail;
};

struct QaRequest {
  std::filesystem::path model;
  std::vector<NamedAdapter> adapters = {};
  std::filesystem::path data = {};                        // for bits per byte; empty: none
  std::optional<double> min_tokens_per_second = {};       // minimum decoding speed
  std::vector<std::string> skipped = {};                  // names of gates to skip
  std::int64_t require = 1;                               // minimum number of executed gates
  std::shared_ptr<DeviceRuntime> device = cpu_runtime();  // computes the gates
};

class Subject;

struct Gate {
  std::string_view name;
  std::string_view what;  // for the help text: "all digests match"
  // An exception counts as failed; its message is the detail.
  GateOutcome (*run)(Subject& subject);
};
std::span<const Gate> all_gates();  // in execution order

struct GateResult {
  std::string_view name;
  GateStatus status;
  std::string detail;
  double seconds = 0;
};

struct QaReport {
  std::vector<GateResult> gates;
  std::int64_t required = 0;

  std::int64_t count(GateStatus status) const;
  std::int64_t executed() const { return count(GateStatus::passed) + count(GateStatus::failed); }
  bool passed() const { return count(GateStatus::failed) == 0 && executed() >= required; }
};

// Throws Error for an unknown name in `skipped`. If the model cannot be opened, the first gate
// fails and all others are skipped.
QaReport run_gates(const QaRequest& request, const ProgressOutput& progress,
                   const Interrupt* interrupt = nullptr);

// The model under test, opened once for all gates.
class Subject {
 public:
  Subject(const QaRequest& request, const ProgressOutput& progress, const Interrupt* interrupt)
      : request(request),
        progress(progress),
        interrupt(interrupt),
        file(open_adapted(request.model, request.adapters, WeightsAs::verified, progress)),
        context_(request.device) {}

  const QaRequest& request;
  const ProgressOutput& progress;
  const Interrupt* interrupt;
  ModelFile file;

  // nullptr if the model has none. Throws Error if the tokenizer does not match the model.
  const Tokenizer* tokenizer();
  // Computes in f32, for comparisons that rounding must not affect.
  Model& f32_model();
  // Computes in the default dtype of this machine, like training and evaluation.
  Model& default_model();

  const std::string* find_metadata(std::string_view key) const { return thimble::find_metadata(file, key); }

 private:
  Context context_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<Model> f32_model_, default_model_;
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

// The content of the file:
GateOutcome integrity_gate(Subject& subject);
GateOutcome metadata_gate(Subject& subject);
GateOutcome tokenizer_gate(Subject& subject);
GateOutcome tensors_gate(Subject& subject);
GateOutcome chat_gate(Subject& subject);
// The output of the model:
GateOutcome logits_gate(Subject& subject);
GateOutcome decode_gate(Subject& subject);
GateOutcome golden_gate(Subject& subject);
GateOutcome bpb_gate(Subject& subject);
GateOutcome throughput_gate(Subject& subject);
// The model after export:
GateOutcome export_gate(Subject& subject);

// The comparisons of decode_gate and export_gate, separate so that tests can make them fail:
// decode_verdict compares logits of rows of V computed in two ways, export_verdict compares the
// exported file at `path` with the subject.
GateOutcome decode_verdict(std::span<const float> scored, std::span<const float> decoded, std::size_t V);
GateOutcome export_verdict(std::string_view format, Subject& subject, const std::filesystem::path& path);

}  // namespace thimble
