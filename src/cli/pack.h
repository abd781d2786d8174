#pragma once

#include "cli/option.h"

namespace thimble {

Command pack_command();

}  // namespace thimble
