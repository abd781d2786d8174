// The data commands on the command line.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <random>

#include "base/digest.h"
#include "base/json.h"
#include "support/golden.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::data_test {
namespace {

std::string tales(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += fmt::format("Tale {}: the {} cats sat on mat {}.\nThey saw a café.\n<|endoftext|>\n", i, i % 13,
                        i % 7);
  return text;
}

RunResult data(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "data");
  return run_binary({.arguments = std::move(arguments), .timeout_seconds = 600});
}

Json json_of(const RunResult& run) {
  EXPECT_EQ(run.exit_code, 0) << run;
  return parse_json(run.out, "stdout");
}

// Digests of the files that are not hidden: a killed process may leave its lock file.
std::map<std::string, std::string> digests(const TempFolder& folder, const std::string& below) {
  std::map<std::string, std::string> found;
  for (const std::string& file : folder.files())
    if (file.starts_with(below + "/") && !file.starts_with(below + "/."))
      found[file.substr(below.size())] = digest_of(folder.read(file)).hex();
  return found;
}

TEST(DataBuild, WritesShardsAndReportsThem) {
  TempFolder folder;
  const std::string text = folder.write("tales.txt", tales(100)).string(), out = (folder / "out").string();
  const Json built =
      json_of(data({"build", text, "--tokenizer", "bytes", "--val-docs", "5", "-o", out, "--json"}));
  EXPECT_EQ(built.at("documents").as_int(), 100);
  EXPECT_EQ(built.at("val_documents").as_int(), 5);
  const auto bytes = static_cast<std::int64_t>(tales(100).size() - 100 * 14);
  EXPECT_EQ(built.at("bytes").as_int(), bytes);
  EXPECT_EQ(built.at("train_tokens").as_int() + built.at("val_tokens").as_int(), bytes + 100);
  EXPECT_NEAR(built.at("bytes_per_token").as_double(), 1, 0.1);
  EXPECT_EQ(folder.files(),
            (std::vector<std::string>{"out/data_train_000000.bin", "out/data_val_000000.bin",
                                      "out/manifest.json", "out/tokenizer.json", "tales.txt"}));

  const RunResult again = data({"build", text, "--tokenizer", "bytes", "-o", out});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_NE(again.err.find("already contains a data set"), std::string::npos) << again;
  const RunResult forced = data({"build", text, "--tokenizer", "bytes", "-o", out, "--force"});
  EXPECT_EQ(forced.exit_code, 0) << forced;
  EXPECT_NE(forced.out.find("bytes per token"), std::string::npos);
}

TEST(DataBuild, CountsSkippedRecords) {
  TempFolder folder;
  const std::string user = R"({"role": "user", "content": "q"})",
                    answer = R"({"role": "assistant", "content": "a"})";
  const std::string chats =
      folder
          .write("chats.jsonl",
                 fmt::format("[{0}]\n[{0},{1}]\nnonsense\n[{0},{1},{0}]\n[{0},{1},{0},{1}]\n", user, answer))
          .string();
  const std::vector<std::string> words = {
      "build", chats, "--chat", "--tokenizer", "bytes:chat", "-o", (folder / "out").string()};
  const RunResult bad = data(words);
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_NE(bad.err.find("chats.jsonl:3:"), std::string::npos) << bad;
  EXPECT_EQ(folder.files(), (std::vector<std::string>{"chats.jsonl"}));
  auto skipping = words;
  skipping.insert(skipping.end(), {"--skip-bad", "--dedup"});
  const RunResult built = data(skipping);
  EXPECT_EQ(built.exit_code, 0) << built;
  for (const char* line :
       {"bad records                                1", "conversations without an answer            1",
        "conversations cut after their last answer  1", "duplicates                                 1"})
    EXPECT_NE(built.out.find(line), std::string::npos) << built;
}

TEST(DataInfo, VerifiesDigests) {
  TempFolder folder;
  const std::string text = folder.write("tales.txt", tales(100)).string(), out = (folder / "out").string();
  ASSERT_EQ(data({"build", text, "--tokenizer", "bytes", "-o", out}).exit_code, 0);
  EXPECT_TRUE(json_of(data({"info", out, "--verify", "--json"})).at("verified").as_bool());
  EXPECT_FALSE(json_of(data({"info", out, "--json"})).at("verified").as_bool());
  EXPECT_EQ(data({"info", text, "--verify"}).exit_code, 1);
  std::filesystem::remove(folder / "out/manifest.json");
  EXPECT_EQ(data({"info", out, "--verify"}).exit_code, 1) << "there are no digests to compare with";
}

