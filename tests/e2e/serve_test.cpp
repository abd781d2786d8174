// `thimble serve`, started and stopped by signals.
#include <csignal>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "serve/http_client.h"
#include "support/documents.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

class ServeCommand : public testing::Test {
 protected:
  ServeCommand() {
    std::string chats;
    for (int i = 0; i < 40; ++i) chats += chat_line(fmt::format("Hi {}.", i));
    folder_.write("chats.jsonl", chats);
    folder_.write("val.jsonl", chat_line("Hm?"));
    train({"--tokenizer", "bytes:chat"});
  }

  // Replaces the model by one that is trained for two steps.
  void train(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {
        "train",      "--preset",        "chat", "--data",    path("chats.jsonl"),
        "--val-data", path("val.jsonl"), "-o",   path("run"), "--steps",
        "2",          "--val-every",     "2",    "--quiet",   "--force"};
    for (const char* setting : {"context=512", "layers=2", "dim=32", "heads=2", "kv_heads=1", "mlp_hidden=64",
                                "batch_tokens=1024"}) {
      arguments.push_back("--set");
      arguments.push_back(setting);
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    const RunResult trained = run_binary({.arguments = arguments});
    EXPECT_EQ(trained.exit_code, 0) << trained;
  }

  static std::string chat_line(const std::string& question) {
    return fmt::format(
        R"({{"messages":[{{"role":"user","content":"{}"}},{{"role":"assistant","content":"Hello!"}}]}})"
        "\n",
        question);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Runs the server in a thread while `visit` sends requests; GET /stop triggers `signal`.
  RunResult serve(std::vector<std::string> more, int signal, const std::function<void(int port)>& visit,
                  std::map<std::string, std::string> environment = {}) const {
    if (HasFailure()) return {};  // without a model
    more.insert(more.begin(), {"serve", path("run"), "--port", "0"});
    const std::filesystem::path out = folder_ / "out";
    std::filesystem::remove(out);
    RunResult result;
    std::thread server([&] {
      result = run_binary({.arguments = more,
                           .environment = environment,
                           .stdout_to = out,
                           .signal = signal,
                           .signal_after_text = "\"path\":\"/stop\""});
    });
    const int port = printed_port(out);
    if (port > 0) visit(port);
    get(port, "/stop");
    server.join();
    return result;
  }

  // "listening on http://127.0.0.1:PORT"
  static int printed_port(const std::filesystem::path& out) {
    for (int i = 0; i < 20000; ++i) {
      std::ifstream file(out);
      std::stringstream text;
      text << file.rdbuf();
      const std::string line = text.str();
      if (line.ends_with('\n')) return std::stoi(line.substr(line.rfind(':') + 1));
      usleep(10000);
    }
    ADD_FAILURE() << "no port was printed";
    return 0;
  }

  TempFolder folder_;
};

TEST_F(ServeCommand, AnswersAndEndsWithZeroOnSigterm) {
  const RunResult run = serve({"--alias", "mini", "--seed", "7"}, SIGTERM, [](int port) {
    const HttpAnswer answer = post(port, "/v1/chat/completions",
                                   R"({"messages":[{"role":"user","content":"a secret"}],"max_tokens":9})");
    EXPECT_EQ(answer.status, 200) << answer;
    EXPECT_EQ(answer.json().at("model").as_string(), "mini");
    const HttpAnswer again = post(port, "/v1/chat/completions",
                                  R"({"messages":[{"role":"user","content":"a secret"}],"max_tokens":9})");
    EXPECT_EQ(answer.json().at("choices"), again.json().at("choices"));  // because of --seed
    EXPECT_EQ(get(port, "/").status, 200);
  });
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_NE(run.err.find("\"path\":\"/v1/chat/completions\",\"status\":200"), std::string::npos) << run.err;
  EXPECT_EQ(run.err.find("secret"), std::string::npos) << run.err;
  EXPECT_EQ(run.err.find("warning"), std::string::npos) << run.err;
}

TEST_F(ServeCommand, AnswersTheRequestsOfTheHttpReference) {
  // The tokenizer of the page: some requests contain its ids.
  const std::string chats = path("chats.jsonl");
  run_binary({.arguments = {"data", "sample", "--kind", "chat", "--size", "60k", "-o", chats, "--force"}});
  train({"--tokenizer", "bpe:512"});
  std::ifstream file(source_folder() / "docs/reference/http.md");
  const Document document = read_document(file);
  EXPECT_TRUE(document.problems.empty());
  EXPECT_GE(document.commands.size(), 10u);
  const RunResult run = serve({}, SIGTERM, [&](int port) {
    for (std::string command : document.commands) {
      const std::string address = "localhost:8080";
      const std::size_t at = command.find(address);
      ASSERT_TRUE(command.starts_with("curl ") && at != command.npos) << command;
      command.replace(at, address.size(), fmt::format("127.0.0.1:{}", port));
      // The page has one request that is an error: its temperature is negative.
      const bool is_error = command.find("-0.5") != command.npos;
      command.replace(0, 4, "curl -sS --fail-with-body");
      const RunResult answer = run_program("/bin/bash", {.arguments = {"-c", command}});
      if (answer.exit_code == 127) GTEST_SKIP() << "curl is not installed";
      EXPECT_EQ(answer.exit_code, is_error ? 22 : 0) << command << "\n" << answer;
      EXPECT_EQ(answer.out.find("\"error\"") != answer.out.npos, is_error) << command << "\n" << answer;
    }
  });
  EXPECT_EQ(run.exit_code, 0) << run;
}

TEST_F(ServeCommand, DrainsOnCtrlC) {
  std::unique_ptr<HttpClient> client;
  std::thread reader;
  HttpAnswer answer;
  const RunResult run = serve({"--drain-timeout", "200"}, SIGINT, [&](int port) {
    client = std::make_unique<HttpClient>(port);
    client->send(http_text("POST", "/v1/completions",
                           R"({"prompt":"a","max_tokens":500,"ignore_eos":true,"n":24,"stream":true})"));
    EXPECT_TRUE(client->wait_for("data: "));
    reader = std::thread([&] { answer = client->read_answer(); });
  });
  if (reader.joinable()) reader.join();
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_TRUE(answer.whole);
  EXPECT_EQ(events_of(answer.body).back(), "[DONE]");
}

TEST_F(ServeCommand, ReadsKeysFromFilesAndTheEnvironment) {
  folder_.write("keys.txt", "# ours\nalpha\n");
  const RunResult run =
      serve({"--api-key-file", path("keys.txt"), "--log-prompts"}, SIGTERM,
            [](int port) {
              EXPECT_EQ(get(port, "/props").status, 401);
              EXPECT_EQ(get(port, "/props", "Authorization: Bearer alpha\r\n").status, 200);
              EXPECT_EQ(get(port, "/props", "Authorization: Bearer beta\r\n").status, 200);
              post(port, "/v1/completions", R"({"prompt":"well said"})", "X-Api-Key: beta\r\n");
            },
            {{"THIMBLE_API_KEY", "beta"}});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_NE(run.err.find("\"prompt\":\"well said\""), std::string::npos);
  for (const char* key : {"alpha", "beta"}) EXPECT_EQ(run.err.find(key), std::string::npos) << run.err;
}

TEST_F(ServeCommand, RefusesKeysThatNoClientCanSend) {
  folder_.write("broken.txt", "alpha\nbe\x01ta\n");
  const auto fails = [&](std::vector<std::string> more, std::vector<std::string> variables = {}) {
    variables.insert(variables.end(), {binary_path().string(), "serve", path("run"), "--port", "0"});
    variables.insert(variables.end(), more.begin(), more.end());
    const RunResult run = run_program("/usr/bin/env", {.arguments = variables, .timeout_seconds = 20});
    EXPECT_EQ(run.exit_code, 2) << run;
    return run.err;
  };
  for (const char* key : {"", " ", "k ", "k\r"}) {
    EXPECT_NE(fails({"--api-key", key}).find("API key from --api-key"), std::string::npos);
    EXPECT_NE(fails({}, {fmt::format("THIMBLE_API_KEY={}", key)}).find("API key from THIMBLE_API_KEY"),
              std::string::npos);
  }
  const std::string second = fails({"--api-key-file", path("broken.txt")});
  EXPECT_NE(second.find("broken.txt (number 2)"), std::string::npos) << second;
  EXPECT_EQ(second.find("ta\n"), std::string::npos) << second;
}

// As under systemd's MemoryDenyWriteExecute=yes: oneDNN and PCRE2 must not compile at run time.
TEST_F(ServeCommand, NeedsNoWritableExecutableMemory) {
  constexpr const char* kUnderMdwe =
      "import ctypes, os, sys\n"
      "if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) != 0: sys.exit(77)\n"
      "os.execv(sys.argv[1], sys.argv[1:])";
  const auto denied = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"python3", "-c", kUnderMdwe, binary_path().string()});
    return run_program("/usr/bin/env", {.arguments = words});
  };
  std::string text;
  for (int i = 0; i < 80; ++i)
    text += fmt::format("{} one two three four five six seven eight nine ten\n", i);
  folder_.write("text.txt", text);
  const std::vector<std::string> train = {"train",       "--data",     path("text.txt"),
                                          "--tokenizer", "bpe:270",    "-o",
                                          path("t"),     "--layers",   "1",
                                          "--dim",       "64",         "--heads",
                                          "2",           "--kv-heads", "1",
                                          "--context",   "64",         "--batch-tokens",
                                          "64",          "--steps",    "1",
                                          "--val-every", "0",          "--quiet",
                                          "--force"};
  const RunResult forbidden = denied(train);
  if (forbidden.exit_code == 127 || forbidden.exit_code == 77)
    GTEST_SKIP() << "no python3, or a kernel before 6.3";
  const RunResult trained = run_binary({.arguments = train});
  ASSERT_EQ(trained.exit_code, 0) << trained;
  std::string prompt;
  for (int i = 0; i < 5; ++i) prompt += "one two three ";
  const RunResult result = denied({"generate", path("t"), prompt, "--max-tokens", "4", "--greedy"});
  EXPECT_EQ(result.exit_code, 0) << result;
  EXPECT_EQ(result.out,
            run_binary({.arguments = {"generate", path("t"), prompt, "--max-tokens", "4", "--greedy"}}).out);
}

