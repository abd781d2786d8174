// `thimble generate` on the command line.
#include <algorithm>
#include <csignal>

#include "base/json.h"
#include "support/pseudo_terminal.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::generate_test {
namespace {

RunResult run(std::vector<std::string> arguments, RunOptions options = {}) {
  options.arguments = std::move(arguments);
  return run_binary(options);
}

class GenerateCommand : public testing::Test {
 protected:
  // Two barely trained models, made once: of a text, and of chats with special tokens.
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    std::string text, chats;
    for (int i = 0; i < 100; ++i) {
      text += fmt::format("line {}: the cat sat on the mat.\n", i * 7);
      chats += fmt::format(R"({{"messages": [{{"role": "user", "content": "what is {0}?"}}, )"
                           R"({{"role": "assistant", "content": "it is {0}."}}]}})"
                           "\n",
                           i);
    }
    folder_->write("text.txt", text);
    folder_->write("chats.jsonl", chats);
    train("text", "text.txt",
          {"--tokenizer", "bytes", "--set", "context=2048", "--set", "batch_tokens=2048"});
    train("chat", "chats.jsonl", {"--tokenizer", "bytes", "--set", "context=64", "--set", "batch_tokens=64"});
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static void train(const std::string& run_name, const std::string& data, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"train",    "--data",  path(data), "-o",        path(run_name),
                                          "--preset", "quick",   "--steps",  "10",        "--val-every",
                                          "10",       "--set",   "layers=1", "--set",     "dim=32",
                                          "--set",    "heads=2", "--set",    "kv_heads=1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const RunResult result = run(arguments);
    ASSERT_EQ(result.exit_code, 0) << result;
  }

  static std::string path(const std::string& name) { return (*folder_ / name).string(); }

  // Uses seed 1 unless `more` contains another one.
  static RunResult generate(std::vector<std::string> more, RunOptions options = {}) {
    more.insert(more.begin(), {"generate", path("text")});
    if (std::ranges::count(more, std::string("--seed")) == 0) more.insert(more.end(), {"--seed", "1"});
    return run(std::move(more), std::move(options));
  }
  static Json generate_json(std::vector<std::string> more) {
    more.emplace_back("--json");
    const RunResult result = generate(std::move(more));
    EXPECT_EQ(result.exit_code, 0) << result;
    return parse_json(result.out, "generate --json");
  }
  static const Json& first(const Json& json) { return json.at("samples").as_array().at(0); }

