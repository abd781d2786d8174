#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "base/files.h"
#include "cli/commands.h"
#include "config/builder.h"
#include "formats/export.h"
#include "formats/model_file.h"
#include "support/run_binary.h"

namespace thimble {
namespace {

namespace fs = std::filesystem;

std::string as_roff(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '-' ? std::string("\\-") : std::string(1, c);
  return out;
}

TEST(ManPage, HasEveryCommandAndEveryFlagOfIt) {
  const std::string page = man_page(all_commands());
  for (const Command& command : all_commands()) {
    const std::string head = fmt::format(".SS {}\n", as_roff(usage_of(command)));
    const std::size_t begin = page.find(head);
    ASSERT_NE(begin, page.npos) << head;
    const std::string section = page.substr(begin, page.find(".S", begin + 1) - begin);
    for (const Option& option : options_of(command))
      EXPECT_NE(section.find(fmt::format("\\fB\\-\\-{}\\fR", as_roff(option.name))), section.npos)
          << head << " " << option.name;
    for (std::string_view alias : command.aliases) EXPECT_NE(section.find(alias), section.npos);
  }
}

// In roff a request starts a line and an escape starts with a backslash. A help text must produce
// neither.
TEST(ManPage, EscapesHelpTexts) {
  const std::vector<Command> commands = {
      {.name = "x",
       .summary = ".so /etc/passwd",
       .options = {{.name = "y", .value = "N", .help = "'quoted' \\fBnot bold\\fR Größe"}}}};
  const std::string page = man_page(commands);
  EXPECT_NE(page.find("\n\\&.so /etc/passwd\n"), page.npos);
  EXPECT_NE(page.find("\n\\(aqquoted\\(aq \\efBnot bold\\efR Gr\\[u00F6]\\[u00DF]e\n"), page.npos) << page;
}

// The names of std::getenv("NAME"), directly or through a constant of the same file.
std::set<std::string> variables_read(const fs::path& file) {
  std::ifstream stream(file);
  std::stringstream content;
  content << stream.rdbuf();
  const std::string text = content.str();
  std::set<std::string> names;
  for (std::size_t at = text.find("getenv("); at != text.npos; at = text.find("getenv(", at + 1)) {
    std::size_t begin = at + 7;
    if (text[begin] != '"') {  // a constant: find its definition
      const std::string constant = text.substr(begin, text.find(')', begin) - begin);
      if (constant.starts_with("name.variable")) continue;  // of a plugin; see below
      const std::size_t defined = std::min(text.find(constant + " = \""), text.find(constant + "[] = \""));
      EXPECT_NE(defined, text.npos) << file << ": " << constant;
      if (defined == text.npos) continue;
      begin = text.find('"', defined);
    }
    names.insert(text.substr(begin + 1, text.find('"', begin + 1) - begin - 1));
  }
  const std::string plugin = ".variable = \"";
  for (std::size_t at = text.find(plugin); at != text.npos; at = text.find(plugin, at + 1)) {
    const std::size_t begin = at + plugin.size();
    names.insert(text.substr(begin, text.find('"', begin) - begin));
  }
  return names;
}

TEST(ManPage, NamesEveryVariableThatTheSourceReads) {
  const std::string page = man_page(all_commands());
  std::size_t found = 0;
  for (const auto& entry : fs::recursive_directory_iterator(source_folder() / "src")) {
    if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
    for (const std::string& name : variables_read(entry.path())) {
      ++found;
      EXPECT_NE(page.find(name), page.npos) << entry.path() << " reads " << name;
    }
  }
  EXPECT_GE(found, 8u);
}

std::string anchor_words(std::string_view name) {
  std::string words(name);
  std::ranges::replace(words, ' ', '-');
  return words;
}

std::string one_line(const std::string& text) {
  std::string out;
  std::istringstream words(text);
  for (std::string word; words >> word;) out += word + " ";
  return out;
}

TEST(ManPage, HelpAndDocumentsNameEveryExportFormat) {
  const std::vector<Command> commands = all_commands();
  const std::string page = one_line(man_page(commands)),
                    help = one_line(command_help(*find_command(commands, {"export"}).command)),
                    document = read_file(source_folder() / "docs/reference/file-formats.md", 1 << 20);
  for (const ExportFormat& format : export_formats()) {
    const std::string said = fmt::format("{}: {}", format.name, format.what);
    EXPECT_NE(help.find(said), help.npos) << said;
    EXPECT_NE(page.find(as_roff(said)), page.npos) << said;
    EXPECT_NE(document.find(fmt::format("`--format {}`", format.name)), document.npos)
        << "docs/reference/file-formats.md does not name --format " << format.name;
    for (const GgufType type : format.types)
      EXPECT_NE(help.find(info_of(type).option), help.npos) << format.name << " " << info_of(type).option;
  }
}

TEST(ManPage, DescribesModelArgumentsAlike) {
  EXPECT_EQ(model_kinds_text(), "run folder, checkpoint, PEFT folder, artifact, GGUF or Hugging Face folder");
  const std::string written = "Hugging Face folder";
  for (const Command& command : all_commands())
    for (const Argument& argument : command.arguments)
      if (argument.name == "MODEL" && argument.help.find(written) != argument.help.npos) {
        EXPECT_EQ(argument.help, model_kinds_text()) << command.name;
      }
}

TEST(ManPage, AndHelpNameEveryPreset) {
  const std::vector<Command> commands = all_commands();
  const std::string page = one_line(man_page(commands)),
                    help = one_line(command_help(*find_command(commands, {"train"}).command));
  for (const Preset& preset : all_presets()) {
    EXPECT_NE(help.find(preset.name), help.npos) << preset.name;
    EXPECT_NE(page.find(as_roff(preset.name)), page.npos) << preset.name;
  }
}

// docs/reference is generated; `thimble man --markdown PAGE > docs/reference/PAGE.md` brings a page
// up to date.
TEST(ReferencePages, AreCurrent) {
  for (const std::string_view page : reference_pages()) {
    const fs::path file = source_folder() / "docs/reference" / fmt::format("{}.md", page);
    EXPECT_EQ(read_file(file, 1 << 20), reference_page(page))
        << "out of date: thimble man --markdown " << page << " > docs/reference/" << page << ".md";
  }
}

TEST(ReferencePages, NameEveryCommandOptionAndKey) {
  const std::string commands = reference_page("commands"), config = reference_page("config");
  for (const Command& command : all_commands()) {
    EXPECT_NE(commands.find(fmt::format("## thimble {}\n", command.name)), commands.npos) << command.name;
    EXPECT_NE(commands.find(fmt::format("](#thimble-{})", anchor_words(command.name))), commands.npos);
    for (const Option& option : options_of(command))
      EXPECT_TRUE(option.advanced || commands.find(fmt::format("`--{}", option.name)) != commands.npos)
          << command.name << " --" << option.name;
  }
  for (const Key& key : all_keys())
    EXPECT_NE(config.find(fmt::format("| `{}` |", key.name)), config.npos) << key.name;
}

}  // namespace
}  // namespace thimble
