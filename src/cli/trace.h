#pragma once

#include "cli/option.h"

namespace thimble {

Command trace_command();

}  // namespace thimble
