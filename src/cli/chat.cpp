// thimble chat: reads messages and commands, and streams answers.

#include <unistd.h>

#include <array>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/signals.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/line_editor.h"
#include "cli/option.h"
#include "cli/parse.h"
#include "config/keys.h"
#include "data/document.h"
#include "formats/model_file.h"
#include "infer/chat_session.h"
#include "infer/constraint.h"

namespace thimble {

namespace {

// The options that /set changes.
std::vector<Option> answer_options() {
  std::vector<Option> options = with_sampling_options(
      {{.name = "max-tokens",
        .value = "N",
        .help = "maximum length of an answer, in tokens",
        .shown_default = "up to the context"},
       {.name = "min-tokens", .value = "N", .initial = "1", .help = "minimum length of an answer, in tokens"},
       {.name = "stop", .value = "TEXT", .help = "end the answer before this text", .repeated = true}});
  const std::vector<Option> constraints = constraint_options();
  options.insert(options.end(), constraints.begin(), constraints.end());
  return options;
}

Request request_from(const Arguments& arguments, ConstraintCompiler& compiler) {
  Request request;
  request.constraint = constraint_from(arguments, compiler);
  request.sampling = sampling_from(arguments);
  request.stop_strings = arguments.list("stop");
  request.max_tokens = arguments.given("max-tokens") ? arguments.integer("max-tokens", {.least = 1})
                                                     : std::numeric_limits<std::int64_t>::max();
  request.min_tokens = min_tokens_from(arguments);
  return request;
}

// The values of answer_options() that were given, by name; a flag has one empty value.
using Settings = std::map<std::string, std::vector<std::string>, std::less<>>;

Settings settings_of(const Arguments& arguments) {
  Settings settings;
  for (const Option& option : answer_options())
    if (arguments.given(option.name)) settings[std::string(option.name)] = arguments.list(option.name);
  return settings;
}

// Reads settings as the command line is read, with the same checks and messages.
Arguments parsed(const Settings& settings) {
  std::vector<std::string> words;
  for (const auto& [name, values] : settings)
    for (const std::string& value : values)
      words.push_back(name == "greedy" ? "--greedy" : fmt::format("--{}={}", name, value));
  return parse({.name = "/set", .options = answer_options()}, words);
}

class ChatRepl {
 public:
  struct Style {
    bool interactive = false;  // at a terminal: prints a prompt and notices, and continues after errors
    std::string_view prompt = {};
  };

  // The arguments must outlive the object. `interrupt` has task scope if interactive, else program
  // scope.
  ChatRepl(ChatSession& session, const Arguments& arguments, ConstraintCompiler& compiler, LineEditor& lines,
           Interrupt& interrupt, const Console& console, Style style)
      : session_(session),
        compiler_(compiler),
        settings_(settings_of(arguments)),
        lines_(lines),
        interrupt_(interrupt),
        console_(console),
        style_(style) {}

  int run();  // returns the exit code; with --json prints the object even after an error

 private:
  struct Entry {
    std::string_view name, argument, help;  // help is empty for a second name, which /help does not list
    void (ChatRepl::*run)(const std::string& argument);
  };
  static std::span<const Entry> table();

  int talk();
  void handle(const Message& message);
  std::string why_cut(const Reply& reply) const;
  void answer(const std::function<Reply(const ChatSession::Show&)>& ask);
  void say(std::string_view notice) const { console_.log().info("{}", notice); }
  void tell(std::string_view text) const;  // output of a command, printed even with --quiet
  void save_to(const std::string& path, bool replace);

  void clear(const std::string&);
  void help(const std::string&);
  void load(const std::string& path);
  void quit(const std::string&) { done_ = true; }
  void retry(const std::string&);
  void save(const std::string& path) { save_to(path, false); }
  void save_over(const std::string& path) { save_to(path, true); }
  void set(const std::string& assignment);
  void show(const std::string&);
  void stats(const std::string&);
  void system(const std::string& text);

