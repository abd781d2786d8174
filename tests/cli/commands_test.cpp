#include "cli/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/table.h"
#include "cli/help.h"
#include "cli/redirected.h"

namespace thimble {
namespace {

std::vector<Command> sample_commands() {
  return {{.name = "tokenizer train", .summary = "trains one"},
          {.name = "tokenizer encode", .summary = "text to ids"},
          {.name = "generate", .aliases = {"run"}, .summary = "writes text"},
          {.name = "data build", .summary = "makes shards"}};
}

TEST(FindCommand, TakesOneWordTwoWordsAndAliases) {
  const auto commands = sample_commands();
  EXPECT_EQ(find_command(commands, {"tokenizer", "encode", "x"}).command, &commands[1]);
  EXPECT_EQ(find_command(commands, {"tokenizer", "encode", "x"}).words, 2u);
  EXPECT_EQ(find_command(commands, {"generate", "m"}).command, &commands[2]);
  EXPECT_EQ(find_command(commands, {"generate", "m"}).words, 1u);
  EXPECT_EQ(find_command(commands, {"run"}).command, &commands[2]);
}

TEST(FindCommand, AGroupNameMatchesNoCommand) {
  const auto commands = sample_commands();
  EXPECT_EQ(find_command(commands, {"tokenizer"}).command, nullptr);
  EXPECT_EQ(find_command(commands, {"tokenizer", "--help"}).command, nullptr);
}

TEST(FindCommand, SuggestsTheNearestName) {
  const auto commands = sample_commands();
  const auto hint = [&](std::vector<std::string> words) {
    try {
      find_command(commands, words);
    } catch (const UsageError& error) {
      return std::string(error.what()) + " / " + error.hint();
    }
    return std::string("found");
  };
  EXPECT_EQ(hint({"genrate"}), "unknown command 'genrate' / did you mean 'generate'?");
  EXPECT_EQ(hint({"tokenizer", "trian"}),
            "unknown command 'tokenizer trian' / did you mean 'tokenizer train'?");
  EXPECT_EQ(hint({"frobnicate"}), "unknown command 'frobnicate' / ");
}

TEST(FindCommand, KnowsNamesOfOtherPrograms) {
  const std::vector<Command> commands = all_commands();
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"quantize", "model"}, "did you mean 'pack'?"},   {{"sample"}, "did you mean 'generate'?"},
      {{"perplexity", "model"}, "did you mean 'eval'?"}, {{"finetune"}, "did you mean 'train'?"},
      {{"version"}, "did you mean '--version'?"},        {{"show", "model"}, "did you mean 'inspect'?"},
      {{"tokenize"}, "did you mean 'tokenizer encode'?"}};
  for (const auto& [words, expected] : cases) try {
      find_command(commands, words);
      ADD_FAILURE() << words[0];
    } catch (const UsageError& error) {
      EXPECT_EQ(error.hint(), expected);
    }
}

TEST(FindCommand, BenchIsACommandAndAGroup) {
  const std::vector<Command> commands = all_commands();
  EXPECT_EQ(find_command(commands, {"bench", "some/model"}).command->name, "bench");
  EXPECT_EQ(find_command(commands, {"bench", "decode", "some/model"}).command->name, "bench decode");
  EXPECT_THROW(find_command(commands, {"bench", "decdoe"}), UsageError);
}

TEST(Help, CanBeAWord) {
  const auto printed = [](const std::vector<std::string>& words) {
    testing::internal::CaptureStdout();
    const int code = run_here(words);
    return fmt::format("{} {}", code, testing::internal::GetCapturedStdout());
  };
  EXPECT_EQ(printed({"help"}), printed({"--help"}));
  EXPECT_EQ(printed({"help", "tokenizer", "train"}), printed({"tokenizer", "train", "--help"}));
  EXPECT_EQ(printed({"help", "tokenizer"}), printed({"tokenizer", "--help"}));
  EXPECT_EQ(printed({"help", "nonsense"}), "2 ");
  EXPECT_EQ(printed({"help"}).substr(0, 2), "0 ");
}

