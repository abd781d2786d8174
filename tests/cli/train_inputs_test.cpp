#include "cli/train_inputs.h"

#include "base/error.h"
#include "cli/commands.h"
#include "support/message_of.h"

namespace thimble {
namespace {

Config settings_of_words(const std::vector<std::string>& words) {
  static const std::vector<Command> commands = all_commands();
  return settings_from(parse(*find_command(commands, {"train"}).command, words)).resolve();
}

TEST(TrainInputs, ASettingIsGivenOnce) {
  const auto message = [](const std::vector<std::string>& words) {
    return message_of([&] { settings_of_words(words); });
  };
  EXPECT_EQ(message({"--layers", "1", "--set", "layers=3"}), "layers is given twice, as '1' and as '3'");
  EXPECT_EQ(message({"--set", "layers=2", "--set", "layers=2"}), "layers is given twice, as '2' and as '2'");
  EXPECT_EQ(message({"--set", "mlp_hidden=2", "--mlp-hidden=4"}),
            "mlp_hidden is given twice, as '4' and as '2'");
  EXPECT_THROW(settings_of_words({"--set", "dim=64", "--dim", "64"}), UsageError);
  EXPECT_EQ(settings_of_words({"--preset", "llama", "--set", "layers=2", "--dim", "128"}).model.layers, 2);
}

TEST(TrainInputs, NumbersMayEndInAUnit) {
  const Config config = settings_of_words({"--steps", "2.5k", "--set", "val_tokens=1M"});
  EXPECT_EQ(config.train.steps, 2500);
  EXPECT_EQ(config.train.val_tokens, 1'000'000);
}

TEST(TrainInputs, WithoutAPresetOrALengthEverythingIsPlanned) {
  static const std::vector<Command> commands = all_commands();
  const auto what = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"--data", "a.txt"});
    const Arguments arguments = parse(*find_command(commands, {"train"}).command, words);
    return planned_by(arguments, settings_from(arguments));
  };
  EXPECT_EQ(what({}), Planned::everything);
  EXPECT_EQ(what({"--minutes", "2"}), Planned::everything);
  EXPECT_EQ(what({"--layers", "3", "--tokenizer", "bpe:500"}), Planned::everything);
  EXPECT_EQ(what({"--minutes", "2", "--steps", "100"}), Planned::everything);
  for (const std::string length : {"--steps", "--epochs", "--max-seconds"})
    EXPECT_EQ(what({length, "20"}), Planned::nothing) << length;
  EXPECT_EQ(what({"--set", "steps=20"}), Planned::nothing);
  EXPECT_EQ(what({"--preset", "chat"}), Planned::nothing);
  EXPECT_EQ(what({"--preset", "chat", "--minutes", "2"}), Planned::length);
  EXPECT_EQ(what({"--init", "base", "--minutes", "2"}), Planned::length);
  EXPECT_THROW(what({"--minutes", "2", "--max-seconds", "60"}), UsageError);
}

TEST(Sampling, ContradictionsAreRefused) {
  static const std::vector<Command> commands = all_commands();
  const auto message = [](std::vector<std::string> words) {
    words.insert(words.begin(), "model");
    const Arguments arguments = parse(*find_command(commands, {"generate"}).command, words);
    return message_of([&] {
      sampling_from(arguments);
      min_tokens_from(arguments);
    });
  };
  EXPECT_EQ(message({"--greedy", "--temperature", "0.5"}), "expected --greedy or --temperature, found both");
  EXPECT_EQ(message({"--greedy", "--temperature", "0"}), "nothing was thrown");
  EXPECT_EQ(message({"--min-tokens", "11", "--max-tokens", "10"}),
            "--min-tokens (11) must be at most --max-tokens (10)");
  EXPECT_EQ(message({"--min-tokens", "10", "--max-tokens", "10"}), "nothing was thrown");
}

}  // namespace
}  // namespace thimble
