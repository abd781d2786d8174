#pragma once

#include "cli/option.h"

namespace thimble {

Command data_build_command();

}  // namespace thimble
