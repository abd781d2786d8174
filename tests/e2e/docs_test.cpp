// Documents are tested: every command in a ```sh block of README.md and docs/*.md is run.
//
// A line that begins with "thimble ", "mpirun " or "./" is a command; a closing backslash joins the next line to it. The
// commands of one document run in order in one folder that holds nothing but a text, book.txt (those with
// "./" in the repository's root). A block that must not run is marked and says why in the line above it:
//
//   <!-- no-test: it would run itself -->
//   ```sh no-test
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "support/mpirun.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::docs_test {
namespace {

namespace fs = std::filesystem;

struct Document {
  std::vector<std::string> commands;
  std::vector<std::string> problems;
};

bool gives_a_reason(const std::string& line) {
  const std::string start = "<!-- no-test: ";
  return line.starts_with(start) && line.ends_with(" -->") && line.size() > start.size() + 4;
}

void add_command(Document& document, std::istream& lines, std::string line) {
  const bool command = line.starts_with("thimble ") || line.starts_with("mpirun ") || line.starts_with("./");
  if (!command) return;
  for (std::string more; line.ends_with('\\') && std::getline(lines, more);) line += "\n" + more;
  document.commands.push_back(line);
}

Document read_document(std::istream& lines) {
  Document document;
  std::string before;
  bool in_block = false, runs = false;
  for (std::string line; std::getline(lines, line); before = line) {
    if (!in_block && line.starts_with("```")) {
      in_block = true;
      runs = line == "```sh";
      if (line == "```sh no-test" && !gives_a_reason(before))
        document.problems.push_back("a ```sh no-test block without <!-- no-test: reason --> above it");
      else if (line.starts_with("```sh ") && line != "```sh no-test")
        document.problems.push_back("unknown mark on a block: " + line);
    } else if (line.starts_with("```")) {
      in_block = false;
    } else if (in_block && runs) {
      add_command(document, lines, line);
    }
  }
  return document;
}

Document read_text(const std::string& text) {
  std::istringstream lines(text);
  return read_document(lines);
}

TEST(DocumentReader, FindsCommandsInShellBlocksOnly) {
  const Document document = read_text(
      "thimble outside\n```sh\nthimble doctor \\\n  --json\nls\n./test\n```\n```\nthimble plain\n```\n"
      "```cpp\nthimble cpp\n```\n```sh\nthimble --version\n```\n");
  EXPECT_EQ(document.commands,
            (std::vector<std::string>{"thimble doctor \\\n  --json", "./test", "thimble --version"}));
  EXPECT_TRUE(document.problems.empty());
}

TEST(DocumentReader, SkipsABlockOnlyWithAReason) {
  EXPECT_TRUE(read_text("<!-- no-test: slow -->\n```sh no-test\nthimble x\n```\n").problems.empty());
  EXPECT_TRUE(read_text("<!-- no-test: slow -->\n```sh no-test\nthimble x\n```\n").commands.empty());
  EXPECT_EQ(read_text("```sh no-test\nthimble x\n```\n").problems.size(), 1u);
  EXPECT_EQ(read_text("<!-- no-test:  -->\n```sh no-test\n```\n").problems.size(), 1u);
  EXPECT_EQ(read_text("```sh notest\nthimble x\n```\n").problems.size(), 1u);
}

std::vector<fs::path> documents() {
  std::vector<fs::path> found = {source_folder() / "README.md"};
  if (fs::exists(source_folder() / "docs"))
    for (const auto& entry : fs::directory_iterator(source_folder() / "docs"))
      if (entry.path().extension() == ".md") found.push_back(entry.path());
  return found;
}

class Documents : public testing::TestWithParam<fs::path> {};

TEST_P(Documents, CommandsWork) {
  std::ifstream file(GetParam());
  ASSERT_TRUE(file) << GetParam() << " cannot be read";
  const Document document = read_document(file);
  for (const std::string& problem : document.problems) ADD_FAILURE() << problem;

  const TempFolder folder;
  fs::copy_file(source_folder() / "docs" / "design.md", folder / "book.txt");
  const std::string path = binary_path().parent_path().string() + ":" + std::getenv("PATH");
  // Whoever tests may be root and have fewer cores than a document has ranks. Open MPI does not free all of its own.
  const std::map<std::string, std::string> environment = {{"PATH", path},
                                                          {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                                          {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                                          {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                                          {"LSAN_OPTIONS", "detect_leaks=0"}};
  for (const std::string& command : document.commands) {
    if (command.starts_with("mpirun ") && !no_mpirun().empty()) continue;
    const bool in_root = command.starts_with("./");
    const RunResult run = run_program("/bin/bash", {.arguments = {"-euo", "pipefail", "-c", command},
                                                    .folder = in_root ? source_folder() : folder.path(),
                                                    .environment = environment,
                                                    .timeout_seconds = 600});
    EXPECT_EQ(run.exit_code, 0) << command << "\n" << run;
  }
}

INSTANTIATE_TEST_SUITE_P(Repository, Documents, testing::ValuesIn(documents()), [](const auto& info) {
  std::string name = info.param.stem().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
});

}  // namespace
}  // namespace thimble::docs_test
