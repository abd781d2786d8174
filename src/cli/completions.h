#pragma once

#include "cli/option.h"

namespace thimble {

Command completions_command();

}  // namespace thimble
