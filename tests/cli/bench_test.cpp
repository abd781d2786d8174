// Arguments of `thimble bench`.
#include "cli/bench.h"

#include "base/error.h"
#include "cli/commands.h"
#include "cli/parse.h"

namespace thimble {
namespace {

Arguments bench_decode(const std::vector<std::string>& words) {
  static const std::vector<Command> commands = all_commands();
  return parse(*find_command(commands, {"bench", "decode"}).command, words);
}

TEST(Bench, DepthAndTokensShareTheContext) {
  ModelConfig config;
  config.context = 256;
  const auto tokens = [&](const std::vector<std::string>& words) {
    return tokens_from(bench_decode(words), config);
  };
  EXPECT_EQ(tokens({}), 128);
  EXPECT_EQ(tokens({"--depth", "200"}), 56) << "the default is reduced to what fits";
  EXPECT_EQ(tokens({"--depth", "200", "--max-tokens", "56"}), 56);
  EXPECT_THROW(tokens({"--depth", "200", "--max-tokens", "57"}), UsageError);
  EXPECT_THROW(tokens({"--depth", "256"}), UsageError);
  EXPECT_THROW(tokens({"--depth", "9223372036854775807"}), UsageError);
}

TEST(Bench, AnUnknownSettingIsAUsageError) {
  EXPECT_THROW(bench_model(bench_decode({"--preset", "quick", "--set", "nonsense=1"})), UsageError);
}

}  // namespace
}  // namespace thimble
