// Shared by `thimble bench train`, `prefill`, `decode` and `tokenize`.
#pragma once

#include <string>
#include <vector>

#include "cli/option.h"
#include "formats/model_file.h"
#include "qa/speed.h"

namespace thimble {

class Arguments;
class Console;
class Json;

// Returns `own` followed by --iterations, --min-tps, --threads, --json and --quiet.
std::vector<Option> with_bench_options(std::vector<Option> own, std::string_view iterations,
                                       std::string_view iterations_help);

// The result of --min-tps. exit_code() prints a warning if the minimum was not reached.
struct Verdict {
  double least;
  bool passed;
};
Verdict verdict_of(const Arguments& arguments, double tokens_per_second);
int exit_code(const Verdict& verdict, Console& console);

// MODEL selects an existing model; --preset and --set create one with random weights.
std::vector<Option> model_options();
ModelFile bench_model(const Arguments& arguments, const ProgressOutput& progress = {});

// --depth, at most context - 1.
std::int64_t depth_from(const Arguments& arguments, const ModelConfig& config);
// --max-tokens; the default is reduced to what fits in the context after --depth.
std::int64_t tokens_from(const Arguments& arguments, const ModelConfig& config);

// Creates the model with its context limited to what the benchmark needs, as llama-bench does.
Model model_for(ModelFile& file, const Context& context, DType dtype, const SpeedRequest& request);

std::string device_name(const Context& context);               // "cpu", "NVIDIA H200"
std::string computed_in(DType dtype, const Context& context);  // "bf16", "bf16 on NVIDIA H200"

// {"test": "pp512", "tokens_per_second": mean, "stddev": .., "samples": [..]}
Json as_json(const Speed& speed);
std::string as_text(const Speed& speed);  // "pp512: 1635.1 +- 12.3 tokens/s"

}  // namespace thimble
