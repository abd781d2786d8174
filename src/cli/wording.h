// The table put into words: what --help, the man page and the completions say alike.
#pragma once

#include <string>

#include "cli/option.h"

namespace thimble {

std::string value_of(const Option& option);   // "N", "gguf|hf"; nothing for a flag
std::string described(const Option& option);  // its help, then (required), (may be repeated), (default: ...)
std::string usage_of(const Argument& argument);  // "[FILE]..."
std::string usage_of(const Command& command);    // "thimble pack MODEL -o FILE [options]"

}  // namespace thimble
