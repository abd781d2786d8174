// What `thimble bench train|prefill|decode|tokenize` have in common.
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

// Behind a command's own: --iterations, --min-tps, threads, json, quiet.
std::vector<Option> with_bench_options(std::vector<Option> own, std::string_view iterations,
                                       std::string_view iterations_help);

// --min-tps, applied exactly: the exit code. Says on stderr what was too slow.
struct Verdict {
  double least;
  bool passed;
};
Verdict verdict_of(const Arguments& arguments, double tokens_per_second);
int exit_code(const Verdict& verdict, Console& console);

// MODEL, --preset and --set: a model that exists, or one of random weights.
std::vector<Option> model_options();
ModelFile bench_model(const Arguments& arguments);

// --depth: so much of the context that a token is left.
std::int64_t depth_from(const Arguments& arguments, const ModelConfig& config);
// --max-tokens; its default is as much of it as the context holds behind the depth.
std::int64_t tokens_from(const Arguments& arguments, const ModelConfig& config);

// A model with no more context than the test takes, as llama-bench makes it: the cache of a long one is large.
Model model_for(ModelFile& file, const Context& context, DType dtype, const SpeedRequest& request);

std::string device_name(const Context& context);                      // "cpu", "NVIDIA H200"
std::string computed_in(const Model& model, const Context& context);  // "bf16", "bf16 on NVIDIA H200"

// {"test": "pp512", "tokens_per_second": mean, "stddev": .., "samples": [..]}
Json as_json(const Speed& speed);
std::string as_text(const Speed& speed);  // "pp512: 1635.1 +- 12.3 tokens/s"

}  // namespace thimble
