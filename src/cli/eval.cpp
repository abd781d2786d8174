#include "cli/eval.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/table.h"
#include "cli/console.h"
#include "cli/parse.h"
#include "eval/eval_data.h"
#include "eval/exact.h"
#include "eval/score.h"
#include "formats/model_file.h"

namespace thimble {

namespace {

constexpr std::size_t kWrongShown = 5;

void print(const Score& score, std::int64_t T, Console& console) {
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
}

// As it was said, the model's answer last.
std::string as_text(const Answered& answered) {
  std::string text;
  for (const Turn& turn : std::span(answered.conversation).first(answered.conversation.size() - 1))
    text += fmt::format("  {}{}\n", turn.role == ChatRole::assistant ? "> " : "", turn.content);
  text += fmt::format("  > {}\n", answered.found);
  if (!answered.right) text += fmt::format("    expected: {}\n", answered.conversation.back().content);
  return text + "\n";
}

void print(const ExactScore& score, Console& console) {
  if (console.json())
    return console.print_json(Json::object()
                                  .set("exact_match", score.rate())
                                  .set("right", score.right)
                                  .set("total", score.total)
                                  .set("too_long", score.too_long));
  for (const Answered& answered : score.first) console.print(as_text(answered));
  if (!score.wrong.empty()) console.print("some that were wrong:\n\n");
  for (const Answered& answered : score.wrong) console.print(as_text(answered));
  if (score.too_long > 0)
    console.print(fmt::format("{} questions are longer than the context\n", with_commas(score.too_long)));
  console.print(fmt::format("{:.1f} % exact: {} of {} answers\n", 100 * score.rate(),
                            with_commas(score.right), with_commas(score.total)));
}

int run_eval(const Arguments& arguments, Console& console) {
  const bool exact = arguments.flag("exact");
  for (std::string_view name : {"limit", "show"})
    if (arguments.given(name) && !exact) throw UsageError(fmt::format("--{} is for --exact", name));
  const ModelFile file = open_model(arguments.path("MODEL"));
  const auto tokenizer = open_tokenizer(file);
  check(tokenizer != nullptr, "{} has no tokenizer: {}", file.path.string(),
        exact ? "nobody can ask it anything" : "bits per byte need one");
  const Context context;
  Model model = make_model(file, context);
  const Interrupt interrupt;
  if (exact) {
    const auto limit = static_cast<std::uint64_t>(arguments.integer("limit", {.least = 0}));
    const auto conversations = read_conversations(arguments.path("data"), limit);
    const std::int64_t show = arguments.integer("show", {.least = 0, .most = 1000});
    const ExactOptions options{.keep_first = static_cast<std::size_t>(show),
                               .keep_wrong = show > 0 ? 0 : kWrongShown};
    print(score_answers(model, *tokenizer, conversations, options, console.progress(), &interrupt), console);
    return 0;
  }
  const ScoreOptions options{
      .context = arguments.integer("context", {.least = 0, .most = model.config().context}),
      .val_tokens = arguments.integer("val-tokens", {.least = 0})};
  const TokenSet set = open_eval_set(arguments.path("data"), *tokenizer);
  const ByteTable bytes(*tokenizer, static_cast<TokenId>(model.config().vocab_size));
  print(score_set(model, bytes, set, options, console.progress(), &interrupt),
        options.context > 0 ? options.context : model.config().context, console);
  return 0;
}

}  // namespace

Command eval_command() {
  return {.name = "eval",
          .summary = "measure a model: bits per byte of any data, exact answers of chats",
          .arguments = {{.name = "MODEL", .help = "run folder, checkpoint or Hugging Face folder"}},
          .options =
              {{.name = "data",
                .value = "X",
                .help = "text, chats as JSON lines, or a folder of shards (its validation split)",
                .required = true},
               {.name = "context", .value = "N", .initial = "0", .help = "window of tokens; 0: the model's"},
               {.name = "val-tokens", .value = "N", .initial = "0", .help = "score at most so many; 0: all"},
               {.name = "exact", .help = "ask, and count the last answers that are right to the letter"},
               {.name = "limit", .value = "N", .initial = "0", .help = "ask at most so many; 0: all"},
               {.name = "show",
                .value = "N",
                .initial = "0",
                .help = "print the first N answers; 0: some of the wrong ones"},
               common::threads(),
               common::json(),
               common::quiet()},
          .examples = {"thimble eval runs/book --data other.txt",
                       "thimble eval runs/chat --data questions.jsonl --exact"},
          .run = run_eval};
}

}  // namespace thimble
