#pragma once

#include "cli/option.h"

namespace thimble {

Command inspect_command();

}  // namespace thimble
