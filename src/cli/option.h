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

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/log.h"
#include "infer/sampler.h"
#include "tensor/device.h"

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

// The table put into words: what --help, the man page and the completions say alike.
std::string value_of(const Option& option);   // "N", "gguf|hf"; nothing for a flag
std::string described(const Option& option);  // its help, then (required), (may be repeated), (default: ...)
std::string usage_of(const Argument& argument);  // "[FILE]..."
std::string usage_of(const Command& command);    // "thimble pack MODEL -o FILE [options]"

Argument model_argument(Count count = Count::one);  // MODEL, of any kind

// Where a command writes: -o FILE and --force.
struct Output {
  std::filesystem::path path;
  Existing existing = Existing::refuse;
};

Option output_option(std::string_view help);  // -o, required

enum class Writes { file, folder };

// Refuses a file that exists now, and a folder in the place of a file, before any work is done; writing it checks again. The folders above are made when
// there is something to write: make_folders(ops, folder_of(output.path)).
Output output_from(const Arguments& arguments, FileOps& ops, Writes writes = Writes::file);

// --device cpu|cuda|auto, for commands whose every part runs on a GPU. A GPU that is asked for and cannot be had is
// an error; auto takes one where there is one, and says what it took.
Option device_option();
// Of several GPUs the one with this number: the local rank's.
std::shared_ptr<DeviceRuntime> device_from(const Arguments& arguments, const Log& log, int gpu = 0);

// --dtype: what is computed in there.
DType dtype_from(const Arguments& arguments, Device device, const Log& log);

// How tokens are chosen: the flags that `generate` and `chat` share.
//
//   .options = with_sampling_options({{.name = "samples", ...}, common::json()})
//   ...
//   request.sampling = sampling_from(arguments);
// Those flags, --seed among them, in front of a command's own.
std::vector<Option> with_sampling_options(std::vector<Option> own);

SamplingOptions sampling_from(const Arguments& arguments);

}  // namespace thimble
