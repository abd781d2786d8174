// Runs every command in the ```sh blocks of the Markdown documents (support/documents.h). The
// commands of a document run in order, in a folder that contains only a text, book.txt; commands
// that start with "./" run in the root of the repository. The requests in docs/reference/http.md
// need a server: ServeCommand.AnswersTheRequestsOfTheHttpReference sends them.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "base/json.h"
#include "support/documents.h"
#include "support/mpirun.h"
#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble::docs_test {
namespace {

namespace fs = std::filesystem;

Document read_text(const std::string& text) {
  std::istringstream lines(text);
  return read_document(lines);
}

TEST(DocumentReader, FindsCommandsInShellBlocksOnly) {
  const Document document = read_text(
      "thimble outside\n```sh\nthimble doctor \\\n  --json\n# why\n\n./test\n```\n```\nplain\n```\n"
      "```sh\necho a | thimble chat m\n```\n");
  EXPECT_EQ(document.commands,
            (std::vector<std::string>{"thimble doctor \\\n  --json", "./test", "echo a | thimble chat m"}));
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
  std::vector<fs::path> found;
  for (const char* file : {"README.md", "CONTRIBUTING.md", "records/README.md", "examples/README.md"})
    found.push_back(source_folder() / file);
  // http.md needs a server. commands.md is generated; cli_tests check the flags of its examples.
  for (const auto& entry : fs::recursive_directory_iterator(source_folder() / "docs"))
    if (entry.path().extension() == ".md" && entry.path().filename() != "http.md" &&
        entry.path().filename() != "commands.md")
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

void add_keys(const Json& json, std::set<std::string>& keys) {
  if (json.is_array())
    for (const Json& element : json.as_array()) add_keys(element, keys);
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.as_object()) {
    keys.insert(key);
    add_keys(value, keys);
  }
}

TEST(MetricsReference, NamesEveryKeyThatTrainingWrites) {
  TempFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += fmt::format("line {}: the cat sat on the mat.\n", i * 7);
  const std::filesystem::path data = folder.write("text.txt", text), run = folder / "run";
  std::vector<std::string> arguments = {"train",   "--data", data.string(), "-o", run.string(),
                                        "--steps", "30",     "--val-every", "10", "--qat-bits",
                                        "8"};
  for (const char* setting :
       {"context=16", "layers=1", "dim=32", "heads=2", "kv_heads=1", "mlp_hidden=48", "batch_tokens=64"})
    arguments.insert(arguments.end(), {"--set", setting});
  const RunResult trained = run_binary({.arguments = arguments});
  ASSERT_EQ(trained.exit_code, 0) << trained;

  std::set<std::string> keys;
  std::istringstream lines(folder.read("run/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) add_keys(parse_json(line, "metrics.jsonl"), keys);
  add_keys(parse_json(folder.read("run/run.json"), "run.json"), keys);
  EXPECT_GE(keys.size(), 30u);
  std::ifstream file(source_folder() / "docs/reference/metrics.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  for (const std::string& key : keys)
    EXPECT_NE(page.find("`" + key + "`"), page.npos) << "docs/reference/metrics.md does not name " << key;
}

}  // namespace
}  // namespace thimble::docs_test
