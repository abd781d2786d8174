// `thimble chat` at a terminal and in scripts.
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "base/json.h"
#include "base/rng.h"
#include "support/pseudo_terminal.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

struct Exchange {
  std::string question, answer;
};
constexpr std::string_view kPrompt = "> ";

const std::vector<Exchange> kExchanges = {{"What is your name?", "I am Thimble."},
                                          {"Wie geht's?", "Gut, Grüße 😀!"},
                                          {"Two lines?", "first\nsecond"},
                                          {"a\nb", "letters"},
                                          {"Bye.", "Good bye."}};

std::string as_line(const std::vector<Exchange>& exchanges) {
  Json messages = Json::array();
  for (const Exchange& exchange : exchanges) {
    messages.push(Json::object().set("role", "user").set("content", exchange.question));
    messages.push(Json::object().set("role", "assistant").set("content", exchange.answer));
  }
  return Json::object().set("messages", messages).dump() + "\n";
}

// A model that memorized five answers, and a song that only ends at the end of the context.
class ChatCommand : public testing::Test {
 protected:
  ChatCommand() {
    std::string song, chats;
    for (int i = 0; i < 400; ++i) song += "la ";
    Rng rng(1);
    for (int i = 0; i < 120; ++i) {
      std::vector<Exchange> exchanges;
      for (std::uint64_t rounds = 1 + rng.below(3); rounds > 0; --rounds)
        exchanges.push_back(kExchanges[rng.below(kExchanges.size())]);
      chats += as_line(exchanges);
      if (i % 8 == 0) chats += as_line({exchanges[0], {"Sing.", song}}) + as_line({{"Sing.", song}});
    }
    folder_.write("chats.jsonl", chats);
    folder_.write("val.jsonl", as_line({{"Hm?", "I am Thimble."}}));
    std::vector<std::string> arguments = {
        "train",      "--preset",  "chat",       "--data",          path("chats.jsonl"),
        "-o",         path("run"), "--val-data", path("val.jsonl"), "--tokenizer",
        "bytes:chat", "--steps",   "160",        "--val-every",     "160",
        "--quiet"};
    for (const char* setting : {"context=512", "layers=2", "dim=64", "heads=2", "kv_heads=1",
                                "mlp_hidden=128", "batch_tokens=1024", "lr=0.03", "matrix_lr=0.015"}) {
      arguments.push_back("--set");
      arguments.push_back(setting);
    }
    const RunResult trained = run_binary({.arguments = arguments});
    EXPECT_EQ(trained.exit_code, 0) << trained;
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string model() const { return path("run/last.safetensors"); }

  std::vector<std::string> words(std::vector<std::string> more) const {
    more.insert(more.begin(), {"chat", model(), "--greedy"});
    return more;
  }
  RunResult script(const std::string& input, std::vector<std::string> more = {}) const {
    return run_binary({.arguments = words(std::move(more)), .input = input});
  }
  TerminalOptions terminal(std::vector<std::string> more = {}) const {
    return {
        .arguments = words(std::move(more)),
        .environment = {{"XDG_STATE_HOME", path("state")}, {"TERM", "xterm-256color"}, {"NO_COLOR", "1"}}};
  }

  TempFolder folder_;
};

TEST_F(ChatCommand, AnswersAScriptLineByLine) {
  const RunResult plain = script("What is your name?\nWie geht's?\n\n\"\"\"\na\nb\n\"\"\"\na\\\nb\nBye.");
  EXPECT_EQ(plain.exit_code, 0);
  EXPECT_EQ(plain.out, "I am Thimble.\nGut, Grüße 😀!\nletters\nletters\nGood bye.\n") << plain;

  const RunResult json = script("Bye.\nTwo lines?\n/retry\n", {"--json", "--seed", "5"});
  ASSERT_EQ(json.exit_code, 0) << json;
  const Json result = parse_json(json.out, "chat --json");
  EXPECT_EQ(result.at("messages").size(), 4u);
  const auto& replies = result.at("replies").as_array();
  ASSERT_EQ(replies.size(), 3u);
  EXPECT_EQ(replies[1].at("text").as_string(), "first\nsecond");
  EXPECT_EQ(replies[1].at("seed").as_int(), 6);
  EXPECT_EQ(replies[2].at("seed").as_int(), 7);
  EXPECT_EQ(replies[0].at("finish_reason").as_string(), "stop");
  EXPECT_EQ(replies[0].at("prompt_tokens").as_int(), 1 + 1 + 4 + 1 + 1) << "bos, role, Bye., end, role";

  const RunResult longer = script("Bye.\n", {"--json", "--min-tokens", "30"});
  EXPECT_GE(
      parse_json(longer.out, "chat --json").at("replies").as_array().at(0).at("generated_tokens").as_int(),
      30)
      << longer;
  std::set<std::uint64_t> seeds;
  for (int i = 0; i < 2; ++i) {
    const RunResult random =
        run_binary({.arguments = {"chat", model(), "--temperature", "0.5", "--json"}, .input = "Bye.\n"});
    seeds.insert(parse_json(random.out, "chat --json").at("replies").as_array().at(0).at("seed").as_uint());
  }
  EXPECT_EQ(seeds.size(), 2u) << "random unless --seed is passed";

  const RunResult quoted = script("\"\"\"/quit\"\"\"\nBye.\n", {"--json"});
  ASSERT_EQ(quoted.exit_code, 0) << quoted;
  EXPECT_EQ(parse_json(quoted.out, "chat --json").at("replies").size(), 2u)
      << "a command in quotes is a message";

  const RunResult failed = script("Bye.\n/quit now\nBye.\n", {"--json"});
  EXPECT_EQ(failed.exit_code, 1) << failed;
  EXPECT_EQ(parse_json(failed.out, "chat --json").at("replies").size(), 1u) << "the replies before the error";
  EXPECT_NE(failed.err.find("expected /quit, found '/quit now'"), std::string::npos) << failed;

  const RunResult quiet = script("/stats\n/system\n", {"--quiet"});
  EXPECT_NE(quiet.err.find("context: "), std::string::npos)
      << "--quiet does not hide requested output" << quiet;
  EXPECT_NE(quiet.err.find("(no system prompt)"), std::string::npos) << quiet;

  const RunResult stop = script("", {"--stop", ""});
  EXPECT_EQ(stop.exit_code, 1) << "reported once, not for every question" << stop;
  EXPECT_NE(stop.err.find("stop: a string must not be empty"), std::string::npos) << stop;

  const RunResult wrong = script("/sav x\nBye.\n");
  EXPECT_EQ(wrong.exit_code, 1) << wrong;
  EXPECT_EQ(wrong.out, "");
  EXPECT_NE(wrong.err.find("unknown command /sav\nhint: did you mean /save?"), std::string::npos) << wrong;
}

TEST_F(ChatCommand, SettingsCanBeChangedAndShown) {
  const RunResult run = script(
      "/set max-tokens 4\nBye.\n/set temperature 0.5\n/set parameter top_k 7\n/set num_predict 5\n"
      "/set system Be kind.\n/show\n/exit\nBye.\n");
  ASSERT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(run.out, "Good\n") << "four bytes, and nothing after /exit" << run;
  for (const char* line : {"(cut after 4 tokens: --max-tokens)", "\ntemperature: 0.5\n", "\ntop-k: 7\n",
                           "\nmax-tokens: 5\n", "\nsystem prompt: Be kind.\n"})
    EXPECT_NE(run.err.find(line), std::string::npos) << line << run;
  EXPECT_EQ(run.err.find("greedy"), std::string::npos) << "--greedy ended with /set temperature" << run;

  const std::pair<std::string, std::string> wrong[] = {
      {"/set", "expected /set NAME VALUE"},
      {"/set temperature", "expected /set temperature F"},
      {"/set temperature hot", "--temperature expects a number"},
      {"/set tempreture 1", "did you mean temperature?"},
      {"/regen", "did you mean /retry?"}};
  for (const auto& [line, message] : wrong) {
    const RunResult failed = script(line + "\n");
    EXPECT_EQ(failed.exit_code, 1) << failed;
    EXPECT_NE(failed.err.find(message), std::string::npos) << failed;
  }
  EXPECT_EQ(script("/bye\nBye.\n").out, "");
}

TEST_F(ChatCommand, AnAnswerCutByTheContextSaysSo) {
  const RunResult sung = script("Sing.\n", {"--min-tokens", "600"});
  ASSERT_EQ(sung.exit_code, 0) << sung;
  EXPECT_NE(sung.err.find(": the context of 512 tokens is full)"), std::string::npos) << sung;
}

TEST_F(ChatCommand, SavesConversationsForLoadingAndTraining) {
  const std::string file = path("talk.jsonl");
  ASSERT_EQ(script("Bye.\nWie geht's?\n/save " + file + "\n").exit_code, 0);
  EXPECT_EQ(folder_.read("talk.jsonl"), as_line({kExchanges[4], kExchanges[1]}));
  const RunResult again = script("Bye.\n/save " + file + "\n");
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_NE(again.err.find("already exists\nhint: /save! overwrites it"), std::string::npos) << again;
  EXPECT_EQ(script("/load " + file + "\n/retry\n/save! " + file + "\n").out, "Gut, Grüße 😀!\n");
  EXPECT_EQ(folder_.read("talk.jsonl"), as_line({kExchanges[4], kExchanges[1]}));
  EXPECT_EQ(script("/system Be kind.\nBye.\n/save! " + file + "\n").exit_code, 0);
  EXPECT_TRUE(
      folder_.read("talk.jsonl").starts_with(R"({"messages":[{"role":"system","content":"Be kind."})"));

  const std::string odd = path("a[b]*:2");  // a name with pattern characters is taken literally
  const RunResult loaded = script("Bye.\n/save " + odd + "\n/load " + odd + "\n");
  EXPECT_EQ(loaded.exit_code, 0) << loaded;
  EXPECT_NE(loaded.err.find("(2 turns)"), std::string::npos) << loaded;
  const RunResult folder = script("Bye.\n/save " + path("") + ".\n");
  EXPECT_NE(folder.err.find("it is a folder\n"), std::string::npos)
      << "without a hint that cannot help" << folder;
  const RunResult device = script("Bye.\n/save /dev/null\n");
  EXPECT_NE(device.err.find("a symbolic link or a device"), std::string::npos) << device;
  EXPECT_EQ(device.err.find("/save!"), std::string::npos) << device;

  const RunResult eval = run_binary({.arguments = {"eval", model(), "--data", file, "--exact", "--json"}});
  EXPECT_EQ(eval.exit_code, 0) << eval;
}

TEST_F(ChatCommand, RejectsAModelThatWasNotTrainedOnChats) {
  folder_.write("text.txt", std::string(3000, 'a'));
  const RunResult trained = run_binary(
      {.arguments = {
           "train",   "--data", path("text.txt"), "-o",    path("text"),      "--preset", "quick",  "--steps",
           "1",       "--set",  "context=16",     "--set", "layers=1",        "--set",    "dim=32", "--set",
           "heads=2", "--set",  "kv_heads=1",     "--set", "batch_tokens=64", "--quiet"}});
  ASSERT_EQ(trained.exit_code, 0) << trained;
  const RunResult chat = run_binary({.arguments = {"chat", path("text")}, .input = "hi\n"});
  EXPECT_EQ(chat.exit_code, 1);
  EXPECT_NE(chat.err.find("was not trained on chats\nhint: "), std::string::npos) << chat;
  const RunResult forced =
      run_binary({.arguments = {"chat", path("text"), "--layout", "chatml"}, .input = "hi\n"});
  EXPECT_EQ(forced.exit_code, 1);
  EXPECT_NE(forced.err.find("has no special token <|im_start|>"), std::string::npos) << forced;
}

TEST_F(ChatCommand, ChatsAtATerminal) {
  TerminalOptions options = terminal();
  PseudoTerminal chat(options);
  ASSERT_TRUE(chat.wait_for("type /help for commands"));
  ASSERT_TRUE(chat.wait_for(kPrompt));
  chat.type("What is your name?\r");
  ASSERT_TRUE(chat.wait_for("I am Thimble.\r\n")) << chat.shown();
  ASSERT_TRUE(chat.wait_for(kPrompt));
  chat.type("Wie geht's?\r");
  ASSERT_TRUE(chat.wait_for("Gut, Grüße 😀!\r\n")) << chat.shown();
  ASSERT_TRUE(chat.wait_for(kPrompt));
  chat.type("\x1b[200~a\nb\x1b[201~\r");  // pasted: one message, not two
  ASSERT_TRUE(chat.wait_for("letters\r\n")) << chat.shown();
  ASSERT_TRUE(chat.wait_for(kPrompt));
  chat.type("a\\\r");
  ASSERT_TRUE(chat.wait_for(". ")) << "the message continues" << chat.shown();
  chat.type("b\r");
  ASSERT_TRUE(chat.wait_for("letters\r\n")) << chat.shown();
  ASSERT_TRUE(chat.wait_for(kPrompt));

  chat.type("/clear\r");
  ASSERT_TRUE(chat.wait_for("(new conversation)"));
  ASSERT_TRUE(chat.wait_for(kPrompt));
  ASSERT_TRUE(chat.wait_for_keys());          // the line editor is ready for keys
  chat.type("ä😀x\x7f\x7f\x7fWie geht's?\r");  // whole characters are typed, shown and deleted
  ASSERT_TRUE(chat.wait_for("ä")) << chat.shown();
  ASSERT_TRUE(chat.wait_for("Gut, Grüße 😀!\r\n")) << chat.shown();
  ASSERT_TRUE(chat.wait_for(kPrompt));
  chat.type("/stats\r");
  ASSERT_TRUE(chat.wait_for("seed 4")) << chat.shown();
  chat.type("/retry\r");
  ASSERT_TRUE(chat.wait_for("Gut, Grüße 😀!\r\n")) << chat.shown();
  chat.type("/stats\r");
  ASSERT_TRUE(chat.wait_for("seed 5")) << "a retry uses the next seed" << chat.shown();
  chat.type("/clear\r");
  ASSERT_TRUE(chat.wait_for("(new conversation)"));
  chat.type("/save x\r");
  ASSERT_TRUE(chat.wait_for("the conversation is empty")) << "an error does not end the chat";
  chat.type("/quit\r");
  EXPECT_EQ(chat.wait_for_exit(), 0) << chat.shown();

  // The history is restored in the next session unless --no-history is passed.
  PseudoTerminal later(options);
  ASSERT_TRUE(later.wait_for(kPrompt));
  ASSERT_TRUE(later.wait_for_keys());
  for (int i = 0; i < 7; ++i) later.type(kUp);
  ASSERT_TRUE(later.wait_for("Wie geht's?")) << later.shown();
  later.type(kEnter);
  ASSERT_TRUE(later.wait_for("Gut, Grüße 😀!\r\n")) << later.shown();
  later.type(kControlD);  // it ends even if it comes before the next prompt
  EXPECT_EQ(later.wait_for_exit(), 0);

  options.environment["XDG_STATE_HOME"] = path("other");
  options.environment["NO_COLOR"] = "";
  options.arguments.push_back("--no-history");
  PseudoTerminal coloured(options);
  ASSERT_TRUE(coloured.wait_for("\x1b[1;32m>\x1b[0m ")) << coloured.shown();
  coloured.type("Bye.\r");
  ASSERT_TRUE(coloured.wait_for("Good bye.\r\n")) << coloured.shown();
  coloured.type(kControlD);
  EXPECT_EQ(coloured.wait_for_exit(), 0);
  EXPECT_EQ(later.shown().find("\x1b[1;32m"), std::string::npos) << later.shown();
  EXPECT_FALSE(std::filesystem::exists(path("other")));
}

TEST_F(ChatCommand, WorksOnNarrowAndDumbTerminals) {
  for (const char* kind : {"xterm", "dumb"}) {
    TerminalOptions options = terminal();
    options.columns = 20;
    options.environment["TERM"] = kind;
    PseudoTerminal chat(options);
    ASSERT_TRUE(chat.wait_for(kPrompt)) << kind;
    chat.type("What is your name?\r");  // 20 columns with the prompt, so the cursor wraps
    ASSERT_TRUE(chat.wait_for("I am Thimble.\r\n")) << kind << chat.shown();
    ASSERT_TRUE(chat.wait_for(kPrompt));
    chat.type("a line that is longer than the screen is wide, and goes on");
    for (int i = 0; i < 58; ++i) chat.type("\x7f");
    chat.type("Bye.\r");
    ASSERT_TRUE(chat.wait_for("Good bye.\r\n")) << kind << chat.shown();
    chat.type(kControlD);
    EXPECT_EQ(chat.wait_for_exit(), 0) << kind;
    if (kind == std::string("dumb")) {
      EXPECT_EQ(chat.shown().find('\x1b'), std::string::npos) << chat.shown();
    }
  }
}

TEST_F(ChatCommand, SurvivesErrorsAndRestoresTheTerminalOnSigterm) {
  PseudoTerminal chat(terminal());
  ASSERT_TRUE(chat.wait_for(kPrompt));
  chat.type("Bye.\r");
  ASSERT_TRUE(chat.wait_for("Good bye.\r\n")) << chat.shown();
  for (const char* command : {"/save ", "/save! ", "/load "}) {
    ASSERT_TRUE(chat.wait_for(kPrompt));
    chat.type(command + std::string(300, 'x') + "\r");  // a name that no file can have
    ASSERT_TRUE(chat.wait_for("File name too long")) << command << chat.shown();
  }
  ASSERT_TRUE(chat.wait_for(kPrompt));
  ASSERT_TRUE(chat.wait_for_keys());
  chat.type("/system \x16\x1b[31m\r");  // Ctrl-V inserts a literal Escape
  ASSERT_TRUE(chat.wait_for("system prompt: \uFFFD[31m")) << chat.shown();
  ASSERT_TRUE(chat.wait_for(kPrompt));

  ASSERT_TRUE(chat.wait_for_keys());
  chat.send(SIGTERM);
  EXPECT_EQ(chat.wait_for_exit(), -1) << "ended by the signal";
  const std::size_t enabled = chat.shown().rfind("\x1b[?2004h"), disabled = chat.shown().rfind("\x1b[?2004l");
  EXPECT_LT(enabled, disabled) << "bracketed paste must be switched off" << chat.shown();
}

// The number of threads besides the main thread, and how many of them do not block the signal.
std::pair<int, int> other_threads(int process, int signal) {
  int threads = 0, unblocked = 0;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process))) {
    if (task.path().filename() == std::to_string(process)) continue;
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (!line.starts_with("SigBlk:")) continue;
      ++threads;
      unblocked += (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) == 0;
    }
  }
  return {threads, unblocked};
}

