#pragma once

#include "cli/option.h"

namespace thimble {

Command data_info_command();

}  // namespace thimble
