#pragma once

#include "cli/option.h"

namespace thimble {

struct TrainResult;

Command train_command();

int exit_code(const TrainResult& result);

}  // namespace thimble
