// `thimble generate`: text from a model.
#pragma once

#include "cli/option.h"

namespace thimble {

Command generate_command();

}  // namespace thimble