// Resizing a window sends many signals. If two threads ran libedit's handler, the second would call
// an invalid function pointer.
TEST_F(ChatCommand, SignalsAreDeliveredToOneThread) {
  TerminalOptions options = terminal();
  options.environment["OMP_NUM_THREADS"] = "3";
  PseudoTerminal chat(options);
  ASSERT_TRUE(chat.wait_for(kPrompt));
  chat.type("Bye.\r");
  ASSERT_TRUE(chat.wait_for("Good bye.\r\n")) << "all threads have started" << chat.shown();
  ASSERT_TRUE(chat.wait_for(kPrompt));
  ASSERT_TRUE(chat.wait_for_keys());
  const auto [threads, unblocked] = other_threads(chat.process(), SIGWINCH);
  EXPECT_GE(threads, 2);
  EXPECT_EQ(unblocked, 0);
  for (int i = 0; i < 1000; ++i) {
    chat.send(SIGWINCH);
    if (i % 16 == 0) chat.read_all();
  }
  chat.type("/stats\r");
  EXPECT_TRUE(chat.wait_for("total: ")) << chat.shown();
}

// Lets the program run for short moments until it has begun to sing; false if it finished first.
bool caught_singing(PseudoTerminal& chat, std::size_t from) {
  for (int moments = 0; moments < 100000; ++moments) {
    chat.thaw();
    usleep(500);
    chat.freeze();
    chat.read_all();
    const std::string text = chat.plain_since(from);
    if (text.find("(cut after") != std::string::npos) return false;
    if (text.find("la la") != std::string::npos) return true;
  }
  return false;
}

