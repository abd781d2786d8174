#pragma once

#include "cli/option.h"

namespace thimble {

Command compare_command();

}  // namespace thimble
