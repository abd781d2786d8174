#pragma once

#include "cli/option.h"

namespace thimble {

Command plot_command();

}  // namespace thimble