bool interrupt_the_line(PseudoTerminal& chat) {
  if (!chat.wait_for_keys()) return false;
  chat.type(kControlC);
  return chat.wait_for("Ctrl-C again") && chat.wait_for(kPrompt);
}

TEST_F(ChatCommand, ControlCStopsTheAnswerButNotTheProgram) {
  PseudoTerminal chat(terminal());
  ASSERT_TRUE(chat.wait_for(kPrompt));
  chat.type("half a line");
  ASSERT_TRUE(chat.wait_for("half a line"));
  ASSERT_TRUE(interrupt_the_line(chat)) << chat.shown();
  chat.type("Bye.\r");
  ASSERT_TRUE(chat.wait_for("Good bye.\r\n")) << "the line was cleared" << chat.shown();
  ASSERT_TRUE(chat.wait_for(kPrompt));

  bool stopped = false;
  for (int attempt = 0; attempt < 50 && !stopped; ++attempt) {
    chat.type("/clear\r");
    ASSERT_TRUE(chat.wait_for("(new conversation)"));
    ASSERT_TRUE(chat.wait_for(kPrompt));
    const std::size_t from = chat.shown().size();
    chat.type("Sing.\r");
    // Two Ctrl-C still stop one answer. The terminal discards shown output when it handles a
    // Ctrl-C, which takes time on a busy machine: both must be handled before the program
    // continues, or the prompt would be lost.
    if (caught_singing(chat, from))
      for (int i = 0; i < 2; ++i) {
        chat.type(kControlC);
        ASSERT_TRUE(chat.wait_for("^C")) << chat.shown();
      }
    chat.thaw();
    ASSERT_TRUE(chat.wait_for(kPrompt)) << chat.shown();
    const std::string text = chat.plain_since(from);  // the complete song has 503 bytes
    stopped =
        text.find("(stopped)") != std::string::npos && text.size() < 495;  // else it was already complete
  }
  EXPECT_TRUE(stopped) << chat.shown();
  chat.type("/stats\r");
  ASSERT_TRUE(chat.wait_for("total: ")) << chat.shown();
  ASSERT_TRUE(chat.wait_for(kPrompt));
  chat.type("/clear\r");  // with the song in the context it would sing again
  ASSERT_TRUE(chat.wait_for("(new conversation)"));
  ASSERT_TRUE(chat.wait_for(kPrompt));
  chat.type("Bye.\r");
  ASSERT_TRUE(chat.wait_for("Good bye.\r\n")) << "the chat continues" << chat.shown();
  ASSERT_TRUE(chat.wait_for(kPrompt));
  ASSERT_TRUE(interrupt_the_line(chat)) << chat.shown();
  ASSERT_TRUE(chat.wait_for_keys());
  chat.type(kControlC);
  EXPECT_EQ(chat.wait_for_exit(), 130) << chat.shown();
}

