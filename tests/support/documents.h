// Reads the commands in the ```sh blocks of a Markdown document.
//
// Every line of such a block is a command, except comments; a backslash at its end continues it.
// A block whose commands cannot be run gives the reason in the line above it:
//
//   <!-- no-test: needs a CUDA GPU -->
//   ```sh no-test
#pragma once

#include <istream>
#include <string>
#include <vector>

namespace thimble {

struct Document {
  std::vector<std::string> commands;
  std::vector<std::string> problems;  // commands that no test would run
};

inline bool gives_a_reason(const std::string& line) {
  const std::string start = "<!-- no-test: ";
  return line.starts_with(start) && line.ends_with(" -->") && line.size() > start.size() + 4;
}

inline Document read_document(std::istream& lines) {
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
    } else if (in_block && runs && !line.empty() && !line.starts_with("#")) {
      for (std::string more; line.ends_with('\\') && std::getline(lines, more);) line += "\n" + more;
      document.commands.push_back(line);
    } else if (in_block && !shell && line.starts_with("thimble ")) {
      document.problems.push_back("a command outside of a ```sh block is not tested: " + line);
    }
  }
  return document;
}

}  // namespace thimble
