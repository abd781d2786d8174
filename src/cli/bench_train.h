// thimble bench train
#pragma once

#include "cli/option.h"

namespace thimble {

Command bench_train_command();

}  // namespace thimble
