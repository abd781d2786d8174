// Checks the documents: flags exist for the command that they are used with, links and images lead
// somewhere, prose lines are at most 100 columns wide, and words that docs and comments should not
// use do not occur. (tests/e2e/docs_test.cpp runs the commands, tests/cli/help_test.cpp checks that
// docs/reference is current.)
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include "base/table.h"
#include "base/text.h"
#include "cli/commands.h"
#include "support/run_binary.h"

namespace thimble {
namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<fs::path> documents() {
  std::vector<fs::path> found;
  for (const char* file :
       {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "records/README.md", "tests/golden/README.md"})
    found.push_back(source_folder() / file);
  for (const char* folder : {"docs", "examples"})
    for (const auto& entry : fs::recursive_directory_iterator(source_folder() / folder))
      if (entry.path().extension() == ".md" || entry.path().extension() == ".sh")
        found.push_back(entry.path());
  return found;
}

bool has_option(const Command& command, std::string_view name) {
  const std::vector<Option> options = options_of(command);
  return std::any_of(options.begin(), options.end(),
                     [&](const Option& option) { return option.name == name; });
}

// "--top-k=5," -> "top-k"; nullopt if the word is not a long option.
std::optional<std::string> flag_in(std::string_view word) {
  if (!word.starts_with("--") || word.size() < 3 || !std::isalpha(static_cast<unsigned char>(word[2])))
    return std::nullopt;
  std::size_t end = 2;
  while (end < word.size() && (std::isalnum(static_cast<unsigned char>(word[end])) || word[end] == '-'))
    ++end;
  return std::string(word.substr(2, end - 2));
}

// The thimble commands in a line of shell or inline code, and errors such as flags that those do
// not have.
struct Mentions {
  std::vector<std::string> commands;
  std::vector<std::string> wrong;
};

// Splits at spaces; "a quoted part" is one word.
std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  char quote = 0;
  for (const char c : line) {
    if (!quote && (c == '"' || c == '\''))
      quote = c;
    else if (c == quote)
      quote = 0;
    else if (!quote && c == ' ')
      words.push_back(std::exchange(word, {}));
    else
      word += c;
  }
  words.push_back(word);
  std::erase(words, "");
  return words;
}

bool ends_command(const std::string& word) {
  return word == "|" || word == "&&" || word == "||" || word == ";" || word.starts_with('#');
}

Mentions mentions_in(std::string_view line) {
  static const std::vector<Command> commands = all_commands();
  Mentions mentions;
  const std::vector<std::string> words = words_of(line);
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    const bool ours = words[i] == "thimble" || words[i].ends_with("/thimble") || words[i] == "$thimble";
    if (!ours || !std::islower(static_cast<unsigned char>(words[i + 1][0]))) continue;  // --help, COMMAND
    CommandMatch match;
    try {
      match = find_command(commands, {words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end()});
    } catch (const std::exception& error) {
      mentions.wrong.push_back(error.what());
      continue;
    }
    if (!match.command) continue;
    mentions.commands.emplace_back(match.command->name);
    for (++i; i < words.size() && !ends_command(words[i]); ++i)
      if (const auto flag = flag_in(words[i]); flag && !has_option(*match.command, *flag))
        mentions.wrong.push_back("thimble " + mentions.commands.back() + " has no --" + *flag);
  }
  return mentions;
}

TEST(DocumentedFlags, AreFoundInCommandLines) {
  EXPECT_EQ(mentions_in("echo x | thimble chat m --max-tokens 3").commands,
            (std::vector<std::string>{"chat"}));
  EXPECT_TRUE(mentions_in("A=1 thimble train --data \"a --nonsense b\" --steps=3").wrong.empty());
  EXPECT_EQ(mentions_in("thimble train --stesp 3").wrong.size(), 1u);
  EXPECT_EQ(mentions_in("thimble pack m --steps 3 && thimble tokenizer train x --bits 6").wrong.size(), 2u);
  EXPECT_EQ(mentions_in("thimble frobnicate").wrong.size(), 1u);
  EXPECT_TRUE(mentions_in("thimble train --data x | head --lines 3").wrong.empty());
}

