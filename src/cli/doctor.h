#pragma once

#include "cli/option.h"

namespace thimble {

Command doctor_command();

}  // namespace thimble
