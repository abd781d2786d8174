// Control characters that a model generates must be shown as text at a terminal.
#include <cstdint>

#include "base/json.h"
#include "support/pseudo_terminal.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

// Sets the title, rings the bell, and clears the screen with U+009B (CSI). No byte occurs twice.
const std::string kHostile =
    "\x1b]0;mine\x07\xC2\x9B"
    "2J";
const std::string kShown = "\uFFFD]0;mine\uFFFD\uFFFD2J";

// Ids of the tokenizer bytes:chat: five special tokens, then the bytes.
constexpr int kAssistant = 2, kEndTurn = 3, kFirstByte = 5, kVocabulary = kFirstByte + 256;
constexpr int kDim = 32, kHidden = 4 * kDim, kContext = 64;

struct Matrix {
  std::string name;
  int rows, cols;
  std::vector<float> values = std::vector<float>(static_cast<std::size_t>(rows * cols), 0.0f);

  void set(int row, int col, float value) { values[static_cast<std::size_t>(row * cols + col)] = value; }
};

// Built instead of trained, so that the answer does not depend on rounding. Each token of the
// answer has its own direction, for which the head predicts the next token.
std::vector<Matrix> model_that_answers(const std::string& text) {
  std::vector<int> answer = {kAssistant};
  for (const unsigned char byte : text) answer.push_back(kFirstByte + byte);
  answer.push_back(kEndTurn);
  Matrix embedding{"tok_emb.weight", kVocabulary, kDim}, head{"lm_head.weight", kVocabulary, kDim};
  for (int i = 0; i + 1 < static_cast<int>(answer.size()); ++i) {
    embedding.set(answer[static_cast<std::size_t>(i)], i, 1);
    head.set(answer[static_cast<std::size_t>(i) + 1], i, 10);
  }
  return {embedding,
          head,
          {"pos_emb.weight", kContext, kDim},
          {"blocks.0.attn.c_q.weight", kDim, kDim},
          {"blocks.0.attn.c_k.weight", kDim, kDim},
          {"blocks.0.attn.c_v.weight", kDim, kDim},
          {"blocks.0.attn.proj.weight", kDim, kDim},
          {"blocks.0.mlp.fc.weight", kHidden, kDim},
          {"blocks.0.mlp.proj.weight", kDim, kHidden}};
}

std::string safetensors_of(const std::vector<Matrix>& matrices) {
  Json header = Json::object();
  std::string data;
  for (const Matrix& matrix : matrices) {
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(matrix.values.data()), matrix.values.size() * sizeof(float));
    header.set(matrix.name, Json::object()
                                .set("dtype", "F32")
                                .set("shape", Json::array({matrix.rows, matrix.cols}))
                                .set("data_offsets", Json::array({begin, data.size()})));
  }
  const std::string text = header.dump();
  std::string file(sizeof(std::uint64_t), '\0');
  for (std::size_t i = 0; i < file.size(); ++i) file[i] = static_cast<char>(text.size() >> (8 * i));
  return file + text + data;
}

class HostileOutput : public testing::Test {
 protected:
  HostileOutput() {
    folder_.write("weights", safetensors_of(model_that_answers(kHostile)));
    std::vector<std::string> arguments = {"import",      path("weights"), "--preset", "microgpt",
                                          "--tokenizer", "bytes:chat",    "-o",       path("model")};
    for (const std::string& setting : {fmt::format("vocab_size={}", kVocabulary), fmt::format("dim={}", kDim),
                                       fmt::format("context={}", kContext), std::string("layers=1")})
      arguments.insert(arguments.end(), {"--set", setting});
    const RunResult imported = run_binary({.arguments = arguments});
    EXPECT_EQ(imported.exit_code, 0) << imported;
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::vector<std::string> chat(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"chat", path("model"), "--layout", "roles", "--greedy"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  TempFolder folder_;
};

TEST_F(HostileOutput, IsEscapedAtATerminal) {
  // "dumb": thimble itself sends no escape sequences to such a terminal.
  PseudoTerminal terminal(
      {.arguments = chat(),
       .environment = {{"XDG_STATE_HOME", path("state")}, {"TERM", "dumb"}, {"NO_COLOR", "1"}}});
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("Hm?\r");
  ASSERT_TRUE(terminal.wait_for("2J")) << terminal.shown();
  terminal.type(kControlD);
  EXPECT_EQ(terminal.wait_for_exit(), 0);
  for (const char* control : {"\x1b", "\x07", "\xC2\x9B"})
    EXPECT_EQ(terminal.shown().find(control), std::string::npos) << terminal.shown();
  EXPECT_NE(terminal.shown().find(kShown), std::string::npos) << "the answer was shown" << terminal.shown();
}

TEST_F(HostileOutput, IsUnchangedInAFile) {
  const RunResult script = run_binary({.arguments = chat(), .input = "Hm?\n"});
  EXPECT_EQ(script.exit_code, 0) << script;
  EXPECT_NE(script.out.find(kHostile), std::string::npos) << script;
  const RunResult json = run_binary({.arguments = chat({"--json"}), .input = "Hm?\n"});
  EXPECT_EQ(json.out.find('\x1b'), std::string::npos) << "JSON escapes control characters" << json;
  const Json replies = parse_json(json.out, "stdout").at("replies");
  EXPECT_EQ(replies.as_array().at(0).at("text").as_string(), kHostile) << json;
}

}  // namespace
}  // namespace thimble
