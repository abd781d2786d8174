#pragma once

#include "cli/option.h"

namespace thimble {

Command train_command();

}  // namespace thimble
