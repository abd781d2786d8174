// The tokenizer commands on the command line.
#include <algorithm>
#include <csignal>

#include "base/json.h"
#include "base/rng.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::tokenizer_test {
namespace {

std::string tales() {
  std::string text;
  for (int i = 0; i < 300; ++i)
    text += fmt::format("The {} cats sat on the mat.\nThey saw a caf\u00E9.\n", i);
  return text;
}

RunResult run(std::vector<std::string> arguments, std::string input = {}) {
  arguments.insert(arguments.begin(), "tokenizer");
  return run_binary({.arguments = std::move(arguments), .input = std::move(input)});
}

TEST(TokenizerTrain, WritesAFileAndReportsIt) {
  TempFolder folder;
  const std::string text = folder.write("tales.txt", tales()).string(),
                    out = (folder / "tokenizer.json").string();
  const RunResult trained = run({"train", text, "--vocab-size", "400", "--chat", "-o", out, "--json"});
  ASSERT_EQ(trained.exit_code, 0) << trained;
  const Json report = parse_json(trained.out, "stdout");
  EXPECT_EQ(report.at("bytes").as_int(), static_cast<std::int64_t>(tales().size()));
  EXPECT_GT(report.at("vocab_size").as_int(), 261);
  EXPECT_GE(report.at("seconds").as_double(), 0);

  const Json info = parse_json(run({"info", out, text, "--json"}).out, "stdout");
  EXPECT_EQ(info.at("kind").as_string(), "bpe");
  EXPECT_EQ(info.at("vocab_size").as_int(), report.at("vocab_size").as_int());
  EXPECT_EQ(info.at("special_tokens").at("<end_turn>").as_int(), 3);
  EXPECT_GT(info.at("bytes_per_token").as_double(), 2);

  const RunResult again = run({"train", text, "-o", out});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_NE(again.err.find("already exists"), std::string::npos) << again;
  EXPECT_EQ(run({"train", text, "-o", out, "--force", "--vocab-size", "300"}).exit_code, 0);
}

TEST(TokenizerTrain, LearnsFromTheContentsOfChatsAndNotFromBinaries) {
  TempFolder folder;
  std::string chats, contents;
  for (int i = 0; i < 100; ++i) {
    chats +=
        fmt::format(R"([{{"role": "user", "content": "ab {}"}}, {{"role": "assistant", "content": "c"}}])"
                    "\n",
                    i);
    contents += fmt::format("ab {}\nc\n<|endoftext|>", i);
  }
  const std::string jsonl = folder.write("chats.jsonl", chats).string(),
                    text = folder.write("contents.txt", contents).string();
  for (const auto& [input, out] : {std::pair{jsonl, "a.json"}, {text, "b.json"}})
    ASSERT_EQ(run({"train", "--chat", input, "--vocab-size", "270", "-o", (folder / out).string()}).exit_code,
              0);
  EXPECT_EQ(folder.read("a.json"), folder.read("b.json"));
  const std::string model = folder.write("model.gguf", std::string("GGUF\3\0\0\0", 8) + contents).string();
  EXPECT_EQ(run({"train", model, "-o", (folder / "c.json").string()}).exit_code, 1);
}

TEST(TokenizerTrain, TheSameTextGivesTheSameBytes) {
  TempFolder folder;
  const std::string text = folder.write("in/tales.txt", tales()).string();
  ASSERT_EQ(run({"train", text, "-o", (folder / "a.json").string(), "--threads", "1"}).exit_code, 0);
  ASSERT_EQ(run({"train", (folder / "in").string(), "-o", (folder / "b.json").string(), "--threads", "2"})
                .exit_code,
            0);
  EXPECT_EQ(folder.read("a.json"), folder.read("b.json"));
}

TEST(TokenizerTrain, AFolderGetsADefaultFileName) {
  TempFolder folder;
  const std::string text = folder.write("tales.txt", tales()).string();
  EXPECT_EQ(run({"train", text, "-o", (folder / "bpe").string()}).exit_code, 0);
  EXPECT_EQ(run({"train", text, "-o", (folder / "pieces").string(), "--kind", "sentencepiece", "--vocab-size",
                 "320", "--documents", "line"})
                .exit_code,
            0);
  EXPECT_EQ(folder.files(),
            (std::vector<std::string>{"bpe/tokenizer.json", "pieces/tokenizer.model", "tales.txt"}));
  EXPECT_EQ(
      parse_json(run({"info", (folder / "pieces").string(), "--json"}).out, "info").at("kind").as_string(),
      "sentencepiece");
}

TEST(TokenizerTrain, ErrorsLeaveNoFiles) {
  TempFolder folder;
  const std::string empty = folder.write("empty.txt", "").string(), out = (folder / "t.json").string();
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"train", empty, "-o", out},
                                             {"train", empty, "--vocab-size", "100", "-o", out},
                                             {"train", (folder / "no").string(), "-o", out}}) {
    const RunResult failed = run(words);
    EXPECT_EQ(failed.exit_code, 1) << failed;
    EXPECT_TRUE(failed.err.starts_with("error: ")) << failed;
    EXPECT_EQ(failed.out, "");
  }
  EXPECT_EQ(run({"train", empty}).exit_code, 2);
  EXPECT_EQ(run({"train", empty, "-o", (folder / "t.model").string()}).exit_code, 2);
  EXPECT_EQ(folder.files(), (std::vector<std::string>{"empty.txt"}));
}

