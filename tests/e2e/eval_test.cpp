// `thimble eval` on the command line.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>

#include "base/json.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::eval_test {
namespace {

std::string documents() {
  std::string text;
  for (int i = 0; i < 60; ++i)
    text += fmt::format("line {} of a text: the cat sat on mat {}.\n{}", i * 7, i * i,
                        i % 5 == 4 ? "<|endoftext|>\n" : "");
  return text;
}

class EvalCommand : public testing::Test {
 protected:
  EvalCommand() { folder_.write("text.txt", documents()); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  Json train(const std::string& preset, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"train",   "-o", path("run"), "--preset",    preset,
                                          "--steps", "6",  "--json",    "--val-every", "0"};
    if (std::ranges::count(more, "--data") == 0) more.insert(more.end(), {"--data", path("text.txt")});
    for (const char* setting : {"context=32", "layers=2", "dim=32", "heads=2", "kv_heads=1", "mlp_hidden=48",
                                "batch_tokens=128", "max_seconds=0", "prime_steps=0"})
      arguments.insert(arguments.end(), {"--set", setting});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const RunResult result = run_binary({.arguments = arguments});
    EXPECT_EQ(result.exit_code, 0) << result;
    return parse_json(result.out, "train --json");
  }

  RunResult run(const std::string& data, std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"eval", path("run"), "--data", data};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_binary({.arguments = arguments});
  }

  Json eval(const std::string& data, std::vector<std::string> more = {}) const {
    more.push_back("--json");
    const RunResult result = run(data, more);
    EXPECT_EQ(result.exit_code, 0) << result;
    return parse_json(result.out, "eval --json");
  }

  TempFolder folder_;
};

TEST_F(EvalCommand, AgreesWithTheRunsValidation) {
  for (const char* preset : {"quick", "golf"}) {
    const Json trained = train(preset, {"--force"});
    ASSERT_EQ(trained.at("best_step").as_int(), 6) << "the best checkpoint must be the last";
    const Json score = eval(path("run/data"));
    EXPECT_EQ(score.at("val_bpb").as_double(), trained.at("val_bpb").as_double()) << preset;
    EXPECT_EQ(score.at("val_loss").as_double(), trained.at("val_loss").as_double()) << preset;
    EXPECT_EQ(score.at("protocol").as_string(), std::string(preset) == "golf" ? "golf" : "documents");
  }
}

TEST_F(EvalCommand, ScoresWithAnyStride) {
  train("quick");
  const Json whole = eval(path("text.txt")), sliding = eval(path("text.txt"), {"--stride", "8"});
  EXPECT_EQ(whole.at("context").as_int(), 32);
  EXPECT_EQ(whole.at("stride").as_int(), 32);
  EXPECT_EQ(sliding.at("stride").as_int(), 8);
  EXPECT_EQ(sliding.at("tokens").as_int(), whole.at("tokens").as_int());
  EXPECT_EQ(sliding.at("bytes").as_int(), whole.at("bytes").as_int());
  EXPECT_NE(sliding.at("val_bpb").as_double(), whole.at("val_bpb").as_double());
  EXPECT_EQ(eval(path("text.txt"), {"--val-tokens", "100"}).at("tokens").as_int(), 100);
  EXPECT_EQ(eval(path("text.txt"), {"--protocol", "golf"}).at("tokens").as_int() % 32, 0);
  EXPECT_EQ(eval(path("text.txt"), {"--dtype", "f32"}).at("dtype").as_string(), "f32");
  EXPECT_NE(run(path("text.txt"), {"--stride", "8"}).out.find("context 32, stride 8"), std::string::npos);
}

