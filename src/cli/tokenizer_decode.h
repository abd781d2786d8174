#pragma once

#include "cli/option.h"

namespace thimble {

Command tokenizer_decode_command();

}  // namespace thimble
