// `thimble chat`: talk to a model.
#pragma once

#include "cli/option.h"

namespace thimble {

Command chat_command();

}  // namespace thimble
