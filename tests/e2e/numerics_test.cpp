// Extreme values on the command line: learning rates, contexts, vocabularies and weights.
#include <cmath>
#include <fstream>

#include "base/json.h"
#include "e2e/settings.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::numerics_test {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class Edges : public testing::Test {
 protected:
  Edges() {
    std::string text;
    for (int i = 0; i < 80; ++i) text += "line " + std::to_string(i * 7) + ": the cat sat on the mat.\n";
    folder_.write("text.txt", text);
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  RunResult train(const std::string& name, const Words& settings, const Words& more = {}) const {
    Words words = {"train", "--preset", "llama",  "--data",    path("text.txt"),
                   "-o",    path(name), "--json", "--threads", "1"};
    Words given = more;
    for (const std::string& setting : settings) given.insert(given.end(), {"--set", setting});
    const Words others =
        settings_beside(given, {"context=16", "layers=1", "dim=32", "heads=2", "kv_heads=1", "head_dim=16",
                                "rope_dims=16", "mlp_hidden=48", "batch_tokens=64", "steps=6", "val_every=3",
                                "warmup_steps=0", "val_tokens=200"});
    words.insert(words.end(), others.begin(), others.end());
    words.insert(words.end(), given.begin(), given.end());
    return run_binary({.arguments = words});
  }

  // Training, scoring and generating work.
  void expect_works(const std::string& name, const RunResult& trained) const {
    ASSERT_EQ(trained.exit_code, 0) << trained;
    EXPECT_EQ(parse_json(trained.out, "train").at("status").as_string(), "completed");
    const RunResult eval =
        run_binary({.arguments = {"eval", path(name), "--data", path(name + "/data"), "--json"}});
    ASSERT_EQ(eval.exit_code, 0) << eval;
    EXPECT_TRUE(std::isfinite(parse_json(eval.out, "eval").at("val_loss").as_double()));
    const RunResult generated = run_binary({.arguments = {"generate", path(name), "--max-tokens", "4"}});
    EXPECT_EQ(generated.exit_code, 0) << generated;
  }

  // Writes a tokenizer of bytes with additional tokens that no text is encoded to.
  void write_tokenizer(std::int64_t tokens) const {
    Json json = parse_json(folder_.read("plain/tokenizer.json"), "tokenizer.json");
    Json vocabulary = json.at("model").at("vocab");
    for (std::int64_t id = std::int64_t(vocabulary.size()); id < tokens; ++id)
      vocabulary.set(fmt::format("filler{}", id), id);
    Json model = json.at("model");
    model.set("vocab", std::move(vocabulary));
    json.set("model", std::move(model));
    folder_.write("tokenizer.json", json.dump());
  }

  TempFolder folder_;
};

TEST_F(Edges, LearningRatesOfZeroTenAndMinusOne) {
  const RunResult zero = train("zero", {"lr=0", "steps=12"}, {"--patience", "1"});
  ASSERT_EQ(zero.exit_code, 0) << zero;
  EXPECT_EQ(parse_json(zero.out, "train").at("status").as_string(), "early_stop") << "no validation improved";
  const RunResult ten = train("ten", {"lr=10"});
  const Json result = parse_json(ten.out, "train");
  if (ten.exit_code == 0) {
    EXPECT_EQ(result.at("status").as_string(), "completed");
    EXPECT_GT(result.at("val_loss").as_double(), parse_json(zero.out, "train").at("val_loss").as_double());
  } else {
    EXPECT_EQ(ten.exit_code, 3) << ten;
    EXPECT_EQ(result.at("status").as_string(), "diverged");
    EXPECT_NE(ten.err.find("checkpoint"), std::string::npos) << ten;
  }
  const RunResult negative = train("negative", {"lr=-1"});
  EXPECT_EQ(negative.exit_code, 2) << negative;
  EXPECT_NE(negative.err.find("lr must not be negative, found -1"), std::string::npos) << negative;
}

TEST_F(Edges, ContextOfOneToken) {
  expect_works("one", train("one", {"context=1", "batch_tokens=16"}));
}

