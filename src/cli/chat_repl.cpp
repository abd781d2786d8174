#include "cli/chat_repl.h"

#include <array>

#include "base/error.h"
#include "base/files.h"
#include "base/nearest.h"
#include "cli/main.h"
#include "data/chat.h"
#include "eval/eval_data.h"

namespace thimble {

namespace {

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

}  // namespace

std::span<const ChatRepl::Entry> ChatRepl::table() {
  static constexpr std::array<Entry, 9> kTable = {{
      {"clear", "", "forget the conversation, but not the system prompt", &ChatRepl::clear},
      {"help", "", "show this", &ChatRepl::help},
      {"load", "FILE", "go on with a conversation that was saved", &ChatRepl::load},
      {"quit", "", "end; so do Ctrl-D, and Ctrl-C twice", &ChatRepl::quit},
      {"retry", "", "another answer to the last question", &ChatRepl::retry},
      {"save", "FILE", "write the conversation as a line of JSON, to go on with or to train on",
       &ChatRepl::save},
      {"save!", "FILE", "the same, over a file that is there", &ChatRepl::save_over},
      {"stats", "", "tokens and speed of the last answer, and how full the context is", &ChatRepl::stats},
      {"system", "[TEXT]", "set the system prompt (-: none), or show it", &ChatRepl::system},
  }};
  return kTable;
}

int ChatRepl::run() {
  int interruptions = 0;
  while (!done_) {
    if (style_.interactive) interrupt_.forget();
    const Line message = read_message(lines_, style_.prompt);
    if (message.end == LineEnd::closed) break;
    if (message.end == LineEnd::interrupted) {
      if (!style_.interactive || ++interruptions > 1) return kExitInterrupted;
      say("Ctrl-C again, or Ctrl-D, quits");
      continue;
    }
    interruptions = 0;
    if (message.text.find_first_not_of(" \t\r\n") == std::string::npos) continue;
    lines_.remember(message.text);
    try {
      handle(message.text);
    } catch (const Error& error) {
      if (!style_.interactive) throw;
      tell(describe(error));
    }
    if (!style_.interactive && interrupt_.asked()) return kExitInterrupted;
  }
  if (console_.json())
    console_.print_json(conversation_json(session_.conversation()).set("replies", std::move(replies_)));
  return kExitDone;
}

void ChatRepl::handle(const std::string& text) {
  const auto command = parse_chat_command(text);
  if (!command) {
    answer([&](const ChatSession::Show& show) {
      return session_.ask(std::string(unescaped_message(text)), show, &interrupt_);
    });
    return;
  }
  std::vector<std::string_view> names;
  for (const Entry& entry : table()) {
    names.push_back(entry.name);
    if (entry.name != command->name) continue;
    check(entry.argument.empty() == command->argument.empty() || entry.argument.starts_with('['),
          "expected /{} {}, found '{}'", entry.name, entry.argument, text);
    return (this->*entry.run)(command->argument);
  }
  const std::string_view best = nearest(command->name, names);
  fail(Hint{best.empty() ? "/help lists the commands; a message that begins with / is written //"
                         : fmt::format("did you mean /{}? A message that begins with / is written //", best)},
       "unknown command /{}", command->name);
}

void ChatRepl::answer(const std::function<Reply(const ChatSession::Show&)>& ask) {
  if (style_.interactive) interrupt_.forget();
  bool line_open = false;
  const Reply reply = ask([&](std::string_view piece) {
    if (console_.json()) return;
    console_.print(style_.interactive ? terminal_safe(piece) : std::string(piece));
    line_open = !piece.ends_with('\n');
  });
  // An answer is a line, also one that has no word: whoever reads them can count.
  if (!console_.json() && (line_open || !style_.interactive)) console_.print("\n");
  if (console_.json()) replies_.push(as_json(reply));
  if (reply.tokens_dropped > 0)
    say(fmt::format("({} tokens of the conversation did not fit the context of {} and were left out)",
                    reply.tokens_dropped, session_.context()));
  if (reply.finish == FinishReason::cancelled) say("(stopped)");
  if (reply.finish == FinishReason::length)
    say(fmt::format("(cut after {} tokens)", reply.usage.generated_tokens));
  if (!reply.kept) say("(no answer; the question is forgotten)");
  last_ = reply;
  ++answers_;
  generated_ += reply.usage.generated_tokens;
  dropped_ += reply.tokens_dropped;
}

void ChatRepl::tell(const std::string& text) const {
  if (style_.interactive)
    console_.print(text + "\n");
  else
    say(text);  // stdout is for answers
}

void ChatRepl::retry(const std::string&) {
  answer([&](const ChatSession::Show& show) { return session_.retry(show, &interrupt_); });
}

void ChatRepl::clear(const std::string&) {
  session_.clear();
  say("(a new conversation)");
}

void ChatRepl::help(const std::string&) {
  std::string text;
  for (const Entry& entry : table())
    text += fmt::format("  {:<15} {}\n", fmt::format("/{} {}", entry.name, entry.argument), entry.help);
  text += "  A line that ends with \\ goes on in the next; \"\"\" begins and ends a block of lines.\n";
  text += "  Ctrl-C stops an answer.";
  tell(text);
}

void ChatRepl::save_to(const std::string& path, bool replace) {
  const Conversation conversation = session_.conversation();
  check(!session_.history().empty(), "there is nothing to save yet");
  PosixFileOps ops;
  if (!replace && std::filesystem::exists(path))
    fail(Hint{"/save! writes over it"}, "{} exists already", path);
  write_file(ops, path, conversation_json(conversation).dump() + "\n",
             replace ? Existing::replace : Existing::refuse);
  say(fmt::format("(saved {} turns to {})", conversation.size(), path));
}

void ChatRepl::load(const std::string& path) {
  std::vector<Conversation> conversations = read_conversations(path, 2);
  const std::size_t turns = conversations[0].size();
  session_.replace(std::move(conversations[0]));
  say(fmt::format("({} turns{})", turns,
                  conversations.size() > 1 ? ", the first of several conversations in this file" : ""));
}

void ChatRepl::stats(const std::string&) {
  std::string text = fmt::format("context: {} of {} tokens, layout {}\n", session_.context_used(),
                                 session_.context(), session_.layout().text().name);
  if (last_) {
    const Usage& usage = last_->usage;
    text += fmt::format("last answer: {} tokens, {:.1f} tokens/s, seed {}\n", usage.generated_tokens,
                        per_second(usage.generated_tokens - 1, usage.decode_seconds), last_->seed);
    text += fmt::format("its prompt: {} tokens, {} of them read before, first token after {:.0f} ms\n",
                        usage.prompt_tokens, usage.cached_tokens, 1000 * usage.seconds_to_first_token());
  }
  text += fmt::format("in all: {} answers, {} tokens, {} tokens of history left out", answers_, generated_,
                      dropped_);
  tell(text);
}

void ChatRepl::system(const std::string& text) {
  if (!text.empty()) session_.set_system(text == "-" ? "" : text);
  tell(session_.system().empty() ? "(no system prompt)"
                                 : fmt::format("system prompt: {}", session_.system()));
}

}  // namespace thimble