  ChatSession& session_;
  ConstraintCompiler& compiler_;
  Settings settings_;
  LineEditor& lines_;
  Interrupt& interrupt_;
  const Console& console_;
  Style style_;
  bool done_ = false;
  Json replies_ = Json::array();
  std::optional<Reply> last_;
  std::int64_t answers_ = 0, generated_ = 0, dropped_ = 0;
};

double per_second(std::int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

Json as_json(const Reply& reply) {
  return Json::object()
      .set("text", reply.text)
      .set("finish_reason", name_of(reply.finish))
      .set("prompt_tokens", reply.usage.prompt_tokens)
      .set("generated_tokens", reply.usage.generated_tokens)
      .set("tokens_dropped", reply.tokens_dropped)
      .set("seed", reply.seed);
}

struct Loaded {
  Conversation conversation;
  bool more = false;  // the file contains more conversations
};

// `path` is the name of one file: no pattern, no weight suffix.
Loaded load_conversation(const std::string& path) {
  const DataSource source{.name = path, .files = {path}};
  const ReadOptions options{.kind = DataKind::chat};
  RecordReader reader(source, options);
  auto record = reader.next();
  check(record.has_value(), "{} is empty", path);
  Document document = read_document(*record, options);
  if (!document.problem.empty()) fail(Hint{document.hint}, "{}", document.problem);
  check(!document.turns.empty(), "{} does not start with a conversation that contains an answer", path);
  return {std::move(document.turns), reader.next().has_value()};
}

std::span<const ChatRepl::Entry> ChatRepl::table() {
  static constexpr std::array<Entry, 13> kTable = {{
      {"clear", "", "start a new conversation; keeps the system prompt", &ChatRepl::clear},
      {"help", "", "show this help", &ChatRepl::help},
      {"load", "FILE", "continue a saved conversation", &ChatRepl::load},
      {"quit", "", "quit; /exit, /bye, Ctrl-D or Ctrl-C twice do the same", &ChatRepl::quit},
      {"exit", "", "", &ChatRepl::quit},
      {"bye", "", "", &ChatRepl::quit},
      {"retry", "", "generate another answer to the last question", &ChatRepl::retry},
      {"save", "FILE", "save the conversation as one line of JSON, for /load or training", &ChatRepl::save},
      {"save!", "FILE", "like /save, but overwrite an existing file", &ChatRepl::save_over},
      {"set", "NAME VALUE", "change a setting of later answers: /set temperature 0.5", &ChatRepl::set},
      {"show", "", "show the settings, the system prompt and the context", &ChatRepl::show},
      {"stats", "", "show tokens and speed of the last answer, and context usage", &ChatRepl::stats},
      {"system", "[TEXT]", "set the system prompt (-: none), or show it", &ChatRepl::system},
  }};
  return kTable;
}

int ChatRepl::run() {
  const auto print_replies = [&] {
    if (console_.json())
      console_.print_json(conversation_json(session_.conversation()).set("replies", std::move(replies_)));
  };
  int code = kExitDone;
  try {
    code = talk();
  } catch (const std::exception&) {  // not BrokenPipe: then stdout is closed
    print_replies();
    throw;
  }
  print_replies();
  return code;
}

int ChatRepl::talk() {
  int interruptions = 0;
  while (!done_) {
    if (style_.interactive) interrupt_.forget();
    const Message message = read_message(lines_, style_.prompt);
    if (message.end == LineEnd::closed) break;
    if (message.end == LineEnd::interrupted) {
      if (!style_.interactive || ++interruptions > 1) return kExitInterrupted;
      say("press Ctrl-C again or Ctrl-D to quit");
      continue;
    }
    interruptions = 0;
    if (trim(message.text).empty()) continue;
    lines_.remember(message.as_typed());
    try {
      handle(message);
    } catch (const Error& error) {
      if (!style_.interactive) throw;
      tell(describe(error));
    } catch (const std::exception& error) {
      if (!style_.interactive) throw;
      tell(fmt::format("error: {}", error.what()));
    }
    if (!style_.interactive && interrupt_.requested()) return kExitInterrupted;
  }
  return kExitDone;
}

void ChatRepl::handle(const Message& message) {
  const std::string& text = message.text;
  const auto command = message.quoted ? std::nullopt : parse_chat_command(text);
  if (!command) {
    const std::string question(message.quoted ? text : unescaped_message(text));
    answer([&](const ChatSession::Show& show) { return session_.ask(question, show, &interrupt_); });
    return;
  }
  std::vector<std::string_view> names;
  for (const Entry& entry : table()) {
    names.push_back(entry.name);
    if (entry.name != command->name) continue;
    check(entry.argument.empty() == command->argument.empty() || entry.argument.starts_with('['),
          "expected /{}{}{}, found '{}'", entry.name, entry.argument.empty() ? "" : " ", entry.argument,
          text);
    return (this->*entry.run)(command->argument);
  }
  std::string_view best = synonym(command->name, names);
  if (best.empty()) best = nearest(command->name, names);
  fail(Hint{best.empty() ? "/help lists the commands; type // to start a message with /"
                         : fmt::format("did you mean /{}? Type // to start a message with /", best)},
       "unknown command /{}", command->name);
}

void ChatRepl::answer(const std::function<Reply(const ChatSession::Show&)>& ask) {
  if (style_.interactive) interrupt_.forget();
  bool line_open = false;
  const Reply reply = ask([&](std::string_view piece) {
    if (console_.json()) return;
    console_.print_foreign(piece);
    line_open = !piece.ends_with('\n');
  });
  // End the line even after an empty answer.
  if (!console_.json() && (line_open || !style_.interactive)) console_.print("\n");
  if (console_.json()) replies_.push(as_json(reply));
  if (reply.tokens_dropped > 0)
    say(fmt::format("({} tokens of the conversation were dropped to fit the context of {})",
                    reply.tokens_dropped, session_.context()));
  if (reply.finish == FinishReason::cancelled) say("(stopped)");
  if (reply.finish == FinishReason::length)
    say(fmt::format("(cut after {} tokens: {})", reply.usage.generated_tokens, why_cut(reply)));
  if (!reply.kept) say("(no answer; the conversation is unchanged)");
  last_ = reply;
  ++answers_;
  generated_ += reply.usage.generated_tokens;
  dropped_ += reply.tokens_dropped;
}

std::string ChatRepl::why_cut(const Reply& reply) const {
  const std::int64_t used = reply.usage.prompt_tokens + reply.usage.generated_tokens;
  if (used >= session_.context()) return fmt::format("the context of {} tokens is full", session_.context());
  return "--max-tokens";
}

void ChatRepl::tell(std::string_view text) const {
  if (style_.interactive)
    console_.print_foreign(fmt::format("{}\n", text));
  else
    console_.tell(text);  // only answers go to stdout
}

void ChatRepl::retry(const std::string&) {
  answer([&](const ChatSession::Show& show) { return session_.retry(show, &interrupt_); });
}

void ChatRepl::clear(const std::string&) {
  session_.clear();
  say("(new conversation)");
}

void ChatRepl::help(const std::string&) {
  std::string text;
  for (const Entry& entry : table())
    if (!entry.help.empty())
      text += fmt::format("  {:<15} {}\n", fmt::format("/{} {}", entry.name, entry.argument), entry.help);
  text += "  \\ at the end of a line continues it; \"\"\" starts and ends a block of lines.\n";
  text += "  Ctrl-C stops an answer.";
  tell(text);
}

void ChatRepl::save_to(const std::string& path, bool replace) {
  const Conversation conversation = session_.conversation();
  check(!session_.history().empty(), "the conversation is empty");
  PosixFileOps ops;
  const PathKind kind = ops.kind(path);
  if (!replace && kind == PathKind::file) fail(Hint{"/save! overwrites it"}, "{} already exists", path);
  // Existing::refuse rejects a folder or a device with a specific message.
  write_file(ops, path, conversation_json(conversation).dump() + "\n",
             replace || kind == PathKind::other ? Existing::replace : Existing::refuse);
  say(fmt::format("(saved {} turns to {})", conversation.size(), path));
}

void ChatRepl::load(const std::string& path) {
  Loaded loaded = load_conversation(path);
  const std::size_t turns = loaded.conversation.size();
  session_.replace(std::move(loaded.conversation));
  say(fmt::format("({} turns{})", turns, loaded.more ? "; the file contains more conversations" : ""));
}

void ChatRepl::stats(const std::string&) {
  std::string text = fmt::format("context: {} of {} tokens, layout {}\n", session_.context_used(),
                                 session_.context(), session_.layout().text().name);
  if (last_) {
    const Usage& usage = last_->usage;
    text += fmt::format("last answer: {} tokens, {:.1f} tokens/s, seed {}\n", usage.generated_tokens,
                        per_second(usage.generated_tokens - 1, usage.decode_seconds), last_->seed);
    text += fmt::format("prompt: {} tokens, {} of them cached, first token after {:.0f} ms\n",
                        usage.prompt_tokens, usage.cached_tokens, 1000 * usage.seconds_to_first_token());
  }
  text += fmt::format("total: {} answers, {} tokens generated, {} tokens of history dropped", answers_,
                      generated_, dropped_);
  tell(text);
}

// "temperature 0.5", and also "parameter temperature 0.5", as in Ollama.
void ChatRepl::set(const std::string& assignment) {
  std::string_view rest = trim(assignment);
  const auto next_word = [&] {
    const std::size_t end = std::min(rest.find_first_of(kBlanks), rest.size());
    std::string word(rest.substr(0, end));
    rest = trim(rest.substr(end));
    return word;
  };
  std::string name = next_word();
  if (name == "parameter") name = next_word();
  std::ranges::replace(name, '_', '-');
  if (name == "system") return system(std::string(rest));

  const std::vector<Option> options = answer_options();
  std::vector<std::string_view> names;
  for (const Option& option : options) names.push_back(option.name);
  if (const std::string_view ours = synonym(name, names); !ours.empty()) name = ours;
  const auto option = std::ranges::find(options, name, &Option::name);
  if (option == options.end()) {
    const std::string_view best = nearest(name, names);
    fail(Hint{best.empty() ? fmt::format("the settings are {}", joined(names, ", "))
                           : fmt::format("did you mean {}?", best)},
         "unknown setting '{}'", name);
  }
  check(option->is_flag() == rest.empty(), "expected /set {}{}, found '/set {}'", name,
        option->is_flag() ? "" : fmt::format(" {}", value_of(*option)), assignment);

  Settings changed = settings_;
  if (name == "greedy") changed.erase("temperature");
  if (name == "temperature") changed.erase("greedy");
  changed[name] = {std::string(rest)};
  // One constraint replaces another; "none" removes it.
  const std::vector<Option> constraints = constraint_options();
  if (std::ranges::find(constraints, name, &Option::name) != constraints.end())
    for (const Option& constraint : constraints)
      if (constraint.name != name || rest == "none") changed.erase(std::string(constraint.name));
  try {
    session_.change(request_from(parsed(changed), compiler_));
  } catch (const UsageError& error) {  // otherwise the chat would end as after a wrong option
    fail(Hint{error.hint()}, "{}", error.what());
  }
  settings_ = std::move(changed);
  say(option->is_flag() ? fmt::format("({})", name) : fmt::format("({} {})", name, rest));
}

void ChatRepl::show(const std::string&) {
  const Arguments now = parsed(settings_);
  std::string text = fmt::format("context: {} of {} tokens, layout {}\n", session_.context_used(),
                                 session_.context(), session_.layout().text().name);
  text += fmt::format("system prompt: {}\n", session_.system().empty() ? "(none)" : session_.system());
  for (const Option& option : answer_options()) {
    if (option.is_flag() && !now.given(option.name)) continue;
    const std::string value = option.is_flag()                ? "on"
                              : option.repeated               ? joined(now.list(option.name), ", ")
                              : now.text(option.name).empty() ? option.shown_default
                                                              : now.text(option.name);
    if (!value.empty()) text += fmt::format("{}: {}\n", option.name, value);
  }
  tell(trim_right(text));
}

void ChatRepl::system(const std::string& text) {
  if (!text.empty()) session_.set_system(text == "-" ? "" : text);
  tell(session_.system().empty() ? "(no system prompt)"
                                 : fmt::format("system prompt: {}", session_.system()));
}

// Resizing the window sends SIGWINCH. libedit's handler crashes if two threads run it concurrently,
// so OpenMP's threads are created here with signals blocked. ThreadPool threads always block them.
void make_threads_without_signals() {
  const SignalMaskScope held;
  parallel_for(max_threads(), 1, [](std::int64_t, std::int64_t) {});
}

int run_chat(const Arguments& arguments, Console& console) {
  make_threads_without_signals();
  const ModelFile file = model_from(arguments, WeightsAs::stored, console.progress());
  const auto tokenizer = open_tokenizer(file);
  check(tokenizer != nullptr, "{} has no tokenizer, which chat needs", file.path.string());
  const ChatLayout layout = open_chat_layout(file, *tokenizer, arguments.text("layout"));
  if (const std::string warning = layout.warning(); !warning.empty()) console.log().warning("{}", warning);
  const Context context(device_from(arguments, console.log()));
  Model model = make_model(file, context, dtype_from(arguments, context.device(), console.log()));
  Batcher batcher(model, tokenizer.get());
  ConstraintCompiler compiler(*tokenizer);
  ChatSession session(batcher, layout,
                      {.request = request_from(arguments, compiler),
                       .tidy = arguments.flag("tidy"),
                       .system = arguments.text("system")});

  const bool interactive = !console.json() && isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  Interrupt interrupt(interactive ? Interrupt::Scope::task : Interrupt::Scope::program);
  if (!interactive) {
    const auto lines = make_plain_lines(false, interrupt);
    return ChatRepl(session, arguments, compiler, *lines, interrupt, console, {}).run();
  }
  EditorOptions editor{.colour = wants_colour(STDOUT_FILENO)};
  if (const auto folder = state_folder(); !arguments.flag("no-history") && !folder.empty())
    editor.history = folder / "chat_history";
  const auto lines = make_line_editor(editor, interrupt);
  console.log().info("{}: {} layout, context of {} tokens; type /help for commands", file.path.string(),
                     layout.text().name, model.config().context);
  return ChatRepl(session, arguments, compiler, *lines, interrupt, console,
                  {.interactive = true, .prompt = "> "})
      .run();
}

}  // namespace

Command chat_command() {
  std::vector<Option> options = answer_options();
  for (const Option& option :
       {Option{.name = "system", .value = "TEXT", .help = "system prompt"},
        Option{.name = "tidy", .help = "drop punctuation at the start of an answer"},
        Option{.name = "layout",
        .help = "chat layout, if the model does not contain one",
        .choices = {"roles", "chatml", "llama3"}},
        Option{.name = "no-history", .help = "do not save the input history"}, device_option(),
        common::dtype(), common::threads(), common::json(), common::quiet()})
    options.push_back(option);
  return {.name = "chat",
          .summary = "chat with a model that was trained on chats",
          .arguments = {model_argument()},
          .options = options,
          .examples = {"thimble chat runs/chat", "echo \"How are you?\" | thimble chat runs/chat --greedy"},
          .run = run_chat};
}

}  // namespace thimble