// Whether a flag in inline code exists: in a command of the same line, else in any command or
// script.
bool is_known(const std::string& flag, const std::vector<std::string>& named) {
  static const std::vector<Command> commands = all_commands();
  static const std::string scripts = content_of(source_folder() / "test") +
                                     content_of(source_folder() / "quickstart") +
                                     content_of(source_folder() / "examples" / "names.sh");
  const bool in_script =
      scripts.find("--" + flag + " ") != scripts.npos || scripts.find("--" + flag + ")") != scripts.npos;
  if (named.empty() && in_script) return true;
  return std::any_of(commands.begin(), commands.end(), [&](const Command& command) {
    const bool counts = named.empty() || std::count(named.begin(), named.end(), command.name) > 0;
    return counts && has_option(command, flag);
  });
}

// The parts between backticks.
std::vector<std::string> code_spans(const std::string& line) {
  std::vector<std::string> spans;
  for (std::size_t begin = line.find('`'); begin != line.npos;) {
    const std::size_t end = line.find('`', begin + 1);
    if (end == line.npos) break;
    spans.push_back(line.substr(begin + 1, end - begin - 1));
    begin = line.find('`', end + 1);
  }
  return spans;
}

std::vector<std::string> wrong_in_prose(const std::string& line) {
  std::vector<std::string> wrong, named;
  const std::vector<std::string> spans = code_spans(line);
  for (const std::string& span : spans) {
    const Mentions mentions = mentions_in(span);
    wrong.insert(wrong.end(), mentions.wrong.begin(), mentions.wrong.end());
    named.insert(named.end(), mentions.commands.begin(), mentions.commands.end());
  }
  for (const std::string& span : spans)
    if (const auto flag = flag_in(span); flag && !is_known(*flag, named))
      wrong.push_back("no such flag: --" + *flag);
  return wrong;
}

TEST(DocumentedFlags, AreFoundInProse) {
  EXPECT_TRUE(wrong_in_prose("with `--bits 6` and `--full`").empty());
  EXPECT_EQ(wrong_in_prose("with `--bist 6`").size(), 1u);
  EXPECT_EQ(wrong_in_prose("`thimble train` takes `--bits`").size(), 1u);
  EXPECT_TRUE(wrong_in_prose("`thimble pack` takes `--bits`").empty());
  EXPECT_EQ(wrong_in_prose("`thimble pack MODEL --steps 3`").size(), 1u);
}

class EveryDocument : public testing::TestWithParam<fs::path> {};

// The prose of generated pages, such as an option's meaning, may name other commands.
bool is_generated(const std::string& document) {
  return document.starts_with("<!-- Generated by ");
}

TEST_P(EveryDocument, NamesFlagsThatExist) {
  const std::string document = content_of(GetParam());
  std::istringstream lines(document);
  const bool script = GetParam().extension() == ".sh";
  bool in_block = false;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    const int first = ++number;
    if (line.starts_with("```")) in_block = !in_block;
    const bool shell = in_block || script;
    for (std::string more; shell && line.ends_with('\\') && std::getline(lines, more); ++number) {
      line.back() = ' ';
      line += more;
    }
    if (!shell && is_generated(document)) continue;
    for (const std::string& wrong : shell ? mentions_in(line).wrong : wrong_in_prose(line))
      ADD_FAILURE() << GetParam().filename() << ":" << first << ": " << wrong << "\n" << line;
  }
}

// The anchor that GitHub generates: lower case, without punctuation, hyphens for spaces.
std::string anchor_of(std::string_view heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) || c == '_' || c == '-' || byte >= 0x80)
      anchor += static_cast<char>(std::tolower(byte));
    else if (c == ' ')
      anchor += '-';
  }
  return anchor;
}

