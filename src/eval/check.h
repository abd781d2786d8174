// Checked completions: a command says whether a completion is right, as the tests of HumanEval do.
//
// The model continues each prompt several times. The command receives prompt, completion and test
// on standard input, and passes the completion with exit code 0. pass@k is the probability that at
// least one of k completions passes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "base/signals.h"
#include "infer/sampler.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace thimble {

// The unbiased estimator 1 - C(n - c, k) / C(n, k) of n completions of which c passed; k <= n.
double pass_at_k(std::int64_t n, std::int64_t c, std::int64_t k);

struct CheckLimits {
  double seconds = 3;                                   // of wall time; then all processes are killed
  std::uint64_t memory_bytes = std::uint64_t{4} << 30;  // address space of each process
  int jobs = 1;                                         // checks at a time
};

// A check that ran out of memory is one that failed with such a message at the end of its standard
// error. A program that handles the failed allocation differently counts as failed.
enum class CheckResult { passed, failed, timed_out, out_of_memory };
std::string_view name_of(CheckResult result);  // "passed", ...

struct CheckOutcome {
  CheckResult result = CheckResult::failed;
  int exit_code = 0;       // 128 + the signal that ended it
  std::string error = {};  // the last bytes of standard error
};

// Runs `/bin/sh -c COMMAND` for each input, which is passed on standard input only: no text of a
// model becomes part of a command line. Each check has a new temporary working folder, its own
// processes, all of which are killed at its end, and no network if the kernel allows that. The
// command can read and write the user's files: this is no sandbox for hostile programs.
class Checker {
 public:
  // Runs the command once on empty input. Throws Error if the command cannot be executed (exit
  // codes 126 and 127 of the shell). Any other result is accepted.
  Checker(std::string command, const CheckLimits& limits, const Interrupt* interrupt = nullptr);

  bool cuts_network() const { return cuts_network_; }
  // The outcomes in order of the inputs.
  std::vector<CheckOutcome> run(std::span<const std::string> inputs, const ProgressOutput& progress,
                                const Interrupt* interrupt = nullptr) const;

 private:
  std::string command_;
  CheckLimits limits_;
  bool cuts_network_ = true;
};

struct CheckPrompt {
  std::string prompt;
  std::string test = {};                // the command's input ends with a line end and this text
  std::vector<std::string> stops = {};  // end a completion
  std::string where = "a prompt";       // for messages: "file.jsonl:3"
};

// Parses a prompt from JSON; `where` starts every error message. Accepted fields:
//
//   prompt       text to continue
//   test         optional: text after the completion
//   entry_point  optional, with test: the test ends with a call check(entry_point), as in HumanEval
//   stop         optional: a list of texts, each of which ends a completion
CheckPrompt check_prompt(const Json& json, std::string_view where);

// Reads JSON records, or a text with one prompt per line (empty lines are left out), at most
// `limit` prompts (0: all). Throws an Error that names the line if it is not a prompt.
std::vector<CheckPrompt> read_check_prompts(const std::filesystem::path& path, std::uint64_t limit);

struct CheckOptions {
  SamplingOptions sampling = {};  // sample i of prompt p uses seed + p * samples + i
  int samples = 1;                // for each prompt
  std::int64_t max_tokens = 256;
  std::vector<std::string> stops = {};  // in addition to those of the prompts
  std::int64_t slots = 32;              // completions in one batch
  std::size_t keep_failed = 3;          // number of completions to return in `failed`
};

struct CheckedCompletion {
  std::size_t prompt = 0;  // index
  std::string text;        // without the prompt
  CheckOutcome outcome = {};
};

struct CheckScore {
  std::map<CheckResult, std::int64_t> counts = {};  // of completions
  std::vector<std::int64_t> passed;                 // by prompt
  std::int64_t samples = 0;                         // for each prompt
  std::int64_t too_long = 0;                        // prompts that fill the context: all samples failed
  std::vector<CheckedCompletion> failed = {};       // at most one for each prompt, limited by keep_failed

  std::int64_t count(CheckResult result) const {
    const auto found = counts.find(result);
    return found == counts.end() ? 0 : found->second;
  }
  double pass_at(std::int64_t k) const;  // the mean over all prompts
};

// Generates all completions, then checks them. Throws Error if there are no prompts.
CheckScore score_checks(Model& model, const Tokenizer& tokenizer, std::span<const CheckPrompt> prompts,
                        const Checker& checker, const CheckOptions& options, const ProgressOutput& progress,
                        const Interrupt* interrupt = nullptr);

}  // namespace thimble