TEST_F(EvalCommand, ComputesThePerplexityOfLlamaCpp) {
  train("quick");
  const Json score = eval(path("text.txt"), {"--protocol", "llama.cpp", "--context", "16"});
  // One token per byte, and bos instead of the last line end.
  const auto chunks = static_cast<std::int64_t>(documents().size() / 16);
  EXPECT_EQ(score.at("protocol").as_string(), "llama.cpp");
  EXPECT_EQ(score.at("chunks").as_int(), chunks);
  EXPECT_EQ(score.at("tokens").as_int(), chunks * 7);
  EXPECT_NEAR(std::log(score.at("perplexity").as_double()), score.at("val_loss").as_double(), 1e-9);
  EXPECT_GT(score.at("perplexity_stderr").as_double(), 0);
  EXPECT_EQ(run(path("text.txt"), {"--protocol", "llama.cpp"}).out.rfind("PPL = ", 0), 0u);
}

TEST_F(EvalCommand, ScoresTheHeldOutDataOfARunByDefault) {
  train("quick");
  const Json held_out = eval(path("run/data"));
  for (const char* model : {"run", "run/last.safetensors"}) {
    const RunResult own = run_binary({.arguments = {"eval", path(model), "--json"}});
    EXPECT_EQ(own.exit_code, 0) << own;
    const Json score = parse_json(own.out, "eval --json");
    EXPECT_EQ(score.at("tokens").as_int(), held_out.at("tokens").as_int());
    EXPECT_EQ(score.at("val_loss").as_double(), held_out.at("val_loss").as_double());
    EXPECT_FALSE(score.at("training_data").as_bool());
  }
  // The text that the run was trained on, and a copy of it.
  for (const std::string& text : {path("text.txt"), folder_.write("copy.txt", documents()).string()}) {
    const RunResult seen = run(text, {"--json"});
    EXPECT_TRUE(parse_json(seen.out, "eval --json").at("training_data").as_bool());
    EXPECT_NE(seen.err.find("warning: "), std::string::npos) << seen;
  }
  EXPECT_FALSE(eval(folder_.write("other.txt", "Another text.\n").string()).at("training_data").as_bool());
  EXPECT_EQ(run_binary({.arguments = {"eval", path("run"), "--exact"}}).exit_code, 2);
  std::filesystem::remove_all(path("run/data"));
  EXPECT_EQ(run_binary({.arguments = {"eval", path("run")}}).exit_code, 1);
  std::filesystem::copy_file(path("run/last.safetensors"), path("model.safetensors"));
  EXPECT_EQ(run_binary({.arguments = {"eval", path("model.safetensors")}}).exit_code, 2);
}

TEST_F(EvalCommand, DocumentsAreWhatOneAsksFor) {
  train("quick");
  const std::string lines = folder_.write("lines.txt", "first line\nsecond\n\nthird\n").string();
  EXPECT_EQ(eval(lines).at("tokens").as_int(), 26);  // a document has one target more than its bytes
  EXPECT_EQ(eval(lines, {"--documents", "line"}).at("tokens").as_int(), 11 + 7 + 6);
  EXPECT_EQ(run(path("run/data"), {"--documents", "line"}).exit_code, 2);
  EXPECT_EQ(run(lines, {"--documents", "line", "--protocol", "llama.cpp"}).exit_code, 2);
}

TEST_F(EvalCommand, ReadsTheNamedColumnOfATable) {
  train("quick");
  const std::string table =
      folder_.write("quotes.csv", "author,quote\nAnn,first line\nBob,second\n").string();
  EXPECT_EQ(eval(table, {"--text-field", "quote"}).at("tokens").as_int(), 11 + 7);
  EXPECT_EQ(run(table, {}).exit_code, 1);
  EXPECT_EQ(run(table, {"--text-field", "quote", "--assistant", "Ann"}).exit_code, 1) << "only for chats";
  EXPECT_EQ(run(path("run/data"), {"--text-field", "quote"}).exit_code, 2);
}

