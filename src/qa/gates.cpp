#include "qa/gates.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "base/nearest.h"
#include "qa/subject.h"

namespace thimble {

namespace {

constexpr Gate kGates[] = {
    {"integrity", "every byte is the one that was written", integrity_gate},
    {"metadata", "the file says all that is needed to use it", metadata_gate},
    {"tokenizer", "there is one, and texts and ids come back through it", tokenizer_gate},
    {"tensors", "no NaN, no infinity, no tensor of zeros", tensors_gate},
    {"logits", "finite for random tokens", logits_gate},
    {"decode", "token by token it computes what it computes at once", decode_gate},
    {"chat", "conversations are laid out as in training", chat_gate},
    {"golden", "it says greedily what it said when it was saved", golden_gate},
    {"bpb", "bits per byte of --data are not worse than recorded", bpb_gate},
    {"export", "written for others and read back, it computes the same", export_gate},
    {"throughput", "it decodes at least --min-tps tokens a second", throughput_gate},
};

void check_names(const QaRequest& request) {
  std::vector<std::string_view> names;
  for (const Gate& gate : kGates) names.push_back(gate.name);
  for (const std::string& name : request.skipped) {
    if (std::ranges::count(names, name) > 0) continue;
    const std::string_view best = nearest(name, names);
    fail(best.empty() ? Hint{} : Hint{fmt::format("did you mean '{}'?", best)}, "there is no gate '{}'",
         name);
  }
}

GateOutcome run_gate(const Gate& gate, Subject& subject) {
  try {
    return gate.run(subject);
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    return {GateStatus::failed, error.what()};
  }
}

// Nothing, and why, if the file cannot be read.
std::unique_ptr<Subject> open_subject(const QaRequest& request, const ProgressOutput& progress,
                                      const Interrupt* interrupt, std::string& problem) {
  try {
    return std::make_unique<Subject>(request, progress, interrupt);
  } catch (const Error& error) {
    problem = error.what();
    return nullptr;
  }
}

}  // namespace

std::string_view name_of(GateStatus status) {
  return status == GateStatus::passed ? "passed" : status == GateStatus::failed ? "failed" : "skipped";
}

std::span<const Gate> all_gates() {
  return kGates;
}

std::int64_t QaReport::count(GateStatus status) const {
  return std::ranges::count(gates, status, &GateResult::status);
}

QaReport run_gates(const QaRequest& request, const ProgressOutput& progress, const Interrupt* interrupt) {
  check_names(request);
  check(std::filesystem::exists(request.model), "{} does not exist", request.model.string());
  std::string problem;
  const auto subject = open_subject(request, progress, interrupt, problem);
  QaReport report{.gates = {}, .required = request.require};
  ProgressBar bar(progress, "checking", "gates", std::size(kGates));
  for (const Gate& gate : kGates) {
    if (interrupt) interrupt->throw_if_asked();
    bar.update(report.gates.size(), {std::string(gate.name)});
    const double start = seconds_now();
    GateOutcome outcome;
    if (!subject)
      outcome = report.gates.empty() ? failed("{}", problem) : skipped("the model could not be opened");
    else if (std::ranges::count(request.skipped, gate.name) > 0)
      outcome = skipped("as asked");
    else
      outcome = run_gate(gate, *subject);
    report.gates.push_back({gate.name, outcome.status, std::move(outcome.detail), seconds_now() - start});
  }
  return report;
}

}  // namespace thimble
