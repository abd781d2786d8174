// `thimble data sample`, and `thimble eval` on its output.
#include "base/json.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::sample_test {
namespace {

RunResult run_in(const TempFolder& folder, std::vector<std::string> arguments) {
  return run_binary({.arguments = std::move(arguments), .folder = folder.path()});
}

Json json_of(const RunResult& run) {
  EXPECT_EQ(run.exit_code, 0) << run;
  return parse_json(run.out, "stdout");
}

TEST(DataSample, IsReproducible) {
  const TempFolder folder;
  const Json chats = json_of(run_in(folder, {"data", "sample", "--count", "40", "-o", "a.jsonl", "--json"}));
  EXPECT_EQ(chats.at("documents").as_int(), 40);
  EXPECT_EQ(chats.at("bytes").as_uint(), folder.read("a.jsonl").size());
  EXPECT_EQ(run_in(folder, {"data", "sample", "--count", "40", "-o", "b.jsonl"}).exit_code, 0);
  EXPECT_EQ(folder.read("a.jsonl"), folder.read("b.jsonl"));
  EXPECT_EQ(run_in(folder, {"data", "sample", "--count", "40", "--seed", "2", "-o", "c.jsonl"}).exit_code, 0);
  EXPECT_NE(folder.read("a.jsonl"), folder.read("c.jsonl"));
  const Json tales = json_of(
      run_in(folder, {"data", "sample", "--kind", "tales", "--size", "20k", "-o", "t.txt", "--json"}));
  EXPECT_GE(tales.at("bytes").as_int(), 20'000);
  EXPECT_LT(tales.at("bytes").as_int(), 22'000);
}

TEST(DataSample, KeepsExistingFilesAndExplainsSizes) {
  const TempFolder folder;
  folder.write("a.jsonl", "mine");
  const RunResult refused = run_in(folder, {"data", "sample", "--count", "4", "-o", "a.jsonl"});
  EXPECT_EQ(refused.exit_code, 1) << refused;
  EXPECT_EQ(folder.read("a.jsonl"), "mine");
  for (const char* size : {"2X", "0", "k", "99999999999G"}) {
    const RunResult run = run_in(folder, {"data", "sample", "--size", size, "-o", "b.jsonl"});
    EXPECT_EQ(run.exit_code, 2) << size << run;
    EXPECT_NE(run.err.find("--size"), std::string::npos) << run;
  }
}

class TrainedOnChats : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(run_in(folder_, {"data", "sample", "--count", "300", "-o", "chats.jsonl"}).exit_code, 0);
    ASSERT_EQ(run_in(folder_, {"data", "sample", "--split", "heldout", "--count", "30", "-o", "asked.jsonl"})
                  .exit_code,
              0);
    const RunResult run = run_in(
        folder_, {"train",      "--preset", "chat",          "--data",         "chats.jsonl", "--tokenizer",
                  "bpe:400",    "-o",       "run",           "--steps",        "3",           "--set",
                  "layers=1",   "--set",    "dim=32",        "--set",          "heads=2",     "--set",
                  "kv_heads=1", "--set",    "mlp_hidden=64", "--batch-tokens", "512",         "--quiet"});
    ASSERT_EQ(run.exit_code, 0) << run;
  }
  TempFolder folder_;
};

TEST_F(TrainedOnChats, EvalScoresChatsAndExactAnswers) {
  const Json bits = json_of(run_in(folder_, {"eval", "run", "--data", "asked.jsonl", "--json"}));
  for (const char* key : {"val_loss", "val_bpb"}) EXPECT_GT(bits.at(key).as_double(), 0) << key;
  for (const char* key : {"tokens", "bytes", "context", "stride"}) EXPECT_GT(bits.at(key).as_int(), 0) << key;
  const std::string asked = folder_.read("asked.jsonl");
  EXPECT_LT(bits.at("bytes").as_uint(), asked.size() / 2) << "only answers count";

  const Json exact = json_of(run_in(folder_, {"eval", "run", "--data", "asked.jsonl", "--exact", "--json"}));
  EXPECT_EQ(exact.at("total").as_int(), 30);
  EXPECT_GE(exact.at("exact_match").as_double(), 0);
  EXPECT_LT(exact.at("exact_match").as_double(), 1) << "after three steps";
  const RunResult shown =
      run_in(folder_, {"eval", "run", "--data", "asked.jsonl", "--exact", "--limit", "5", "--show", "2"});
  EXPECT_EQ(shown.exit_code, 0) << shown;
  EXPECT_NE(shown.out.find("of 5 answers"), std::string::npos) << shown;
  EXPECT_NE(shown.out.find("expected: "), std::string::npos) << shown;
}

TEST_F(TrainedOnChats, EvalScoresTextsAndShards) {
  folder_.write("text.txt", "Anna has a red ball.\n<|endoftext|>\nBen sings.\n");
  const Json text = json_of(run_in(folder_, {"eval", "run", "--data", "text.txt", "--json"}));
  EXPECT_EQ(text.at("bytes").as_int(), 21 + 11) << "two documents, without the separator";
  const RunResult built =
      run_in(folder_, {"data", "build", "chats.jsonl", "--chat", "--tokenizer", "run", "-o", "shards"});
  ASSERT_EQ(built.exit_code, 0) << built;
  const Json shards = json_of(run_in(folder_, {"eval", "run", "--data", "shards", "--json"}));
  EXPECT_GT(shards.at("val_bpb").as_double(), 0);
  const RunResult words = run_in(folder_, {"eval", "run", "--data", "shards", "--exact"});
  EXPECT_EQ(words.exit_code, 1) << words;
  const RunResult no_chats = run_in(folder_, {"eval", "run", "--data", "text.txt", "--exact"});
  EXPECT_EQ(no_chats.exit_code, 1) << no_chats;
  EXPECT_EQ(run_in(folder_, {"eval", "run", "--data", "text.txt", "--limit", "3"}).exit_code, 2);
}

}  // namespace
}  // namespace thimble::sample_test