TEST_F(EvalCommand, WritesTheScoresOfDocuments) {
  train("quick");
  std::string text;
  for (int i = 0; i < 24; ++i) text += fmt::format("a document of line {}\n", i * i);
  const std::string lines = folder_.write("lines.txt", text).string();
  const std::vector<std::string> words = {"--documents", "line", "--scores", path("scores.jsonl")};
  const Json whole = eval(lines, words);
  std::istringstream scores(folder_.read("scores.jsonl"));
  double nats = 0;
  std::int64_t bytes = 0, count = 0;
  for (std::string line; std::getline(scores, line); ++count) {
    const Json part = parse_json(line, "scores");
    EXPECT_EQ(part.at("document").as_int(), count);
    nats += part.at("nats").as_double();
    bytes += part.at("bytes").as_int();
  }
  EXPECT_EQ(count, 24);
  EXPECT_EQ(bytes, whole.at("bytes").as_int());
  EXPECT_NEAR(nats / static_cast<double>(whole.at("tokens").as_int()), whole.at("val_loss").as_double(),
              1e-9);
  EXPECT_EQ(run(lines, words).exit_code, 1) << "the file exists";
  EXPECT_EQ(run(lines, {"--exact", "--scores", path("more.jsonl")}).exit_code, 2);
  EXPECT_EQ(run(lines, {"--force"}).exit_code, 2);
}

TEST_F(EvalCommand, ModifiedShardsAreRefused) {
  train("quick");
  std::string bytes = folder_.read("run/data/data_val_000000.bin");
  bytes.back() ^= 1;
  folder_.write("run/data/data_val_000000.bin", bytes);
  for (const std::vector<std::string>& words : {std::vector<std::string>{"eval", path("run")},
                                                {"qa", path("run"), "--data", path("run/data")},
                                                {"data", "info", path("run/data"), "--verify"}}) {
    const RunResult refused = run_binary({.arguments = words});
    EXPECT_EQ(refused.exit_code, 1) << refused;
    EXPECT_NE((refused.out + refused.err).find("data_val_000000.bin was modified"), std::string::npos)
        << refused;
  }
}

TEST_F(EvalCommand, EmptyAnswersHaveNoBitsPerByte) {
  std::string chats;
  for (int i = 0; i < 40; ++i)
    chats += fmt::format(R"({{"messages": [{{"role": "user", "content": "hush {}"}}, )"
                         R"({{"role": "assistant", "content": ""}}]}})"
                         "\n",
                         i);
  const std::string file = folder_.write("chats.jsonl", chats).string();
  train("quick", {"--tokenizer", "bytes", "--chat", "--data", file});
  const Json score = eval(file);
  EXPECT_TRUE(score.at("val_bpb").is_null()) << score.dump(1);
  EXPECT_EQ(score.at("bytes").as_int(), 0);
  EXPECT_GT(score.at("val_loss").as_double(), 0);
  EXPECT_EQ(run(file, {}).out.find("bits per byte"), std::string::npos);
  const RunResult packed =
      run_binary({.arguments = {"pack", path("run"), "-o", path("m.thimble"), "--data", file, "--json"}});
  EXPECT_TRUE(parse_json(packed.out, "pack --json").at("val_bpb_after").is_null()) << packed;

  // llama-perplexity scores text, so conversations are refused as a file and as shards.
  for (const std::string& data : {file, path("run/data")}) {
    const RunResult refused = run(data, {"--protocol", "llama.cpp"});
    EXPECT_EQ(refused.exit_code, 1) << refused;
    EXPECT_NE(refused.err.find("contains conversations"), std::string::npos) << refused;
  }
  const RunResult tokens = run(path("run/data"), {"--multiple-choice"});
  EXPECT_NE(tokens.err.find("is a folder of shards, expected questions as text"), std::string::npos)
      << tokens;
}

