#pragma once

#include "cli/option.h"

namespace thimble {

Command tokenizer_train_command();

}  // namespace thimble