TEST(TokenizerEncode, PrintsOneLineOfIdsPerLineThatDecodesBack) {
  TempFolder folder;
  const std::string out = (folder / "t.json").string();
  ASSERT_EQ(run({"train", folder.write("tales.txt", tales()).string(), "-o", out}).exit_code, 0);
  const std::string text = "The cats sat.\n\nna\xC3\xAFve \xE4\xB8\xAD <bos>\nno line end";
  const RunResult encoded = run({"encode", out}, text);
  ASSERT_EQ(encoded.exit_code, 0) << encoded;
  EXPECT_EQ(std::count(encoded.out.begin(), encoded.out.end(), '\n'), 4);
  EXPECT_EQ(run({"decode", out}, encoded.out).out, text + "\n");
  const RunResult whole = run({"encode", out, "--whole"}, text);
  EXPECT_EQ(run({"decode", out, "--whole"}, whole.out).out, text);
}

TEST(TokenizerEncode, SpecialTokensNeedParseSpecial) {
  const Json plain = parse_json(run({"encode", "bytes", "--text", "<bos>", "--json"}).out, "stdout");
  EXPECT_EQ(plain.at("tokens").size(), 5u);
  EXPECT_EQ(run({"encode", "bytes", "--text", "<bos>", "--parse-special"}).out, "0\n");
  EXPECT_EQ(run({"encode", "bytes", "--text", "A", "--add-special"}).out, "0 66\n");
  EXPECT_EQ(run({"decode", "bytes", "--text", "0 66 67"}).out, "AB\n");
  EXPECT_EQ(run({"decode", "bytes", "--text", "0 66 67", "--keep-special"}).out, "<bos>AB\n");
}

TEST(TokenizerDecode, ReportsInvalidIds) {
  EXPECT_EQ(run({"decode", "bytes", "--text", "1 two"}).err, "error: expected token ids, found 'two'\n");
  EXPECT_EQ(run({"decode", "bytes", "--text", "999"}).err,
            "error: 999 is not a token id; the vocabulary has 257 tokens\n");
  EXPECT_EQ(run({"decode", "bytes", "--text", "99999999999"}).exit_code, 1);
}

TEST(TokenizerRender, RendersMessagesWithATemplate) {
  const TempFolder folder;
  const std::string chat = folder.write("chat.jinja",
                                        "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}\n"
                                        "{% if add_generation_prompt %}<answer>{% endif %}");
  const std::string message = R"([{"role": "user", "content": "Grüße"}])";
  const auto render = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"tokenizer", "render", chat});
    return run_binary({.arguments = std::move(more), .input = message + "\n" + R"({"messages": []})" + "\n"});
  };
  EXPECT_EQ(render({"--text", message}).out, "<user>Grüße\n<answer>\n");
  EXPECT_EQ(render({"--text", message, "--no-prompt"}).out, "<user>Grüße\n\n");
  EXPECT_EQ(parse_json(render({"--json"}).out, "stdout").at("prompts"),
            Json::array({"<user>Grüße\n<answer>", "<answer>"}));
  EXPECT_EQ(render({"--text", "7"}).exit_code, 2);
  folder.write("chat.jinja", "\n{% include 'x' %}");
  const RunResult bad = render({"--text", message});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_NE(bad.err.find("chat_template line 2: the statement 'include' is not supported"), std::string::npos)
      << bad;
}

TEST(TokenizerInfo, ReportsInvalidFiles) {
  TempFolder folder;
  const RunResult bad = run({"info", folder.write("t.json", "{\"model\": {}}").string()});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_NE(bad.err.find("t.json: no \"vocab\" in \"model\""), std::string::npos) << bad;
  EXPECT_EQ(run({"info", folder.path().string()}).exit_code, 1);
  EXPECT_EQ(run({"info", (folder / "nothing").string()}).exit_code, 1);
}

TEST(TokenizerTrain, CtrlCStopsAndLeavesNoFiles) {
  TempFolder folder;
  std::string text;
  // Random words, so that there is always another pair to merge.
  Rng random(1);
  for (int i = 0; i < 400'000; ++i) {
    for (int letter = 0; letter < 20; ++letter) text += static_cast<char>('a' + random.below(26));
    text += ' ';
  }
  const std::string file = folder.write("big.txt", text).string();
  const RunResult stopped = run_binary({.arguments = {"tokenizer", "train", file, "--vocab-size", "200000",
                                                      "-o", (folder / "t.json").string()},
                                        .signal = SIGINT,
                                        .signal_after_seconds = 0.3});
  EXPECT_EQ(stopped.exit_code, 130) << stopped;
  EXPECT_EQ(folder.files(), (std::vector<std::string>{"big.txt"}));
}

}  // namespace
}  // namespace thimble::tokenizer_test