TEST_F(EvalCommand, ScoresMultipleChoice) {
  train("quick");
  std::string lines;
  for (int i = 0; i < 10; ++i)
    lines += fmt::format(R"({{"ctx": "the cat sat", "endings": ["on mat", "zzz", "qqq {}"], "label": 0}})"
                         "\n",
                         i);
  const std::string file = folder_.write("q.jsonl", lines).string();
  const Json score = eval(file, {"--multiple-choice"});
  EXPECT_EQ(score.at("total").as_int(), 10);
  EXPECT_NEAR(score.at("chance").as_double(), 1.0 / 3, 1e-9);
  for (const char* key : {"acc", "acc_stderr", "acc_norm", "acc_norm_stderr", "cut"})
    EXPECT_NE(score.find(key), nullptr) << key;
  EXPECT_EQ(eval(file, {"--multiple-choice", "--limit", "4"}).at("total").as_int(), 4);
  const RunResult wrong =
      run(folder_.write("bad.jsonl", lines + "{\"ctx\": \"a\"}\n").string(), {"--multiple-choice"});
  EXPECT_EQ(wrong.exit_code, 1) << wrong;
  EXPECT_NE(wrong.err.find("bad.jsonl:11: "), std::string::npos) << wrong;
}

TEST_F(EvalCommand, ChecksCompletionsWithACommand) {
  train("quick");
  const std::string file =
      folder_.write("p.jsonl", "{\"prompt\": \"the cat\"}\n{\"prompt\": \"a\", \"test\": \"exit 1\"}\n")
          .string();
  const std::vector<std::string> words = {"--check", "! grep -q exit", "-n", "4",      "--pass-at",
                                          "1,4",     "--max-tokens",   "5",  "--seed", "3"};
  const Json score = eval(file, words);
  EXPECT_EQ(score.at("pass_at").at("1").as_double(), 0.5);
  EXPECT_EQ(score.at("pass_at").at("4").as_double(), 0.5);
  EXPECT_EQ(score.at("passed").as_int(), 4);
  EXPECT_EQ(score.at("failed").as_int(), 4);
  for (const char* key : {"timed_out", "out_of_memory", "too_long"})
    EXPECT_EQ(score.at(key).as_int(), 0) << key;
  EXPECT_EQ(score.at("examples").size(), 1u);
  EXPECT_EQ(eval(file, words).at("examples").dump(), score.at("examples").dump());
  EXPECT_NE(run(file, words).out.find("pass@4 50.00 %"), std::string::npos);
  EXPECT_EQ(run(file, {"--check", "no-such-program-7"}).exit_code, 1);
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--check", "true", "--exact"},
                                                {"--check", "true", "--pass-at", "2"},
                                                {"--check", "true", "--pass-at", "1,,"},
                                                {"--check", " "},
                                                {"--check", "true", "-n", "2", "--temperature", "0"},
                                                {"--check", "true", "--protocol", "golf"},
                                                {"--samples", "2"}})
    EXPECT_EQ(run(file, wrong).exit_code, 2) << wrong.back();
  EXPECT_EQ(run_binary({.arguments = {"eval", path("run"), "--check", "true"}}).exit_code, 2);
  EXPECT_EQ(run(path("run/data"), {"--check", "true"}).exit_code, 1);
}

TEST_F(EvalCommand, RejectsOptionsThatCannotBeCombined) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--exact", "--multiple-choice"},
                                                {"--limit", "3"},
                                                {"--show", "3"},
                                                {"--exact", "--stride", "8"},
                                                {"--multiple-choice", "--context", "8"},
                                                {"--protocol", "llama.cpp", "--stride", "8"},
                                                {"--protocol", "gguf"}})
    EXPECT_EQ(run(path("text.txt"), words).exit_code, 2) << words.front();
  train("quick");
  EXPECT_EQ(run(path("text.txt"), {"--stride", "33"}).exit_code, 2);
  EXPECT_EQ(run(path("text.txt"), {"--context", "33"}).exit_code, 2);
}

TEST_F(EvalCommand, CtrlCExitsWith130) {
  train("quick");
  std::string text;
  for (int i = 0; i < 400; ++i) text += documents();
  const std::string data = folder_.write("long.txt", text).string();
  const RunResult result = run_binary({.arguments = {"eval", path("run"), "--data", data, "--stride", "1"},
                                       .signal = SIGINT,
                                       .signal_after_seconds = 0.5});
  EXPECT_EQ(result.exit_code, 130) << result;
}

}  // namespace
}  // namespace thimble::eval_test