TEST_F(ServeCommand, EscapesControlCharactersInTheLog) {
  const RunResult run = serve({"--log-prompts"}, SIGTERM, [](int port) {
    EXPECT_EQ(
        post(port, "/v1/completions", R"({"prompt":"\u009b31m\u001b[2J\nhello","max_tokens":1})").status,
        200);
    EXPECT_EQ(post(port, "/v1/completions", R"({"prompt":"a","\u009b31m\u001b[2J":1})").status, 400);
  });
  EXPECT_NE(run.err.find("hello"), std::string::npos) << run;
  for (const char* control : {"\x1b", "\xC2\x9B"}) EXPECT_EQ(run.err.find(control), std::string::npos) << run;
}

TEST_F(ServeCommand, WarnsIfTheKeyFileIsReadableByOthers) {
  using std::filesystem::perms;
  const std::filesystem::path keys = folder_.write("keys.txt", "alpha\n");
  for (const bool open : {true, false}) {
    std::filesystem::permissions(keys, perms::owner_read | (open ? perms::others_read : perms::none));
    const RunResult run = serve({"--api-key-file", keys.string()}, SIGTERM, [](int) {});
    EXPECT_EQ(run.err.find("chmod 600") != std::string::npos, open) << run;
  }
}

TEST_F(ServeCommand, WarnsIfItIsOpenWithoutKeys) {
  const RunResult open = serve({"--host", "0.0.0.0"}, SIGTERM, [](int) {});
  EXPECT_NE(open.err.find("warning: 0.0.0.0:"), std::string::npos) << open;
  const RunResult keyed = serve({"--host", "0.0.0.0", "--api-key", "k"}, SIGTERM, [](int) {});
  EXPECT_EQ(keyed.err.find("warning"), std::string::npos) << keyed;
}

TEST_F(ServeCommand, ReportsErrorsBeforeListening) {
  const auto fails = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"serve", path("run")});
    return run_binary({.arguments = more});
  };
  EXPECT_EQ(fails({"--port", "70000"}).exit_code, 2);
  EXPECT_EQ(fails({"--slots", "0"}).exit_code, 2);
  const RunResult nowhere = fails({"--host", "not an address", "--port", "0"});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_NE(nowhere.err.find("cannot resolve the address not an address"), std::string::npos) << nowhere;
  folder_.write("empty.txt", "# nothing\n");
  EXPECT_NE(fails({"--api-key-file", path("empty.txt")}).err.find("contains no key"), std::string::npos);
  EXPECT_EQ(fails({"--alias", ""}).exit_code, 2);
  EXPECT_EQ(fails({"--alias", " "}).exit_code, 2);
  EXPECT_EQ(fails({"--max-body", "8388608", "--max-memory", "16777216"}).exit_code, 2);
  serve({}, SIGTERM, [&](int port) {
    const RunResult taken = fails({"--port", std::to_string(port)});
    EXPECT_EQ(taken.exit_code, 1);
    EXPECT_NE(taken.err.find("pass --port 0 to use any free one"), std::string::npos) << taken;
  });
}

}  // namespace
}  // namespace thimble
