#pragma once

#include "cli/option.h"

namespace thimble {

Command import_command();

}  // namespace thimble
