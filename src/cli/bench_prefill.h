// `thimble bench prefill`
#pragma once

#include "cli/option.h"

namespace thimble {

Command bench_prefill_command();

}  // namespace thimble