std::set<std::string> anchors_of(const fs::path& document) {
  std::set<std::string> anchors;
  std::istringstream lines(content_of(document));
  bool in_block = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) in_block = !in_block;
    const std::size_t text = line.find_first_not_of('#');
    if (!in_block && text != line.npos && text > 0 && line[text] == ' ')
      anchors.insert(anchor_of(line.substr(text + 1)));
  }
  return anchors;
}

// Removes code between backticks, whose brackets are not links.
std::string without_code(const std::string& text) {
  std::string out;
  bool code = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool fence = text.compare(at, 3, "```") == 0;
    if (text[at] == '`') code = !code;
    if (fence) at += 2;
    if (!code && text[at] != '`') out += text[at];
  }
  return out;
}

// The targets of [text](target) and ![image](target).
std::vector<std::string> links_in(const std::string& document) {
  const std::string text = without_code(document);
  std::vector<std::string> links;
  for (std::size_t at = text.find("]("); at != text.npos; at = text.find("](", at + 1)) {
    const std::size_t end = text.find_first_of(") \n", at);
    if (end != text.npos && end > at + 2) links.push_back(text.substr(at + 2, end - at - 2));
  }
  return links;
}

std::string broken_link(const fs::path& document, const std::string& link) {
  if (link.find("://") != link.npos || link.starts_with("mailto:")) return "";  // external
  const std::size_t hash = std::min(link.find('#'), link.size());
  const fs::path target = hash == 0 ? document : document.parent_path() / link.substr(0, hash);
  if (!fs::exists(target)) return link + ": there is no " + target.string();
  if (hash < link.size() && !anchors_of(target).contains(link.substr(hash + 1)))
    return link + ": no such heading";
  return "";
}

TEST_P(EveryDocument, HasLinksThatLeadSomewhere) {
  for (const std::string& link : links_in(content_of(GetParam())))
    EXPECT_EQ(broken_link(GetParam(), link), "");
}

TEST(Links, ThatLeadNowhereAreFound) {
  const fs::path readme = source_folder() / "README.md";
  EXPECT_EQ(links_in("a [b](c.md) `f[0](x)` ![d](e.png)\n```cpp\n[](auto x) {}\n```\n[`g`](h.md)"),
            (std::vector<std::string>{"c.md", "e.png", "h.md"}));
  EXPECT_EQ(broken_link(readme, "docs/design.md#the-map"), "");
  EXPECT_EQ(broken_link(readme, "https://example.org/nothing"), "");
  EXPECT_NE(broken_link(readme, "docs/nothing.md"), "");
  EXPECT_NE(broken_link(readme, "docs/design.md#nothing"), "");
  EXPECT_NE(broken_link(readme, "#nothing"), "");
}

INSTANTIATE_TEST_SUITE_P(Repository, EveryDocument, testing::ValuesIn(documents()), [](const auto& info) {
  std::string name = fs::relative(info.param, source_folder()).string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
});

constexpr std::size_t kProseColumns = 100;

// Whether a line of Markdown is prose: not code, not a table, not a single long link or command.
bool is_prose(std::string_view line, bool in_block) {
  return !in_block && !line.starts_with("|") && !line.starts_with("<!--") && !line.starts_with("![");
}

TEST_P(EveryDocument, WrapsProseAt100Columns) {
  if (GetParam().extension() != ".md") return;
  std::istringstream lines(content_of(GetParam()));
  bool in_block = false;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.starts_with("```")) in_block = !in_block;
    if (is_prose(line, in_block)) {
      EXPECT_LE(display_width(line), kProseColumns) << GetParam().filename() << ":" << number;
    }
  }
}

// Words of an older, private vocabulary, and the standard term.
struct Discouraged {
  std::string_view words, instead;
};
constexpr Discouraged kDiscouraged[] = {
    {"card", "GPU"},
    {"cards", "GPUs"},
    {"whoever", "the subject: a client, a caller, a user"},
    {"somebody", "the subject: a client, a caller, a user"},
    {"what is not there", "Limitations"},
    {"yardstick", "baseline"},
    {"surroundings", "context"},
    {"wish", "request"},
    {"wishes", "requests"},
};