// Invariants that parsing and help rely on, for every command of the binary.
TEST(EveryCommand, HasACoherentTable) {
  std::set<std::string_view> names;
  for (const Command& command : all_commands()) {
    SCOPED_TRACE(std::string(command.name));
    EXPECT_TRUE(names.insert(command.name).second);
    for (std::string_view alias : command.aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
    EXPECT_FALSE(command.summary.empty());
    EXPECT_FALSE(command.task.empty());
    EXPECT_FALSE(command.summary.ends_with('.'));
    ASSERT_NE(command.run, nullptr);

    std::set<std::string_view> spelled;
    std::set<char> letters;
    for (const Option& option : options_of(command)) {
      SCOPED_TRACE(std::string(option.name));
      EXPECT_TRUE(spelled.insert(option.name).second);
      EXPECT_TRUE(!option.letter || letters.insert(option.letter).second);
      EXPECT_FALSE(option.help.empty());
      EXPECT_FALSE(option.help.ends_with('.'));
      EXPECT_TRUE(option.choices.empty() || option.initial.empty() ||
                  std::count(option.choices.begin(), option.choices.end(), option.initial));
      EXPECT_FALSE(option.required && !option.initial.empty());
    }
    for (std::size_t i = 0; i < command.arguments.size(); ++i) {
      EXPECT_FALSE(command.arguments[i].help.empty());
      const bool last = i + 1 == command.arguments.size();
      EXPECT_TRUE(last || !command.arguments[i].is_list());
      EXPECT_TRUE(last || !command.arguments[i].may_be_absent() || command.arguments[i + 1].may_be_absent());
    }
    for (std::string_view example : command.examples) EXPECT_NE(example.find("thimble "), example.npos);
  }
}

std::string longest_line(const std::string& text) {
  std::istringstream lines(text);
  std::string longest;
  for (std::string line; std::getline(lines, line);)
    if (display_width(line) > display_width(longest)) longest = line;
  return longest;
}

TEST(Help, MentionsEverythingWithinTheTerminalWidth) {
  for (const std::size_t columns : {40u, 60u, 79u, 100u, 200u})
    for (const Command& command : all_commands()) {
      const std::string text = command_help(command, {.all = true, .columns = columns});
      for (const Option& option : options_of(command)) {
        EXPECT_NE(text.find(fmt::format("--{}", option.name)), text.npos) << text;
        for (std::string_view choice : option.choices) EXPECT_NE(text.find(choice), text.npos) << text;
      }
      EXPECT_LE(display_width(longest_line(text)), std::min<std::size_t>(columns, kHelpColumns))
          << command.name << ": " << longest_line(text);
      EXPECT_EQ(text.find('\x1b'), text.npos);
    }
  EXPECT_NE(command_help(all_commands()[0], {.bold = true}).find("\x1b[1musage"), std::string::npos);
  EXPECT_LE(display_width(longest_line(overview(all_commands(), {.columns = 40}))), 40u);
  EXPECT_LE(display_width(longest_line(group_help("tokenizer", all_commands(), {.columns = 40}))), 40u);
}

TEST(Help, IsNeverNarrowerThanFortyColumns) {
  EXPECT_EQ(overview(all_commands(), {.columns = 10}), overview(all_commands(), {.columns = 40}));
}

TEST(Help, BreaksExamplesSoThatTheyCanBePasted) {
  const Command command = {.name = "x",
                           .summary = "y",
                           .examples = {"thimble x --first \"two words\" --second 'and more words' --third"}};
  EXPECT_NE(command_help(command, {.columns = 40})
                .find("  thimble x --first \"two words\" \\\n      --second 'and more words' --third\n"),
            std::string::npos)
      << command_help(command, {.columns = 40});
}

TEST(Help, IsAlignedAndWrapped) {
  const std::string long_help =
      "word word word word word word word word word word word word word word word word "
      "word word word";
  const Command command = {
      .name = "data build",
      .summary = "makes shards",
      .arguments = {{.name = "INPUTS", .help = "text files", .count = Count::many}},
      .options = {common::json(),
                  {.name = "out", .letter = 'o', .value = "DIR", .help = long_help, .required = true}},
      .examples = {"thimble data build a.txt -o shards"}};
  EXPECT_EQ(
      command_help(command),
      "data build: makes shards\n"
      "\n"
      "usage\n"
      "  thimble data build INPUTS... -o DIR [options]\n"
      "\n"
      "arguments\n"
      "  INPUTS...  text files\n"
      "\n"
      "options\n"
      "  -o, --out DIR  word word word word word word word word word word word word word word word word\n"
      "                 word word word (required)\n"
      "      --json     print the result as one JSON object\n"
      "  -h, --help     show this help\n"
      "\n"
      "examples\n"
      "  thimble data build a.txt -o shards\n");
}

TEST(Help, ListsAdvancedOptionsWithHelpAllOnly) {
  const Command command = {
      .name = "x",
      .summary = "y",
      .options = {{.name = "rare", .help = "seldom used", .group = "data", .advanced = true},
                  {.name = "steps", .value = "N", .initial = "5", .help = "how many", .group = "training"},
                  {.name = "text", .help = "input", .group = "data"},
                  common::json()},
      .notes = "A note."};
  EXPECT_EQ(command_help(command),
            "x: y\n\nusage\n  thimble x [options]\n"
            "\ntraining\n      --steps N  how many (default: 5)\n"
            "\ndata\n      --text  input\n"
            "\ngeneral\n      --json      print the result as one JSON object\n"
            "      --help-all  show all options\n  -h, --help      show this help\n"
            "\n1 more options: thimble x --help-all\n\nA note.\n");
  const std::string all = command_help(command, {.all = true});
  EXPECT_NE(all.find("\ndata\n      --rare  seldom used\n      --text  input\n"), all.npos) << all;
  EXPECT_EQ(all.find("more options"), all.npos);
}

// The options that people use; --help-all lists the others, more than a hundred.
TEST(Help, OfTrainListsAboutTwentyOptions) {
  const std::vector<Command> commands = all_commands();
  const Command& train = *find_command(commands, {"train"}).command;
  const auto basic = std::ranges::count_if(train.options, [](const Option& o) { return !o.advanced; });
  EXPECT_GE(basic, 18);
  EXPECT_LE(basic, 25);
  EXPECT_GT(train.options.size(), 100u);
}

TEST(Help, OverviewListsAllCommandsAndAGroupItsCommands) {
  const auto commands = sample_commands();
  const std::string all = overview(commands);
  for (const Command& command : commands) EXPECT_NE(all.find(command.summary), all.npos);
  const std::string group = group_help("tokenizer", commands);
  EXPECT_NE(group.find("text to ids"), group.npos);
  EXPECT_EQ(group.find("makes shards"), group.npos);
}

TEST(Commands, ThatComputeHaveADeviceOption) {
  const std::set<std::string_view> computing = {
      "train", "golf",  "eval",         "generate",      "chat",        "serve", "pack",
      "qa",    "trace", "bench decode", "bench prefill", "bench train", "bench"};
  std::size_t found = 0;
  for (const Command& command : all_commands()) {
    if (!computing.contains(command.name)) continue;
    ++found;
    const auto device = std::ranges::find(command.options, "device", &Option::name);
    ASSERT_NE(device, command.options.end()) << command.name;
    EXPECT_EQ(device->initial, "cpu") << command.name;
    EXPECT_EQ(device->choices.size(), 3u) << command.name;
  }
  EXPECT_EQ(found, computing.size());
}

}  // namespace
}  // namespace thimble
