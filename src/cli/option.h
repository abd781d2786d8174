// The one table. A Command says everything about itself here; parsing, --help, "did you mean" and shell
// completions are all derived from it, so they cannot disagree.
//
//   Command hello_command() {
//     return {.name = "hello",
//             .summary = "greet somebody",
//             .arguments = {{.name = "NAME", .help = "whom to greet"}},
//             .options = {{.name = "times", .letter = 'n', .value = "N", .initial = "1", .help = "how
//             often"},
//                         common::json()},
//             .examples = {"thimble hello world -n 3"},
//             .run = run_hello};
//   }
#pragma once

#include <string_view>
#include <vector>

namespace thimble {

class Arguments;
class Console;

// Without a value name or choices it is a flag.
struct Option {
  std::string_view name;          // "top-k" is spelled --top-k
  char letter = 0;                // 'o' is also spelled -o
  std::string_view value = {};    // what the help calls the value: "N", "FILE"
  std::string_view initial = {};  // the default, as it would be typed; empty: none
  std::string_view help = {};
  std::vector<std::string_view> choices = {};  // the only values allowed
  bool required = false;
  bool repeated = false;  // may be given many times: a list
  bool common = false;    // means the same in every command; the help shows these last

  bool is_flag() const { return value.empty() && choices.empty(); }
};

enum class Count { one, optional, many, any };  // many: at least one; any: also none

struct Argument {
  std::string_view name;  // "MODEL"
  std::string_view help = {};
  Count count = Count::one;  // only the last argument may be many or any
  std::vector<std::string_view> choices = {};

  bool is_list() const { return count == Count::many || count == Count::any; }
  bool may_be_absent() const { return count == Count::optional || count == Count::any; }
};

struct Command {
  std::string_view name;  // one word, or two: "tokenizer train"
  std::vector<std::string_view> aliases = {};
  std::string_view summary = {};  // one line, no full stop
  std::vector<Argument> arguments = {};
  std::vector<Option> options = {};  // --help is everybody's and not listed
  std::vector<std::string_view> examples = {};
  int (*run)(const Arguments&, Console&) = nullptr;  // returns the exit code
};

// Options that mean the same wherever they appear. A command lists those it takes.
namespace common {

Option json();
Option quiet();
Option force();
Option threads();
Option device();
Option dtype();
Option seed();

}  // namespace common

// Every option of a command, --help included, in the order the help shows them.
std::vector<Option> options_of(const Command& command);

}  // namespace thimble
