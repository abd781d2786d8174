// `thimble eval`: nats per token and bits per byte of a model on a text.
#pragma once

#include "cli/option.h"

namespace thimble {

Command eval_command();

}  // namespace thimble
