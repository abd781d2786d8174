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

#include "base/interrupt.h"
#include "base/progress.h"
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

}  // namespace thimble
