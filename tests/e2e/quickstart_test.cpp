// ./quickstart as a new user runs it. It builds thimble in a folder of its own.
#include <fstream>

#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

RunResult quickstart(std::vector<std::string> arguments) {
  return run_program(source_folder() / "quickstart", {.arguments = std::move(arguments),
                                                      .folder = "/",
                                                      .environment = {{"THIMBLE_MINUTES", "0.2"}},
                                                      .timeout_seconds = 1500});
}

// Arguments are checked before anything is installed or built.
TEST(Quickstart, RejectsUnknownOptionsAndMissingFiles) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--gof"}, {"no-such-file.txt"}, {"--golf", "book.txt"}}) {
    const RunResult result = quickstart(arguments);
    EXPECT_EQ(result.exit_code, 2) << result;
    EXPECT_NE(result.err.find("error: "), std::string::npos) << result;
    EXPECT_EQ(result.out, "") << result;
  }
  const RunResult help = quickstart({"--help"});
  EXPECT_EQ(help.exit_code, 0) << help;
  EXPECT_NE(help.out.find("./quickstart FILE..."), std::string::npos) << help;
}

TEST(FullTierQuickstart, BuildsTrainsPacksAndReusesTheModelOnASecondRun) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    const RunResult result = quickstart({});
    ASSERT_EQ(result.exit_code, 0) << result;
    EXPECT_NE(result.out.find("self-contained"), std::string::npos) << result;
    EXPECT_NE(result.out.find("bits per byte"), std::string::npos) << result;
    EXPECT_NE(result.out.find("% exact: "), std::string::npos) << result;
    EXPECT_TRUE(result.out.starts_with("This takes about ")) << result;
    EXPECT_NE(result.out.find(" steps of 2048 tokens, "), std::string::npos) << result;
    if (attempt == 1) {
      EXPECT_NE(result.out.find(" steps of 2048 tokens, as before"), std::string::npos) << result;
      EXPECT_NE(result.out.find("is already trained"), std::string::npos) << result;
    }
  }
}

TEST(FullTierQuickstart, TrainsAndPacksWithGolfTechniques) {
  const RunResult result = quickstart({"--golf"});
  ASSERT_EQ(result.exit_code, 0) << result;
  EXPECT_NE(result.out.find("stride 64"), std::string::npos) << result;
  EXPECT_NE(result.out.find("(int6_per_row)"), std::string::npos) << result;
}

TEST(FullTierQuickstart, ChoosesTheModelSizeForTextsAndChats) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "books");
  std::filesystem::copy_file(source_folder() / "docs" / "design.md", folder / "books" / "design.txt");
  const RunResult text = quickstart({(folder / "books").string()});
  ASSERT_EQ(text.exit_code, 0) << text;
  EXPECT_NE(text.out.find("== training a model of your text"), std::string::npos) << text;
  EXPECT_NE(text.err.find("tokenizer  "), std::string::npos) << text;
  std::ofstream(folder / "chats.jsonl")
      << R"([{"role":"user","content":"Are you there?"},{"role":"assistant","content":"Yes."}])"
      << "\n"
      << R"([{"role":"user","content":"Who are you?"},{"role":"assistant","content":"A model."}])"
      << "\n";
  const RunResult chats = quickstart({(folder / "chats.jsonl").string()});
  ASSERT_EQ(chats.exit_code, 0) << chats;
  EXPECT_NE(chats.out.find("== training a model of your chats"), std::string::npos) << chats;
}

}  // namespace
}  // namespace thimble
