// Every script in examples/ runs with --small.
#include <algorithm>
#include <fstream>
#include <iterator>

#include "support/run_binary.h"
#include "support/temp_folder.h"

namespace thimble {
namespace {

namespace fs = std::filesystem;

struct Example {
  std::string name;
  bool takes_text = false;
  std::string output_file = {};  // below the folder
  std::string output_text = {};  // part of stdout
};

RunResult run_example(const Example& example, const TempFolder& folder) {
  std::vector<std::string> arguments;
  if (example.takes_text) arguments.push_back((source_folder() / "docs" / "design.md").string());
  arguments.push_back("--small");
  return run_program(
      source_folder() / "examples" / (example.name + ".sh"),
      {.arguments = arguments,
       .folder = folder.path(),
       .environment = {{"THIMBLE", binary_path().string()}, {"OUT", "out"}, {"OMP_WAIT_POLICY", "passive"}},
       .timeout_seconds = 600});
}

class Examples : public testing::TestWithParam<Example> {};

TEST_P(Examples, RunTwice) {
  const TempFolder folder;
  for (int attempt = 0; attempt < 2; ++attempt) {
    const RunResult run = run_example(GetParam(), folder);
    ASSERT_EQ(run.exit_code, 0) << run;
    EXPECT_NE(run.out.find(GetParam().output_text), std::string::npos) << run;
  }
  EXPECT_GT(folder.read("out/" + GetParam().output_file).size(), 1000u);
  for (const std::string& file : folder.files()) EXPECT_TRUE(file.starts_with("out/")) << file;
}

std::vector<Example> examples() {
  return {{.name = "names", .output_file = "run/last.safetensors", .output_text = "what limits this run"},
          {.name = "shakespeare",
           .takes_text = true,
           .output_file = "run/last.safetensors",
           .output_text = "# How thimble is built"},
          {.name = "chat", .output_file = "run/last.safetensors", .output_text = "\n"},
          {.name = "golf", .output_file = "golf.thimble", .output_text = "blocks.*.mlp.fc.weight"},
          {.name = "llama_cpp", .output_file = "model.gguf", .output_text = "Once"}};
}

INSTANTIATE_TEST_SUITE_P(Repository, Examples, testing::ValuesIn(examples()),
                         [](const auto& info) { return info.param.name; });

TEST(Example, IsTestedAndInTheReadme) {
  std::ifstream file(source_folder() / "examples" / "README.md");
  const std::string readme(std::istreambuf_iterator<char>(file), {});
  std::vector<std::string> tested;
  for (const Example& example : examples()) tested.push_back(example.name);
  for (const auto& entry : fs::directory_iterator(source_folder() / "examples")) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".md") continue;
    EXPECT_NE(readme.find("(" + name), readme.npos) << name;
    if (entry.path().extension() != ".sh") continue;
    EXPECT_EQ(std::count(tested.begin(), tested.end(), entry.path().stem().string()), 1) << name;
  }
}

TEST(Example, ShakespeareNeedsAText) {
  const TempFolder folder;
  EXPECT_EQ(run_example({.name = "shakespeare"}, folder).exit_code, 2);
}

}  // namespace
}  // namespace thimble