TEST(DataBuild, ReadsPipes) {
  TempFolder folder;
  const std::string text = folder.write("tales.txt", tales(100)).string();
  ASSERT_EQ(data({"build", text, "--tokenizer", "bytes", "-o", (folder / "file").string()}).exit_code, 0);
  for (const char* input : {"-", "/dev/stdin"}) {
    const RunResult piped = run_binary({.arguments = {"data", "build", input, "--tokenizer", "bytes", "-o",
                                                      (folder / "pipe").string(), "--force"},
                                        .input = tales(100)});
    EXPECT_EQ(piped.exit_code, 0) << piped;
    EXPECT_EQ(folder.read("pipe/data_train_000000.bin"), folder.read("file/data_train_000000.bin"));
  }
}

TEST(DataBuild, RejectsInvalidArguments) {
  TempFolder folder;
  const std::string text = folder.write("a.txt", "x").string(), out = (folder / "out").string();
  EXPECT_EQ(data({"build", text, "-o", out}).exit_code, 2);
  EXPECT_EQ(data({"build", text, "--tokenizer", "bytes", "-o", out, "--context", "64"}).exit_code, 2);
  EXPECT_EQ(
      data({"build", text, "--tokenizer", "bytes", "-o", out, "--val-docs", "1", "--val-fraction", "0.1"})
          .exit_code,
      2);
  const RunResult parquet =
      data({"build", folder.write("a.parquet", "PAR1").string(), "--tokenizer", "bytes", "-o", out});
  EXPECT_EQ(parquet.exit_code, 1);
  EXPECT_NE(parquet.err.find("expected a Parquet file, found 4 bytes"), std::string::npos) << parquet;
  EXPECT_EQ(data({"build", text, "--chat", "--tokenizer", "bytes", "-o", out}).exit_code, 1);
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(DataBuild, GivesTheSameFilesAfterKills) {
  TempFolder folder;
  const std::string text = folder.write("tales.txt", tales(20000)).string();
  std::vector<std::string> words = {"data",           "build", text,      "--tokenizer", "bytes",
                                    "--shard-tokens", "30011", "--dedup", "-o",          ""};
  words.back() = (folder / "whole").string();
  const auto start = std::chrono::steady_clock::now();
  const RunResult whole = run_binary({.arguments = words});
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ASSERT_EQ(whole.exit_code, 0) << whole;
  const auto expected = digests(folder, "whole");
  words.back() = (folder / "killed").string();
  std::minstd_rand random(7);
  // A kill may come after the manifest was written; then only the report is missing.
  const auto expect_done = [&] {
    EXPECT_EQ(digests(folder, "killed"), expected);
    std::filesystem::remove_all(folder / "killed");
  };
  int kills = 0;
  for (int attempt = 0; attempt < 80 && kills < 8; ++attempt) {
    const double after = seconds * std::uniform_real_distribution(0.0, 1.0)(random);
    const RunResult run = run_binary({.arguments = words, .signal = SIGKILL, .signal_after_seconds = after});
    ASSERT_TRUE(run.exit_code == 0 || run.signal == SIGKILL) << run;
    if (run.signal == SIGKILL) ++kills;
    if (run.exit_code == 0) seconds *= 0.8;  // the machine is less busy than before
    if (std::filesystem::exists(folder / "killed/manifest.json")) expect_done();
  }
  EXPECT_EQ(kills, 8);
  ASSERT_EQ(run_binary({.arguments = words}).exit_code, 0);
  expect_done();
}

TEST(DataBuild, ContinuesAfterAnInterrupt) {
  TempFolder folder;
  const std::string text = folder.write("tales.txt", tales(30000)).string(), out = (folder / "out").string();
  const std::vector<std::string> words = {"data",           "build", text, "--tokenizer", "bytes",
                                          "--shard-tokens", "30011", "-o", out,           "--json"};
  const auto begun = [&] { return std::filesystem::exists(folder / "out/data_train_000000.bin"); };
  const RunResult stopped = run_binary({.arguments = words, .signal = SIGINT, .signal_when = begun});
  EXPECT_EQ(stopped.exit_code, 130) << stopped;
  EXPECT_TRUE(begun()) << "finished shards are kept";
  EXPECT_EQ(json_of(run_binary({.arguments = words})).at("documents").as_int(), 30000);
}

TEST(DataSample, LeavesNoFilesWhenInterrupted) {
  TempFolder folder;
  const RunResult stopped =
      run_binary({.arguments = {"data", "sample", "--size", "1G", "-o", (folder / "chats.jsonl").string()},
                  .signal = SIGTERM,
                  .signal_when = [&] { return !std::filesystem::is_empty(folder.path()); }});
  EXPECT_EQ(stopped.exit_code, 130) << stopped;
  EXPECT_EQ(folder.files(), std::vector<std::string>());
}

TEST(DataInfo, DescribesDataSetsShardsTextsAndChats) {
  TempFolder folder;
  const std::string text = folder.write("tales.txt", tales(10)).string(), out = (folder / "out").string();
  ASSERT_EQ(data({"build", text, "--tokenizer", "bytes", "-o", out, "--val-docs", "2"}).exit_code, 0);
  const Json set = json_of(data({"info", out, "--json"}));
  EXPECT_EQ(set.at("form").as_string(), "data set");
  EXPECT_EQ(set.at("splits").as_array()[1].at("documents").as_int(), 2);
  EXPECT_TRUE(set.at("first_document").as_string().starts_with("<bos>Tale 0: the 0 cats"));
  const Json shard = json_of(data({"info", out + "/data_val_000000.bin", "--json"}));
  EXPECT_EQ(shard.at("form").as_string(), "shard");
  EXPECT_TRUE(shard.at("first_document").as_string().starts_with("<bos>Tale 8"));
  const Json source = json_of(data({"info", text, "--tokenizer", "bytes", "--json"}));
  EXPECT_EQ(source.at("form").as_string(), "text");
  EXPECT_EQ(source.at("splits").as_array()[0].at("documents").as_int(), 10);
  EXPECT_EQ(source.at("splits").as_array()[0].at("tokens").as_int(),
            source.at("splits").as_array()[0].at("bytes").as_int() + 10);
  const RunResult people =
      data({"info", folder.write("c.json", R"([{"instruction": "a?", "output": "b."}])").string()});
  EXPECT_NE(people.out.find("user: a?\nassistant: b.\n"), std::string::npos) << people;
  EXPECT_EQ(data({"info", (folder / "nothing").string()}).exit_code, 1);
}

TEST(DataBuild, FullTierUsesLittleMemoryForAGigabyte) {
  TempFolder folder;
  const auto one_line = folder / "line.txt", many = folder / "many.jsonl";
  {
    std::ofstream line(one_line), lines(many);
    for (int i = 0; line.tellp() < 300'000'000; ++i) line << "the " << i << "th word of one endless text, ";
    for (int i = 0; lines.tellp() < 750'000'000; ++i)
      lines << "{\"text\": \"Document " << i % 4'000'000 << ": "
            << std::string(static_cast<std::size_t>(i % 200), 'x') << "\"}\n";
  }
  const Json built = json_of(data({"build", one_line.string(), many.string(), "--tokenizer", "bytes",
                                   "--dedup", "-o", (folder / "out").string(), "--json"}));
  EXPECT_GT(built.at("bytes").as_int(), 500'000'000);
  rusage usage{};
  ASSERT_EQ(getrusage(RUSAGE_CHILDREN, &usage), 0);
  RecordProperty("megabytes", static_cast<int>(usage.ru_maxrss / 1024));
  EXPECT_LT(usage.ru_maxrss, 200 * 1024) << "kilobytes";
}

// The formats of published data sets and, if they exist, the data sets.
TEST(DataBuild, BuildsPublishedChatDataSets) {
  TempFolder folder;
  const auto build = [&](const std::filesystem::path& input, const std::string& name) {
    return json_of(data({"build", input.string(), "--chat", "--tokenizer", "bytes:chat", "--json", "-o",
                         (folder / name).string()}));
  };
  std::string lists, pairs = "[", shared_gpt;
  for (int i = 0; i < 40; ++i) {
    const std::string question = fmt::format(R"({{"role": "user", "content": "Why {}?"}})", i);
    lists += fmt::format(R"([{0}, {{"role": "assistant", "content": "So."}}{1}])", question,
                         i % 4 == 0 ? ", " + question : "") +
             "\n";
    pairs += fmt::format(R"({}{{"instruction": "Add.", "input": "{} 1", "output": "{}"}})", i ? ",\n" : "", i,
                         i + 1);
    shared_gpt += fmt::format(R"({{"conversations": [{{"from": "human", "value": "Hi {}"}},)"
                              R"({{"from": "gpt", "value": "Hello."}}]}})",
                              i) +
                  "\n";
  }
  const Json of_lists = build(folder.write("lists.jsonl", lists), "lists");
  EXPECT_EQ(of_lists.at("documents").as_int(), 40);
  EXPECT_EQ(of_lists.at("dropped").at("turns_after_last_answer").as_int(), 10);
  EXPECT_EQ(build(folder.write("pairs.json", pairs + "]\n"), "pairs").at("documents").as_int(), 40);
  EXPECT_EQ(build(folder.write("g.jsonl", shared_gpt), "g").at("documents").as_int(), 40);

  const auto oasst = shared_path("corpora/oasst1_chat.jsonl.zst"),
             alpaca = shared_path("corpora/alpaca_en_demo.json.zst");
  if (!oasst || !alpaca) return;
  const Json first = build(*oasst, "oasst"), second = build(*alpaca, "alpaca");
  EXPECT_EQ(first.at("documents").as_int(), 2437);
  EXPECT_EQ(first.at("dropped").at("turns_after_last_answer").as_int(), 957);
  EXPECT_EQ(second.at("documents").as_int(), 999);
}

}  // namespace
}  // namespace thimble::data_test
