// The command table. Parsing, --help, "did you mean" hints, the man page, the reference
// documentation and shell completions are derived from Command.
//
//   Command hello_command() {
//     return {.name = "hello",
//             .summary = "greet a person",
//             .arguments = {{.name = "NAME", .help = "person to greet"}},
//             .options = {{.name = "times", .letter = 'n', .value = "N", .initial = "1",
//                          .help = "number of repetitions"},
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
#include "formats/adapters.h"
#include "infer/sampler.h"
#include "tensor/device.h"

namespace thimble {

class Arguments;
class Console;
class Constraint;
class ConstraintCompiler;

// An option without a value name and without choices is a flag.
struct Option {
  std::string_view name;                       // "top-k" is spelled --top-k
  char letter = 0;                             // 'o' is also spelled -o
  std::string_view value = {};                 // placeholder of the value in help: "N", "FILE"
  std::string initial = {};                    // default, as it would be typed; empty: none
  std::string_view help = {};                  // noun phrase or imperative, without default and full stop
  std::vector<std::string_view> choices = {};  // the allowed values; empty: any. Help lists them,
                                               // unless there is a placeholder
  bool required = false;
  bool repeated = false;           // may be given more than once: the value is a list
  bool common = false;             // has the same meaning in every command; help lists these last
  std::string_view group = {};     // heading in help; empty: "options"
  bool advanced = false;           // listed by --help-all only
  std::string shown_default = {};  // shown in help instead of `initial`: a computed default

  bool is_flag() const { return value.empty() && choices.empty(); }
};

enum class Count { one, optional, many, any };  // many: one or more; any: zero or more

struct Argument {
  std::string_view name;  // "MODEL"
  std::string_view help = {};
  Count count = Count::one;  // only the last argument may be many or any
  std::vector<std::string_view> choices = {};
  bool takes_adapters = false;  // the command has the option --adapter (model_from)

  bool is_list() const { return count == Count::many || count == Count::any; }
  bool may_be_absent() const { return count == Count::optional || count == Count::any; }
};

struct Command {
  std::string_view name;  // one word, or two: "tokenizer train"
  std::vector<std::string_view> aliases = {};
  std::string_view summary = {};  // one line, no full stop
  std::vector<Argument> arguments = {};
  std::vector<Option> options = {};  // without --help, which every command has
  std::string_view notes = {};       // a paragraph below the options
  std::vector<std::string_view> examples = {};
  std::string_view task = {};                        // heading in `thimble --help`; set by all_commands()
  int (*run)(const Arguments&, Console&) = nullptr;  // returns the exit code
};

// Options with the same meaning in every command. A command lists those it accepts.
namespace common {

Option json();
Option quiet();
Option force();
Option threads();
Option device();
Option dtype();
Option seed();

}  // namespace common

// All options of a command, including --help and --adapter, in the order in which help lists them.
std::vector<Option> options_of(const Command& command);

// Parts of the help text, shared by --help, the man page, the reference and the completions.
std::string value_of(const Option& option);      // "N" or "gguf|hf"; empty for a flag
std::string described(const Option& option);     // help, (required), (may be repeated), (default: ...)
std::string usage_of(const Argument& argument);  // "[FILE]..."
std::string usage_of(const Command& command);    // "thimble pack MODEL -o FILE [options]"

// MODEL: every kind of model, with the adapters of --adapter.
Argument model_argument(Count count = Count::one);
ModelFile model_from(const Arguments& arguments, WeightsAs as, const ProgressOutput& progress = {});
std::vector<NamedAdapter> adapters_from(const Arguments& arguments);

// The output of a command: -o FILE and --force.
struct Output {
  std::filesystem::path path;
  Existing existing = Existing::refuse;
};

Option output_option(std::string_view help);  // -o, required

enum class Writes { file, folder };

// Throws before any work is done if the output exists (unless --force was given), or if it is a
// folder and a file is expected. Writing checks again. Parent folders are created by the writer:
// make_folders(ops, folder_of(output.path)).
Output output_from(const Arguments& arguments, FileOps& ops, Writes writes = Writes::file,
                   std::string_view option = "output");

// --device cpu|cuda|auto. `cuda` fails without a usable GPU; `auto` uses a GPU if one is usable,
// and logs its choice.
Option device_option();
// `gpu` is the index of the GPU to use, the local rank.
std::shared_ptr<DeviceRuntime> device_from(const Arguments& arguments, const Log& log, int gpu = 0);

// --dtype: the number format of the computation.
DType dtype_from(const Arguments& arguments, Device device, const Log& log);

// Sampling flags, shared by `generate` and `chat`. --seed is one of them; without it, the seed is
// random, or 0 if the temperature is 0.
//
//   .options = with_sampling_options({{.name = "samples", ...}, common::json()})
//   ...
//   request.sampling = sampling_from(arguments);
// Returns the sampling flags followed by the command's own.
std::vector<Option> with_sampling_options(std::vector<Option> own);

SamplingOptions sampling_from(const Arguments& arguments);

// --json-schema, --grammar, --regex and --choice, of which at most one may be given.
std::vector<Option> constraint_options();
// nullptr if none is given. An error names the file.
std::shared_ptr<Constraint> constraint_from(const Arguments& arguments, ConstraintCompiler& compiler);

// --min-tokens, which must not exceed --max-tokens.
std::int64_t min_tokens_from(const Arguments& arguments);

}  // namespace thimble
