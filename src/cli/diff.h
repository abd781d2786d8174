#pragma once

#include "cli/option.h"

namespace thimble {

Command diff_command();

}  // namespace thimble
