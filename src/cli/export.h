// thimble export: a model for llama.cpp, for Transformers, or for inference alone.
#pragma once

#include "cli/option.h"

namespace thimble {

Command export_command();

}  // namespace thimble
