// Gates: what must be true of a model before it is given to anybody. Each is one small function in a table.
//
//   const QaReport report = run_gates({.model = "runs/chat-1"}, progress, &interrupt);
//   report.passed()          nothing failed, and enough was looked at
//
// A gate is passed, failed or skipped, always with a reason in words. Skipped is not passed: `require` says how many
// must have been executed.
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
  std::filesystem::path data = {};                        // to measure bits per byte on; empty: none
  std::optional<double> least_tokens_per_second = {};     // of decoding
  std::vector<std::string> skipped = {};                  // names of gates
  std::int64_t require = 1;                               // gates that must have been executed
  std::shared_ptr<DeviceRuntime> device = cpu_runtime();  // what gates compute on
};

class Subject;

struct Gate {
  std::string_view name;
  std::string_view what;  // for help: "every byte is the one that was written"
  // What it throws is why it failed.
  GateOutcome (*run)(Subject& subject);
};
std::span<const Gate> all_gates();  // in the order in which they run

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

// A name in `skipped` that is no gate is an Error. A model that cannot be opened fails the first gate and leaves
// nothing to the others.
QaReport run_gates(const QaRequest& request, const ProgressOutput& progress,
                   const Interrupt* interrupt = nullptr);

// The model that gates look at, opened once.
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

// What a file holds ...
GateOutcome integrity_gate(Subject& subject);
GateOutcome metadata_gate(Subject& subject);
GateOutcome tokenizer_gate(Subject& subject);
GateOutcome tensors_gate(Subject& subject);
GateOutcome chat_gate(Subject& subject);
// ... what it computes ...
GateOutcome logits_gate(Subject& subject);
GateOutcome decode_gate(Subject& subject);
GateOutcome golden_gate(Subject& subject);
GateOutcome bpb_gate(Subject& subject);
GateOutcome throughput_gate(Subject& subject);
// ... and what becomes of it elsewhere.
GateOutcome export_gate(Subject& subject);

// The verdicts of two of them by themselves, for what no file can be made to do: logits of rows of V, computed in two
// ways, and a file that was written as the subject.
GateOutcome decode_verdict(std::span<const float> at_once, std::span<const float> one_by_one, std::size_t V);
GateOutcome export_verdict(std::string_view format, Subject& subject, const std::filesystem::path& path);

}  // namespace thimble
