#include "cli/parse.h"

#include "base/error.h"
#include "base/text.h"

namespace thimble {
namespace {

Command sample_command() {
  return {.name = "generate",
          .summary = "write text",
          .arguments = {{.name = "MODEL", .help = "the model"},
                        {.name = "PROMPT", .help = "how it begins", .count = Count::optional}},
          .options = {{.name = "temperature", .value = "F", .initial = "1.0"},
                      {.name = "max-tokens", .letter = 'n', .value = "N", .initial = "100"},
                      {.name = "top-k", .value = "N"},
                      {.name = "stop", .value = "TEXT", .repeated = true},
                      {.name = "greedy", .letter = 'g'},
                      common::device(),
                      common::json()}};
}

Command build_command() {
  return {.name = "data build",
          .arguments = {{.name = "INPUTS", .help = "text files", .count = Count::many}},
          .options = {{.name = "out", .letter = 'o', .value = "DIR", .help = "where to", .required = true}}};
}

TEST(Parse, EverySpellingOfAnOptionGivesTheSameValue) {
  const std::vector<std::vector<std::string>> spellings = {
      {"m", "--max-tokens", "7"}, {"m", "--max-tokens=7"}, {"m", "-n", "7"}, {"m", "-n7"}, {"m", "-n=7"},
      {"--max-tokens", "7", "m"}, {"-n7", "--", "m"}};
  for (const auto& words : spellings) {
    const Arguments arguments = parse(sample_command(), words);
    EXPECT_EQ(arguments.integer("max-tokens"), 7) << fmt::format("{}", words.front());
    EXPECT_TRUE(arguments.given("max-tokens"));
    EXPECT_EQ(arguments.text("MODEL"), "m");
  }
}

TEST(Parse, GivenTextIsTheSameForEverySpelling) {
  const std::string given = parse(sample_command(), {"m", "-n7", "--stop=a", "--stop", "b"}).given_text();
  EXPECT_EQ(given,
            parse(sample_command(), {"--stop", "a", "--stop", "b", "--max-tokens", "7", "m"}).given_text());
  EXPECT_NE(given, parse(sample_command(), {"m", "-n7", "--stop=a", "--stop", "c"}).given_text());
  EXPECT_NE(given.find("--max-tokens 7\n"), given.npos);
  EXPECT_EQ(given.find("temperature"), given.npos);
}

TEST(Parse, DefaultsAreFilledInButDoNotCountAsGiven) {
  const Arguments arguments = parse(sample_command(), {"m"});
  EXPECT_EQ(arguments.number("temperature"), 1.0);
  EXPECT_EQ(arguments.integer("max-tokens"), 100);
  EXPECT_EQ(arguments.text("device"), "auto");
  EXPECT_EQ(arguments.text("PROMPT"), "");
  EXPECT_FALSE(arguments.given("temperature"));
  EXPECT_FALSE(arguments.given("PROMPT"));
  EXPECT_FALSE(arguments.flag("greedy"));
  EXPECT_FALSE(arguments.given("top-k"));
}

TEST(Parse, NegativeNumbersDashAndTextWithEqualsAreValues) {
  const Arguments arguments = parse(sample_command(), {"-", "-3", "--temperature", "-0.5", "--stop", "a=b",
                                                       "--stop=--x", "--top-k", "-.5"});
  EXPECT_EQ(arguments.text("MODEL"), "-");
  EXPECT_EQ(arguments.text("PROMPT"), "-3");
  EXPECT_EQ(arguments.number("temperature"), -0.5);
  EXPECT_EQ(arguments.list("stop"), (std::vector<std::string>{"a=b", "--x"}));
  EXPECT_EQ(arguments.text("top-k"), "-.5");
  EXPECT_EQ(parse(sample_command(), {"m", "- eggs"}).text("PROMPT"), "- eggs");
}

TEST(Parse, TwoDashesEndTheOptions) {
  const Arguments arguments = parse(sample_command(), {"--json", "--", "m", "--greedy"});
  EXPECT_EQ(arguments.text("PROMPT"), "--greedy");
  EXPECT_FALSE(arguments.flag("greedy"));
  EXPECT_TRUE(arguments.flag("json"));
}

TEST(Parse, EmptyValuesAreValues) {
  const Arguments arguments = parse(sample_command(), {"m", "", "--stop", "", "--stop="});
  EXPECT_TRUE(arguments.given("PROMPT"));
  EXPECT_EQ(arguments.list("stop"), (std::vector<std::string>{"", ""}));
}

TEST(Parse, ListsOfArgumentsKeepTheirOrder) {
  const Arguments arguments = parse(build_command(), {"a", "-o", "dir", "b", "c"});
  EXPECT_EQ(arguments.list("INPUTS"), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(arguments.path("out"), std::filesystem::path("dir"));
}

TEST(Parse, UndeclaredNamesThrowLogicErrors) {
  const Arguments arguments = parse(sample_command(), {"m"});
  EXPECT_THROW(arguments.text("tempreture"), std::logic_error);
  EXPECT_THROW(arguments.integer("top-k"), std::logic_error);  // no default, not given
  EXPECT_FALSE(arguments.takes("seed"));
}

struct Wrong {
  std::vector<std::string> words;
  std::string message, hint;
};

void expect_usage_errors(const Command& command, const std::vector<Wrong>& cases) {
  for (const Wrong& wrong : cases) {
    SCOPED_TRACE(wrong.message);
    try {
      parse(command, wrong.words);
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_EQ(error.what(), wrong.message);
      EXPECT_EQ(error.hint(), wrong.hint);
    }
  }
}

TEST(Parse, UsageErrorsStateWhatWasExpectedAndFound) {
  expect_usage_errors(
      sample_command(),
      {{{"m", "--tempreture", "1"},
        "unknown option --tempreture for 'generate'",
        "did you mean --temperature?"},
       {{"m", "--temp=1"}, "unknown option --temp for 'generate'", "did you mean --temperature?"},
       {{"m", "--xyzzy"}, "unknown option --xyzzy for 'generate'", ""},
       {{"m", "-x"}, "unknown option -x for 'generate'", ""},
       {{"m", "--temperature"}, "--temperature needs a value (F), found the end of the command line", ""},
       {{"m", "--temperature", "--json"},
        "--temperature needs a value (F), found '--json'",
        "if that is the value, write --temperature=--json"},
       {{"m", "--device"},
        "--device needs a value (auto, cpu or cuda), found the end of the command line",
        ""},
       {{"m", "--device", "cpuu"}, "--device expects auto, cpu or cuda, found 'cpuu'", "did you mean cpu?"},
       {{"m", "-n", "1", "--max-tokens=2"}, "--max-tokens is given twice, as '1' and as '2'", ""},
       {{"m", "--greedy=yes"}, "--greedy takes no value, found 'yes'", ""},
       {{"m", "-gx"}, "--greedy takes no value, found 'x'", ""},
       {{"m", "p", "q"}, "'generate' expects 2 arguments (MODEL PROMPT), found an extra argument: 'q'", ""},
       {{}, "'generate' needs MODEL: the model", ""}});
  expect_usage_errors(build_command(), {{{"-o", "dir"}, "'data build' needs INPUTS: text files", ""},
                                        {{"a"}, "'data build' needs -o or --out DIR: where to", ""}});
  const Command choosing{
      .name = "export",
      .options = {{.name = "format", .help = "as what", .choices = {"gguf", "hf"}, .required = true}}};
  expect_usage_errors(choosing, {{{}, "'export' needs --format gguf|hf: as what", ""}});
}

TEST(Parse, NamesOfOtherProgramsAreHintedAt) {
  const auto hint = [](std::vector<std::string> words) {
    try {
      parse(sample_command(), words);
    } catch (const UsageError& error) {
      return error.hint();
    }
    return std::string("accepted");
  };
  EXPECT_EQ(hint({"m", "--temp", "1"}), "did you mean --temperature?");
  EXPECT_EQ(hint({"m", "--max_new_tokens=5"}), "did you mean --max-tokens?");
  EXPECT_EQ(hint({"m", "-ngl", "99"}), "did you mean --device?") << "not -n with the value gl";
  EXPECT_EQ(hint({"-m", "m"}), "MODEL is an argument: thimble generate MODEL [PROMPT] [options]");
  EXPECT_EQ(hint({"m", "-p", "Once"}), "PROMPT is an argument: thimble generate MODEL [PROMPT] [options]");
  EXPECT_EQ(hint({"m", "-c", "512"}), "--context is an option of 'thimble train'");
  EXPECT_EQ(hint({"m", "--n-layer", "4"}), "--layers is an option of 'thimble train'");
}

TEST(Parse, NumbersAreCheckedForFormAndRange) {
  const auto integer = [](std::string text, Range<std::int64_t> range = {}) {
    return parse(sample_command(), {"m", "--top-k=" + text}).integer("top-k", range);
  };
  EXPECT_EQ(integer("0", {.least = 0}), 0);
  EXPECT_EQ(integer("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(integer("500k", {.most = 500'000}), 500'000);
  for (const char* bad : {"", "x", "1x", " 1", "1 ", "+1", "1.0", "1e3", "0x10", "9223372036854775808"})
    EXPECT_THROW(integer(bad), UsageError) << bad;

  const auto number = [](std::string text, Range<double> range = {}) {
    return parse(sample_command(), {"m", "--temperature=" + text}).number("temperature", range);
  };
  EXPECT_EQ(number("1e-3"), 1e-3);
  EXPECT_EQ(number(".5"), 0.5);
  EXPECT_EQ(number("1.5k"), 1500);
  for (const char* bad : {"", "x", "1,5", "nan", "inf", "-inf", "1e999", "1.0f"})
    EXPECT_THROW(number(bad), UsageError) << bad;

  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  };
  const auto hint = [&](const std::string& text) -> std::string {
    try {
      integer(text);
    } catch (const UsageError& error) {
      return error.hint();
    }
    return "accepted";
  };
  EXPECT_EQ(hint("16MB"), kUnitsHint);
  EXPECT_EQ(hint("many"), "");
  EXPECT_THROW(integer("1k", {.most = 999}), UsageError);
  EXPECT_EQ(message([&] { integer("0", {.least = 1}); }),
            "--top-k expects a whole number of at least 1, found '0'");
  EXPECT_EQ(message([&] { integer("many"); }), "--top-k expects a whole number, found 'many'");
  EXPECT_EQ(message([&] { number("2", {.least = 0, .most = 1}); }),
            "--temperature expects a number from 0 to 1, found '2'");
}

TEST(Parse, HelpIsFoundAnywhereBeforeTwoDashes) {
  EXPECT_EQ(help_request({"m", "--nonsense", "--help"}), HelpRequest::usual);
  EXPECT_EQ(help_request({"-h"}), HelpRequest::usual);
  EXPECT_EQ(help_request({"--help-all", "--help"}), HelpRequest::all);
  EXPECT_EQ(help_request({"m", "--", "--help"}), HelpRequest::none);
  EXPECT_EQ(help_request({"help"}), HelpRequest::none);
}

}  // namespace
}  // namespace thimble
