#include "cli/chat.h"

#include <unistd.h>

#include <limits>

#include "base/error.h"
#include "base/parallel.h"
#include "base/signals_held.h"
#include "cli/chat_repl.h"
#include "cli/console.h"
#include "cli/device.h"
#include "cli/line_history.h"
#include "cli/parse.h"
#include "cli/sampling_options.h"
#include "formats/model_file.h"

namespace thimble {

namespace {

ChatOptions chat_options(const Arguments& arguments) {
  ChatOptions options{.asked = {}, .tidy = arguments.flag("tidy"), .system = arguments.text("system")};
  options.asked.sampling = sampling_from(arguments);
  options.asked.stop_strings = arguments.list("stop");
  options.asked.max_tokens = arguments.given("max-tokens") ? arguments.integer("max-tokens", {.least = 1})
                                                           : std::numeric_limits<std::int64_t>::max();
  return options;
}

// Whoever is at the prompt may resize the window without end. Two threads in libedit's handler at once end the program,
// so OpenMP's are made here and take no signals; a pool's never do.
void make_threads_without_signals() {
  const SignalsHeld held;
  parallel_for(max_threads(), 1, [](std::int64_t, std::int64_t) {});
}

int run_chat(const Arguments& arguments, Console& console) {
  make_threads_without_signals();
  const ModelFile file = open_model(arguments.path("MODEL"), WeightsAs::stored);
  const auto tokenizer = open_tokenizer(file);
  check(tokenizer != nullptr, "{} has no tokenizer: nobody can talk to it", file.path.string());
  const ChatLayout layout = open_chat_layout(file, *tokenizer, arguments.text("layout"));
  const Context context(device_from(arguments, console.log()));
  Model model = make_model(file, context, dtype_from(arguments, context.device(), console.log()));
  Batcher batcher(model, tokenizer.get());
  ChatSession session(batcher, layout, chat_options(arguments));

  const bool interactive = !console.json() && isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  Interrupt interrupt(interactive ? Interrupt::Scope::task : Interrupt::Scope::program);
  if (!interactive) {
    const auto lines = make_plain_lines(false, interrupt);
    return ChatRepl(session, *lines, interrupt, console, {}).run();
  }
  EditorOptions editor{.colour = wants_colour(STDOUT_FILENO)};
  if (const auto folder = state_folder(); !arguments.flag("no-history") && !folder.empty())
    editor.history = folder / "chat_history";
  const auto lines = make_line_editor(editor, interrupt);
  console.log().info("{}: {} layout, context of {} tokens; /help lists commands", file.path.string(),
                     layout.text().name, model.config().context);
  return ChatRepl(session, *lines, interrupt, console, {.interactive = true, .prompt = "> "}).run();
}

}  // namespace

Command chat_command() {
  return {
      .name = "chat",
      .summary = "talk to a model that was trained on chats",
      .arguments = {{.name = "MODEL",
                     .help = "run folder, checkpoint, artifact, GGUF or Hugging Face folder"}},
      .options = with_sampling_options(
          {{.name = "system", .value = "TEXT", .help = "a system prompt: said before the conversation"},
           {.name = "max-tokens", .value = "N", .help = "tokens of an answer, at most (default: what fits)"},
           {.name = "stop", .value = "TEXT", .help = "ends an answer before this text", .repeated = true},
           {.name = "tidy", .help = "drop punctuation with which an answer begins"},
           {.name = "layout",
            .help = "how conversations become tokens, where the model's file does not say it",
            .choices = {"roles", "chatml", "llama3"}},
           {.name = "no-history", .help = "do not keep what is typed for the next time"},
           device_option(),
           common::dtype(),
           common::threads(),
           common::json(),
           common::quiet()}),
      .examples = {"thimble chat runs/chat", "echo \"How are you?\" | thimble chat runs/chat --greedy"},
      .run = run_chat};
}

}  // namespace thimble
