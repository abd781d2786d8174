// Runs every command in the ```sh blocks of README.md and of the documents below docs/.
//
// A line that starts with "thimble ", "mpirun " or "./" is a command; a backslash at its end continues it.
// The commands of one document run in order, in a folder that contains only a text, book.txt; commands that
// start with "./" run in the root of the repository. A block that cannot run gives the reason above it:
//
//   <!-- no-test: needs a CUDA GPU -->
//   ```sh no-test
//
// A command in a block of another kind is an error, except in docs/reference, which is generated.
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
  bool in_block = false, runs = false, shell = false;
  for (std::string line; std::getline(lines, line); before = line) {
    if (!in_block && line.starts_with("```")) {
      in_block = true;
      runs = line == "```sh";
      shell = line.starts_with("```sh");
      if (line == "```sh no-test" && !gives_a_reason(before))
        document.problems.push_back("a ```sh no-test block without <!-- no-test: reason --> above it");
      else if (line.starts_with("```sh ") && line != "```sh no-test")
        document.problems.push_back("unknown mark on a block: " + line);
    } else if (line.starts_with("```")) {
      in_block = false;
    } else if (in_block && runs) {
      add_command(document, lines, line);
    } else if (in_block && !shell && line.starts_with("thimble ")) {
      document.problems.push_back("a command outside of a ```sh block is not tested: " + line);
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
      "thimble outside\n```sh\nthimble doctor \\\n  --json\nls\n./test\n```\n```\nplain\n```\n"
      "```sh\nthimble --version\n```\n");
  EXPECT_EQ(document.commands,
            (std::vector<std::string>{"thimble doctor \\\n  --json", "./test", "thimble --version"}));
  EXPECT_TRUE(document.problems.empty());
}

TEST(DocumentReader, ReportsCommandsThatAreNotRun) {
  EXPECT_EQ(read_text("```\nthimble plain\n```\n").problems.size(), 1u);
  EXPECT_EQ(read_text("```bash\nthimble plain\n```\n").problems.size(), 1u);
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
  for (const auto& entry : fs::recursive_directory_iterator(source_folder() / "docs"))
    if (entry.path().extension() == ".md" && entry.path().parent_path().filename() != "reference")
      found.push_back(entry.path());
  return found;
}

class Documents : public testing::TestWithParam<fs::path> {};

TEST_P(Documents, CommandsWork) {
  std::ifstream file(GetParam());
  ASSERT_TRUE(file) << GetParam() << " cannot be read";
  const Document document = read_document(file);
  for (const std::string& problem : document.problems) ADD_FAILURE() << problem;

  const TempFolder folder;
  fs::copy_file(source_folder() / "docs/design.md", folder / "book.txt");
  const std::string path = binary_path().parent_path().string() + ":" + std::getenv("PATH");
  // Allow root, and more ranks than cores. Open MPI leaks some of its own memory.
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
  std::string name = fs::relative(info.param, source_folder()).replace_extension().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
});

}  // namespace
}  // namespace thimble::docs_test