// The model of ./quickstart, with held-out questions at a terminal. It answers 96 of 100.
TEST(FullTierChat, TheQuickstartModelAnswersHeldOutQuestions) {
  const TempFolder folder;
  const std::string chats = (folder / "chats.jsonl").string(),
                    questions = (folder / "questions.jsonl").string(), run = (folder / "run").string();
  const auto thimble = [](std::vector<std::string> arguments) {
    const RunResult result = run_binary({.arguments = std::move(arguments), .timeout_seconds = 1500});
    ASSERT_EQ(result.exit_code, 0) << result;
  };
  thimble({"data", "sample", "--kind", "chat", "--size", "30M", "-o", chats});
  thimble({"data", "sample", "--kind", "chat", "--split", "heldout", "--count", "200", "-o", questions});
  thimble({"train", "--preset", "chat", "--data", chats, "--tokenizer", "bpe:1024", "-o", run, "--quiet"});

  PseudoTerminal chat(
      {.arguments = {"chat", run, "--greedy", "--no-history"}, .environment = {{"NO_COLOR", "1"}}});
  ASSERT_TRUE(chat.wait_for(kPrompt));
  int asked = 0, correct = 0;
  std::istringstream lines(folder.read("questions.jsonl"));
  for (std::string line; asked < 50 && std::getline(lines, line);) {
    const Json conversation = parse_json(line, "questions");
    const auto& messages = conversation.at("messages").as_array();
    if (messages.size() != 2) continue;
    ++asked;
    const std::size_t from = chat.shown().size();
    chat.type("\x1b[200~" + messages[0].at("content").as_string() + "\x1b[201~\r/clear\r");
    ASSERT_TRUE(chat.wait_for("(new conversation)")) << chat.plain_since(from);
    ASSERT_TRUE(chat.wait_for(kPrompt));
    correct +=
        chat.plain_since(from).find("\n" + messages[1].at("content").as_string() + "\n") != std::string::npos;
  }
  EXPECT_EQ(asked, 50);
  EXPECT_GE(correct, 43);
}

}  // namespace
}  // namespace thimble
