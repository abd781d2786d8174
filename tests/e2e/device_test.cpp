// --device on a machine without CUDA: a GPU that is requested and not available is an error before
// anything is computed, and auto reports what it selected.
#include "base/json.h"
#include "support/run_binary.h"

namespace thimble::device_test {
namespace {

RunResult without_plugin(const std::vector<std::string>& arguments) {
  return run_binary({.arguments = arguments, .environment = {{"THIMBLE_CUDA_PLUGIN", "/no/such/plugin.so"}}});
}

const std::vector<std::string> kTiny = {"--preset", "quick", "--set",      "layers=1", "--set",
                                        "dim=32",   "--set", "context=64", "--set",    "batch_tokens=64"};

std::vector<std::string> tiny(std::vector<std::string> arguments, const std::string& device) {
  arguments.insert(arguments.end(), kTiny.begin(), kTiny.end());
  arguments.insert(arguments.end(), {"--device", device});
  return arguments;
}

class Commands : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(Commands, RejectAGpuThatIsNotAvailable) {
  const RunResult run = without_plugin(tiny(GetParam(), "cuda"));
  EXPECT_EQ(run.exit_code, 1) << run;
  EXPECT_EQ(run.out, "");
  EXPECT_NE(run.err.find("error: the CUDA plugin cannot be loaded: /no/such/plugin.so"), std::string::npos)
      << run;
}

TEST_P(Commands, FallBackToTheCpuWithANote) {
  const RunResult run = without_plugin(tiny(GetParam(), "auto"));
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_NE(run.err.find("device: CPU (the CUDA plugin cannot be loaded"), std::string::npos) << run;
}

INSTANTIATE_TEST_SUITE_P(
    OnADevice, Commands,
    testing::Values(std::vector<std::string>{"bench", "decode", "--max-tokens", "2", "--iterations", "1"},
                    std::vector<std::string>{"bench", "prefill", "--max-tokens", "8", "--iterations", "1"},
                    std::vector<std::string>{"train", "--dry-run"}),
    [](const auto& info) { return info.param[0] + std::to_string(info.index); });

TEST(OnADevice, BenchReportsTheDevice) {
  const RunResult run = run_binary(
      {.arguments = tiny({"bench", "decode", "--max-tokens", "2", "--iterations", "1", "--json"}, "cpu")});
  EXPECT_EQ(run.exit_code, 0) << run;
  EXPECT_EQ(parse_json(run.out, "stdout").at("device").as_string(), "cpu");
}

}  // namespace
}  // namespace thimble::device_test
