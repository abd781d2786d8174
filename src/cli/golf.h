// thimble golf
#pragma once

#include "cli/option.h"

namespace thimble {

Command golf_command();

}  // namespace thimble
