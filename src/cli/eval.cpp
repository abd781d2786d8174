#include "cli/eval.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "data/token_data.h"
#include "eval/score.h"
#include "formats/model_file.h"

namespace thimble {

namespace {

int run_eval(const Arguments& arguments, Console& console) {
  const ModelFile file = open_model(arguments.path("MODEL"));
  const auto tokenizer = open_tokenizer(file);
  check(tokenizer != nullptr, "{} has no tokenizer: bits per byte need one", file.path.string());
  const std::string text = read_file(arguments.path("data"), kMaxTextBytes);
  check(!text.empty(), "{} is empty", arguments.text("data"));

  const Context context;
  Model model = make_model(file, context);
  const ByteTable bytes(*tokenizer, static_cast<TokenId>(model.config().vocab_size));
  const ScoreOptions options{
      .context = arguments.integer("context", {.least = 0, .most = model.config().context}),
      .val_tokens = arguments.integer("val-tokens", {.least = 0})};
  const std::int64_t T = options.context > 0 ? options.context : model.config().context;
  const Interrupt interrupt;
  const std::vector<std::int32_t> tokens = encode_document(*tokenizer, text);
  const Score score =
      score_tokens(model, bytes, tokens, tokens.front(), options, console.progress(), &interrupt);
  if (console.json())
    console.print_json(Json::object()
                           .set("val_loss", score.loss())
                           .set("val_bpb", score.bits_per_byte())
                           .set("tokens", score.tokens)
                           .set("bytes", score.bytes)
                           .set("context", T)
                           .set("stride", T));
  else
    console.print(
        fmt::format("{:.4f} bits per byte, {:.4f} nats per token ({} tokens, {} bytes, context {})\n",
                    score.bits_per_byte(), score.loss(), with_commas(score.tokens),
                    with_commas(static_cast<long long>(score.bytes)), T));
  return 0;
}

}  // namespace

Command eval_command() {
  return {.name = "eval",
          .summary = "measure a model on a text, in bits per byte",
          .arguments = {{.name = "MODEL", .help = "run folder, checkpoint or Hugging Face folder"}},
          .options =
              {{.name = "data", .value = "FILE", .help = "text to score", .required = true},
               {.name = "context", .value = "N", .initial = "0", .help = "window of tokens; 0: the model's"},
               {.name = "val-tokens", .value = "N", .initial = "0", .help = "score at most so many; 0: all"},
               common::threads(),
               common::json(),
               common::quiet()},
          .examples = {"thimble eval runs/book --data other.txt"},
          .run = run_eval};
}

}  // namespace thimble