TEST_F(Edges, VocabularyOfAHundredThousand) {
  ASSERT_EQ(train("plain", {"steps=1"}).exit_code, 0);
  write_tokenizer(100'000);
  const RunResult large = train("large", {"steps=2", "dim=16", "head_dim=8", "rope_dims=8"},
                                {"--tokenizer", path("tokenizer.json")});
  expect_works("large", large);
  const RunResult look = run_binary({.arguments = {"inspect", path("large"), "--json"}});
  EXPECT_EQ(parse_json(look.out, "inspect").at("metadata").at("vocab_size").as_int(), 100'000);
}

// One letter, and bos between documents.
TEST_F(Edges, VocabularyOfTwo) {
  folder_.write("tokenizer.json",
                R"({"version": "1.0", "added_tokens": [{"id": 0, "content": "<bos>", "special": true,)"
                R"("single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],)"
                R"("normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,)"
                R"("trim_offsets": true, "use_regex": false}, "decoder": {"type": "ByteLevel"},)"
                R"("model": {"type": "BPE", "vocab": {"<bos>": 0, "a": 1}, "merges": []}})");
  std::string text;
  for (int i = 1; i < 60; ++i)
    text += std::string(static_cast<std::size_t>(i % 9 + 1), 'a') + "<|endoftext|>\n";
  folder_.write("text.txt", text);
  const RunResult two = train("two", {}, {"--tokenizer", path("tokenizer.json")});
  expect_works("two", two);
}

TEST_F(Edges, DocumentsWithoutText) {
  folder_.write(
      "text.jsonl",
      "{\"text\": \"\"}\n{\"text\": \"the cat sat on the mat, and so on and on\"}\n{\"text\": \"\"}\n");
  const RunResult built =
      run_binary({.arguments = {"data", "build", path("text.jsonl"), "--tokenizer", "bytes", "-o",
                                path("set"), "--json", "--val-fraction", "0"}});
  ASSERT_EQ(built.exit_code, 0) << built;
  EXPECT_EQ(parse_json(built.out, "build").at("documents").as_int(), 1);
  EXPECT_EQ(parse_json(built.out, "build").at("dropped").at("empty").as_int(), 2);
  folder_.write("nothing.jsonl", "{\"text\": \"\"}\n");
  const RunResult nothing = run_binary(
      {.arguments = {"data", "build", path("nothing.jsonl"), "--tokenizer", "bytes", "-o", path("none")}});
  EXPECT_EQ(nothing.exit_code, 1) << nothing;
  EXPECT_NE(nothing.err.find("no training documents remain"), std::string::npos) << nothing;
}

TEST_F(Edges, WeightsWithNaNAreRejected) {
  ASSERT_EQ(train("run", {}).exit_code, 0);
  ASSERT_EQ(run_binary({.arguments = {"export", path("run"), "--format", "hf", "-o", path("hf")}}).exit_code,
            0);
  {  // without digests, only the values can show it
    std::fstream file(folder_ / "hf/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-4, std::ios::end);
    file.write("\x00\x00\xC0\x7F", 4);
  }
  const auto expect_refused = [&](const Words& words, const std::string& message) {
    const RunResult result = run_binary({.arguments = words});
    EXPECT_EQ(result.exit_code, 1) << words[0] << result;
    EXPECT_NE(result.err.find(message), std::string::npos) << words[0] << result;
  };
  expect_refused({"eval", path("hf"), "--data", path("text.txt")}, "not finite");
  expect_refused({"generate", path("hf"), "the", "--max-tokens", "3"}, "finite");
  expect_refused({"train", "--init", path("hf"), "--data", path("text.txt"), "-o", path("on")},
                 "the initial weights are not finite: ");
  expect_refused({"pack", path("hf"), "-o", path("out.thimble")}, "nan");
  expect_refused({"export", path("hf"), "--format", "gguf", "-o", path("out.gguf")}, "out.gguf");
  for (const char* name : {"on", "out.thimble", "out.gguf"}) EXPECT_FALSE(fs::exists(folder_ / name)) << name;
}

}  // namespace
}  // namespace thimble::numerics_test