  static std::unique_ptr<TempFolder> folder_;
};

std::unique_ptr<TempFolder> GenerateCommand::folder_;

// The binary re-executes itself with OpenMP settings, through a link called "exe".
TEST_F(GenerateCommand, KeepsItsProcessName) {
  const RunResult result = run_program(
      "/usr/bin/env",
      {.arguments = {"-u", "OMP_WAIT_POLICY", "-u", "GOMP_SPINCOUNT", binary_path().string(), "generate",
                     path("text"), "--prompt-file", "/proc/self/comm", "--max-tokens", "1"}});
  EXPECT_TRUE(result.out.starts_with("thimble")) << result;
}

TEST_F(GenerateCommand, ReadsThePromptFromAnArgumentAFileOrStdin) {
  const RunResult argument = generate({"line 7", "--max-tokens", "9"});
  ASSERT_EQ(argument.exit_code, 0) << argument;
  EXPECT_TRUE(argument.out.starts_with("line 7")) << argument;
  folder_->write("prompt.txt", "line 7\n");
  EXPECT_EQ(generate({"--prompt-file", path("prompt.txt"), "--max-tokens", "9"}).out, argument.out);
  EXPECT_EQ(generate({"-", "--max-tokens", "9"}, {.input = "line 7\n"}).out, argument.out);
  EXPECT_EQ(generate({"--prompt-file", "/dev/stdin", "--max-tokens", "9"}, {.input = "line 7\n"}).out,
            argument.out);
  folder_->write("prompt.txt", "\xEF\xBB\xBFline 7\r\n");
  EXPECT_EQ(generate({"--prompt-file", path("prompt.txt"), "--max-tokens", "9"}).out, argument.out)
      << "a byte order mark and a Windows line end";
  EXPECT_EQ(run({"run", path("text"), "line 7", "--max-tokens", "9", "--seed", "1"}).out, argument.out)
      << "run is an alias";
  EXPECT_EQ("line 7" + generate({"line 7", "--max-tokens", "9", "--no-display-prompt"}).out, argument.out);
  EXPECT_EQ(generate({"--max-tokens", "3"}).exit_code, 0) << "from bos only";
}

TEST_F(GenerateCommand, SamplesUseConsecutiveSeeds) {
  const Json many = generate_json({"l\ni", "-n", "3", "--seed", "5", "--max-tokens", "12"});
  std::string printed;
  for (std::size_t i = 0; i < 3; ++i) {
    const Json& sample = many.at("samples").as_array().at(i);
    EXPECT_EQ(first(generate_json({"l\ni", "--seed", std::to_string(5 + i), "--max-tokens", "12"})), sample);
    printed += (i > 0 ? "\nl\ni" : "l\ni") + sample.at("text").as_string() + "\n";
  }
  EXPECT_EQ(generate({"l\ni", "-n", "3", "--seed", "5", "--max-tokens", "12"}).out, printed);
}

TEST_F(GenerateCommand, ReportsTheFinishReason) {
  const Json complete = generate_json({"line", "--max-tokens", "40", "--ignore-eos"});
  EXPECT_EQ(first(complete).at("finish_reason").as_string(), "length");
  EXPECT_EQ(first(complete).at("tokens").size(), 40u);
  const std::string text = first(complete).at("text").as_string();
  // Stop on any ASCII letter, because a stop sequence must consist of complete characters.
  const std::size_t at = text.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz +()");
  ASSERT_NE(at, std::string::npos) << text;
  const std::string stop = text.substr(at, 1);
  const Json stopped = generate_json({"line", "--max-tokens", "40", "--ignore-eos", "--stop", stop});
  EXPECT_EQ(first(stopped).at("text").as_string(), text.substr(0, text.find(stop)));
  EXPECT_EQ(first(stopped).at("finish_reason").as_string(), "stop");
  EXPECT_EQ(first(stopped).at("stop_string").as_string(), stop);

  const Json ended = generate_json({"line", "--logit-bias", "0=100"});
  EXPECT_EQ(first(ended).at("finish_reason").as_string(), "stop") << "bos ends the text";
  EXPECT_EQ(first(ended).at("tokens").size(), 0u);
  const Json longer = generate_json({"line", "--logit-bias", "0=100", "--min-tokens", "4"});
  EXPECT_EQ(first(longer).at("tokens").size(), 4u);
}

TEST_F(GenerateCommand, TextsOfOneLineArePrintedOnePerLine) {
  const std::vector<std::string> options = {"-n", "3", "--max-tokens", "4", "--logit-bias", "98=100"};
  std::vector<std::string> one = options, several = options;
  one.insert(one.begin(), "b");
  several.insert(several.begin(), "a\nb");
  EXPECT_EQ(generate(one).out, "baaaa\nbaaaa\nbaaaa\n");
  EXPECT_EQ(generate(several).out, "a\nbaaaa\n\na\nbaaaa\n\na\nbaaaa\n");
}

TEST_F(GenerateCommand, PrintsLogProbabilitiesAsJson) {
  const Json json =
      generate_json({"line", "--greedy", "--max-tokens", "3", "--logprobs", "2", "--dtype", "f32"});
  const Json& scores = first(json).at("logprobs");
  ASSERT_EQ(scores.size(), 3u);
  for (const Json& score : scores.as_array()) {
    const auto& top = score.at("top").as_array();
    ASSERT_EQ(top.size(), 2u);
    EXPECT_EQ(top[0].at("id"), score.at("id")) << "greedy takes the most likely token";
    EXPECT_EQ(top[0].at("logprob"), score.at("logprob"));
    EXPECT_LT(score.at("logprob").as_double(), 0);
    EXPECT_LE(top[1].at("logprob").as_double(), top[0].at("logprob").as_double());
  }
}

TEST_F(GenerateCommand, EscapesControlCharactersAtATerminal) {
  for (const char* samples : {"1", "2"}) {
    PseudoTerminal terminal(
        {.arguments = {"generate", path("text"), "\x1b[31mline", "--max-tokens", "2", "-n", samples}});
    EXPECT_TRUE(terminal.wait_for("\uFFFD[31mline")) << terminal.shown();
    EXPECT_EQ(terminal.wait_for_exit(), 0) << terminal.shown();
    EXPECT_EQ(terminal.shown().find("\x1b[31m"), std::string::npos) << terminal.shown();
  }
  EXPECT_TRUE(generate({"\x1b[31mline", "--max-tokens", "2"}).out.starts_with("\x1b[31mline"))
      << "files get the text unchanged";
}

TEST_F(GenerateCommand, SpecialTokensAreNeverGenerated) {
  for (const char* more : {"--json", "--ignore-eos"}) {
    const RunResult result = run({"generate", path("chat"), "hello", "--logit-bias", "1=100", "--logit-bias",
                                  "98=90", "--max-tokens", "5", "--json", more});
    const Json json = parse_json(result.out, "generate --json");
    EXPECT_EQ(first(json).at("text").as_string(), "]]]]]") << "id 1 is <user>" << result;
  }
  const Json ended = parse_json(
      run({"generate", path("chat"), "hello", "--logit-bias", "3=100", "--json"}).out, "generate --json");
  EXPECT_EQ(first(ended).at("finish_reason").as_string(), "stop") << "<end_turn> ends the text";
}

TEST_F(GenerateCommand, AChatModelWithoutAPromptSaysSomething) {
  for (const char* seed : {"1", "2", "3", "4"}) {
    const RunResult result = run(
        {"generate", path("chat"), "--json", "--seed", seed, "--max-tokens", "9", "--logit-bias", "3=20"});
    ASSERT_EQ(result.exit_code, 0) << result;
    EXPECT_NE(first(parse_json(result.out, "generate --json")).at("tokens").size(), 0u) << result;
    EXPECT_NE(result.err.find("thimble chat"), std::string::npos) << result;
  }
  EXPECT_EQ(run({"generate", path("chat"), "what", "--max-tokens", "2"}).err, "");
  EXPECT_EQ(run({"generate", path("chat"), "-q", "--max-tokens", "2"}).err, "");
}

TEST_F(GenerateCommand, ContinuesPastTheContextAndReportsIt) {
  const std::vector<std::string> past = {"generate",     path("chat"), "it is",  "--ignore-eos",
                                         "--max-tokens", "100",        "--seed", "1"};
  std::vector<std::string> json = past;
  json.emplace_back("--json");
  const Json result = parse_json(run(json).out, "generate --json");
  EXPECT_EQ(first(result).at("tokens").size(), 100u) << "in a context of 64";
  EXPECT_EQ(first(result).at("finish_reason").as_string(), "length");
  const std::int64_t dropped = first(result).at("tokens_dropped").as_int();
  EXPECT_GE(dropped, 6 + 100 - 65);
  EXPECT_NE(run(past).err.find(fmt::format("64 tokens was full: the {} oldest tokens", dropped)),
            std::string::npos);

  const std::string long_prompt(500, 'x');
  const RunResult from_long = run({"generate", path("chat"), long_prompt, "--max-tokens", "3", "--json"});
  ASSERT_EQ(from_long.exit_code, 0) << from_long;
  EXPECT_EQ(first(parse_json(from_long.out, "generate --json")).at("tokens_dropped").as_int(), 501 - 48);
  EXPECT_NE(from_long.err.find("453 oldest tokens"), std::string::npos) << from_long;
}

TEST_F(GenerateCommand, UsesARandomSeedAndReportsIt) {
  const std::vector<std::string> command = {"generate", path("text"), "line", "--max-tokens", "30", "--json"};
  const Json a = parse_json(run(command).out, "generate --json"), b = parse_json(run(command).out, "again");
  EXPECT_NE(first(a).at("text").as_string(), first(b).at("text").as_string());
  const std::string seed = std::to_string(first(a).at("seed").as_uint());
  EXPECT_EQ(first(generate_json({"line", "--max-tokens", "30", "--seed", seed})), first(a));
  const RunResult stats = generate({"line", "--max-tokens", "2", "--stats", "--seed", "77"});
  EXPECT_NE(stats.err.find("seed: 77"), std::string::npos) << stats;
}

TEST_F(GenerateCommand, PrintsSpeedWithStats) {
  const RunResult result = generate({"line", "--max-tokens", "5", "--stats"});
  EXPECT_NE(result.err.find("tokens/s"), std::string::npos) << result;
  EXPECT_EQ(result.out.find("tokens/s"), std::string::npos) << result;
  EXPECT_EQ(generate({"line", "--max-tokens", "5"}).err, "");
  const Json json = generate_json({"line", "--max-tokens", "5", "--stats", "--ignore-eos"});
  EXPECT_EQ(json.at("stats").at("prompt_tokens").as_int(), 5);
  EXPECT_EQ(json.at("stats").at("generated_tokens").as_int(), 5);
}

TEST_F(GenerateCommand, CtrlCPrintsPartialSamplesAndExitsWith130) {
  std::size_t made = 0;
  for (double seconds = 0.5; made == 0 && seconds < 100; seconds *= 2) {  // longer on a busy machine
    const RunResult result =
        generate({"line", "-n", "1000", "--max-tokens", "2000", "--ignore-eos", "--json"},
                 {.signal = SIGINT, .signal_after_seconds = seconds});
    ASSERT_EQ(result.exit_code, 130) << result.err;
    const Json json = parse_json(result.out, "generate --json");
    ASSERT_EQ(json.at("samples").size(), 1000u);
    EXPECT_EQ(json.at("samples").as_array().back().at("finish_reason").as_string(), "cancelled");
    made = first(json).at("tokens").size();
  }
  EXPECT_GT(made, 0u);
}

TEST_F(GenerateCommand, ConstraintsAreReadFromFilesAndOptions) {
  folder_->write("schema.json",
                 R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 5},
      "age": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["name", "age"],
      "additionalProperties": false})");
  const Json person = parse_json(generate({"--json-schema", path("schema.json")}).out, "answer");
  EXPECT_EQ(person.size(), 2u);
  EXPECT_LE(person.at("age").as_int(), 99);
  folder_->write("grammar.gbnf", "root ::= \"on\" \"e\"+ | \"off\"\n");
  EXPECT_TRUE(generate({"--grammar", path("grammar.gbnf")}).out.starts_with("o"));
  EXPECT_EQ(generate({"--regex", "[0-9]{7}"}).out.size(), 8u) << "and a newline";
  const std::string choice = generate({"so: ", "--choice", "yes,no", "--no-display-prompt"}).out;
  EXPECT_TRUE(choice == "yes\n" || choice == "no\n") << choice;

  const Json scored = generate_json({"--regex", "a", "--logprobs", "3"}).at("samples").as_array()[0];
  EXPECT_EQ(scored.at("logprobs").as_array()[0].at("logprob").as_double(), 0) << "the only allowed token";
  const Json raw =
      generate_json({"--regex", "a", "--logprobs", "3", "--raw-logprobs"}).at("samples").as_array()[0];
  EXPECT_LT(raw.at("logprobs").as_array()[0].at("logprob").as_double(), 0);
  EXPECT_EQ(raw.at("finish_reason").as_string(), "stop");

  folder_->write("not.json", R"({"not": {}})");
  const RunResult refused = generate({"--json-schema", path("not.json")});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("not.json: schema #: the keyword 'not'"), std::string::npos) << refused;
  EXPECT_EQ(generate({"--regex", "("}).exit_code, 2);
  EXPECT_EQ(generate({"--regex", "a", "--choice", "b"}).exit_code, 2);
  EXPECT_EQ(generate({"--raw-logprobs"}).exit_code, 2);
}

TEST_F(GenerateCommand, ReportsErrors) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"x", "--logprobs", "2"}, "--logprobs needs --json"},
      {{"x", "--prompt-file", path("text.txt")}, "expected PROMPT or --prompt-file, found both"},
      {{"x", "--logit-bias", "7"}, "--logit-bias expects ID=F, found '7'"},
      {{"x", "--logit-bias", "=1"}, "--logit-bias expects ID=F, found '=1'"},
      {{"x", "--temperature", "-1"}, "--temperature"},
      {{"x", "--top-p", "2"}, "--top-p"},
  };
  for (const auto& [arguments, expected] : cases) {
    const RunResult result = generate(arguments);
    EXPECT_EQ(result.exit_code, 2) << result;
    EXPECT_NE(result.err.find(expected), std::string::npos) << result;
    EXPECT_EQ(result.out, "");
  }
  const RunResult foreign = generate({"x", "--logit-bias", "9999=1"});
  EXPECT_EQ(foreign.exit_code, 1);
  EXPECT_NE(foreign.err.find("logit_bias: the vocabulary has 257 tokens, got id 9999"), std::string::npos);
  EXPECT_EQ(foreign.out, "") << "the prompt must not be printed";
}

}  // namespace
}  // namespace thimble::generate_test
