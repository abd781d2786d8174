#pragma once

#include "cli/option.h"

namespace thimble {

Command tokenizer_info_command();

}  // namespace thimble
