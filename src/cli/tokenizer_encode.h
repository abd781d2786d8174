#pragma once

#include "cli/option.h"

namespace thimble {

Command tokenizer_encode_command();

}  // namespace thimble
