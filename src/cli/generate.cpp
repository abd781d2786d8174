#include "cli/generate.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "formats/model_file.h"
#include "infer/generate.h"

namespace thimble {

namespace {

GenerateOptions options_from(const Arguments& arguments) {
  GenerateOptions options;
  options.max_tokens = arguments.integer("max-tokens", {.least = 1});
  options.sampler = {
      .temperature = static_cast<float>(arguments.number("temperature", {.least = 0, .most = 100})),
      .top_k = arguments.integer("top-k", {.least = 0}),
      .top_p = static_cast<float>(arguments.number("top-p", {.least = 0, .most = 1})),
      .seed = static_cast<std::uint64_t>(arguments.integer("seed", {.least = 0}))};
  if (arguments.flag("greedy")) options.sampler.temperature = 0;
  return options;
}

Json as_json(const Sample& sample) {
  Json tokens = Json::array();
  for (std::int32_t token : sample.tokens) tokens.push(token);
  return Json::object()
      .set("text", sample.text)
      .set("tokens", tokens)
      .set("finish_reason", sample.finish_reason);
}

int run_generate(const Arguments& arguments, Console& console) {
  const ModelFile file = open_model(arguments.path("MODEL"));
  const auto tokenizer = open_tokenizer(file);
  check(tokenizer != nullptr, "{} has no tokenizer", file.path.string());
  const Context context;
  Model model = make_model(file, context);
  GenerateOptions options = options_from(arguments);
  const std::string& prompt = arguments.text("PROMPT");
  const std::int64_t count = arguments.integer("samples", {.least = 1, .most = 1000});
  const Interrupt interrupt;
  Json samples = Json::array();
  for (std::int64_t i = 0; i < count; ++i, ++options.sampler.seed) {
    if (!console.json()) console.print(prompt);
    const auto show = [&](std::string_view piece) {
      if (!console.json()) console.print(piece);
    };
    const Sample sample = generate(model, *tokenizer, prompt, options, show, &interrupt);
    if (!console.json()) console.print(i + 1 < count ? "\n\n" : "\n");
    samples.push(as_json(sample));
  }
  if (console.json()) console.print_json(Json::object().set("samples", samples));
  return 0;
}

}  // namespace

Command generate_command() {
  return {
      .name = "generate",
      .aliases = {"run"},
      .summary = "continue a prompt",
      .arguments = {{.name = "MODEL", .help = "run folder, checkpoint, artifact or Hugging Face folder"},
                    {.name = "PROMPT",
                     .help = "text to continue; none: from the start",
                     .count = Count::optional}},
      .options = {{.name = "samples", .letter = 'n', .value = "N", .initial = "1", .help = "how many"},
                  {.name = "max-tokens", .value = "N", .initial = "256", .help = "tokens of each, at most"},
                  {.name = "temperature", .value = "F", .initial = "0.8", .help = "0: always the likeliest"},
                  {.name = "top-k", .value = "N", .initial = "0", .help = "only the N likeliest; 0: all"},
                  {.name = "top-p", .value = "F", .initial = "1", .help = "only the likeliest that reach F"},
                  {.name = "greedy", .help = "the same as --temperature 0"},
                  common::seed(),
                  common::threads(),
                  common::json(),
                  common::quiet()},
      .examples = {"thimble generate runs/book \"Once upon a time\" --max-tokens 100"},
      .run = run_generate};
}

}  // namespace thimble