bool is_word_character(char c) {  // not '_': identifiers are made of words
  return std::isalnum(static_cast<unsigned char>(c)) || c == '-';
}

// The first discouraged words in `text`, "" if there are none. "Model card" is a term of Hugging
// Face.
std::string discouraged_in(std::string_view text) {
  const std::string lower = lower_case(text);
  for (const auto& [words, instead] : kDiscouraged)
    for (std::size_t at = lower.find(words); at != lower.npos; at = lower.find(words, at + 1)) {
      const std::size_t end = at + words.size();
      const bool whole = (at == 0 || !is_word_character(lower[at - 1])) &&
                         (end == lower.size() || !is_word_character(lower[end]));
      const std::string before = at >= 6 ? lower.substr(at - 6, 6) : "";
      const bool model_card = before == "model " || before == "model_";
      if (whole && !model_card) return fmt::format("'{}': write {}", words, instead);
    }
  return "";
}

TEST(Prose, DiscouragedWordsAreFound) {
  EXPECT_NE(discouraged_in("Runs on one Card."), "");
  EXPECT_EQ(discouraged_in("A model card, a wildcard and discards"), "");
  EXPECT_NE(discouraged_in("// somebody waits"), "");
  EXPECT_NE(discouraged_in("int card_step = 0;"), "");
}

TEST_P(EveryDocument, UsesTheStandardTerms) {
  std::istringstream lines(content_of(GetParam()));
  int number = 0;
  for (std::string line; std::getline(lines, line);)
    EXPECT_EQ(discouraged_in(line), "") << GetParam().filename() << ":" << ++number;
}

// The comment of a line of source, or "".
std::string_view comment_in(std::string_view line) {
  const std::size_t text = line.find_first_not_of(' ');
  if (text != line.npos && line.substr(text).starts_with("//")) return line.substr(text);
  const std::size_t behind_code = line.find("  // ");
  return behind_code == line.npos ? std::string_view() : line.substr(behind_code + 2);
}

// Whether the words of a source file are written for people: code, scripts and pages, but not
// packages of others, the built-in corpus or this list of words.
bool has_prose(const fs::path& path) {
  static const std::set<std::string> endings = {".cpp", ".h",  ".cu", ".cuh",   ".html",
                                                ".js",  ".py", ".sh", ".cmake", ".txt"};
  const std::string name = path.string();
  return endings.contains(path.extension().string()) && name.find("/node_modules/") == name.npos &&
         name.find("/data/sample/") == name.npos && name.find("_corpus/") == name.npos &&
         name.find("/golden/") == name.npos && path.filename() != "documents_test.cpp";
}

bool is_cpp(const fs::path& path) {
  static const std::set<std::string> endings = {".cpp", ".h", ".cu", ".cuh"};
  return endings.contains(path.extension().string());
}

TEST(Prose, SourcesUseTheStandardTermsAndWrapComments) {
  int files = 0;
  for (const char* folder : {"src", "tests", "bench", "examples", "cmake", "packaging"})
    for (const auto& entry : fs::recursive_directory_iterator(source_folder() / folder)) {
      if (!entry.is_regular_file() || !has_prose(entry.path())) continue;
      ++files;
      std::istringstream lines(content_of(entry.path()));
      int number = 0;
      for (std::string line; std::getline(lines, line);) {
        ++number;
        EXPECT_EQ(discouraged_in(line), "") << entry.path() << ":" << number;
        const std::string_view comment = is_cpp(entry.path()) ? comment_in(line) : "";
        const bool whole_line =
            !comment.empty() && comment.data() == line.data() + line.find_first_not_of(' ');
        if (!whole_line) continue;
        EXPECT_LE(display_width(line), kProseColumns) << entry.path() << ":" << number;
      }
    }
  EXPECT_GE(files, 600);
}

}  // namespace
}  // namespace thimble
